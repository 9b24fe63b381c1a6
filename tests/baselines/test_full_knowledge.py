"""Full knowledge: the least cumulated execution time, and the bound of the greedy scheduler."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.baselines.full_knowledge import FullKnowledge
from dalton.envs.servers import Servers


def test_the_example_of_the_paper_takes_21_seconds():
    """OSG Section 2: what round robin does in 29 s, since b goes where the second a does not have to wait."""
    times, costs = [0.0, 1.0, 2.0], [10.0, 1.0, 10.0]
    workers = FullKnowledge(n_workers=2).route([0, 1, 0], times, costs)
    assert workers.tolist() == [0, 1, 1]
    spent = Servers(n_workers=2).serve(workers, times, costs)
    assert spent.tolist() == [10.0, 1.0, 10.0]
    assert spent.sum() == 21.0


def test_execution_time_is_cost_over_capacity():
    # Worker 1 is twice as fast: 4 s of work are 4 s on worker 0 and 2 s on worker 1.
    partitioner = FullKnowledge(n_workers=2)
    partitioner.employ([1.0, 2.0])
    # C = (0, 0) -> 0: (4, 0) -> 1: (4, 2) -> 1: (4, 4) -> 0, the first of two equal ones: (8, 4) -> 1.
    assert partitioner.route([0] * 5, costs=[4.0] * 5).tolist() == [0, 1, 1, 0, 1]
    by_measure = FullKnowledge(n_workers=2)
    by_measure.measure("time", [1.0, 2.0])
    assert by_measure.route([0] * 5, costs=[4.0] * 5).tolist() == [0, 1, 1, 0, 1]


def test_a_change_of_capacity_is_known():
    # From second 10 on worker 0 needs twice the time: the tuple of second 11 takes 4 s there instead of 2.
    partitioner = FullKnowledge(n_workers=2)
    partitioner.employ([1.0, 1.0], [(10.0, 0, 0.5)])
    assert partitioner.route([0, 0], [0.0, 11.0], [1.0, 1.0]).tolist() == [0, 1]
    assert partitioner.total.tolist() == [1.0, 1.0]
    assert partitioner.route([0, 0, 0], [12.0, 12.0, 12.0], [2.0, 2.0, 1.0]).tolist() == [0, 1, 1]
    assert partitioner.total.tolist() == [5.0, 4.0]


def test_a_failed_worker_gets_one_tuple_at_most():
    partitioner = FullKnowledge(n_workers=2)
    partitioner.employ([1.0, 1.0], [(0.0, 0, 0.0)])
    assert partitioner.route([0] * 4, [0.0, 1.0, 2.0, 3.0], [1.0] * 4).tolist() == [0, 1, 1, 1]


def test_without_costs_all_tuples_are_equal():
    assert FullKnowledge(n_workers=3).route([5, 5, 7, 9]).tolist() == [0, 1, 2, 0]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.lists(st.floats(0.001, 100.0), min_size=1, max_size=60))
def test_makespan_is_at_most_2_minus_1_over_k_times_the_least(k, costs):
    """OSG Theorem 4.2, against the bound of Eqs. 3 and 4 that every schedule respects."""
    workers = FullKnowledge(n_workers=k).route(np.zeros(len(costs), np.int64), costs=costs)
    makespan = np.bincount(workers, costs, k).max()
    assert makespan <= (2 - 1 / k) * max(sum(costs) / k, max(costs)) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 3), st.lists(st.integers(1, 9), min_size=1, max_size=7))
def test_makespan_against_the_best_of_all_schedules(k, costs):
    workers = FullKnowledge(n_workers=k).route(np.zeros(len(costs), np.int64), costs=costs)
    best = min(
        np.bincount(schedule, costs, k).max() for schedule in itertools.product(range(k), repeat=len(costs))
    )
    assert np.bincount(workers, costs, k).max() <= (2 - 1 / k) * best + 1e-9


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_bound_is_reached(k):
    """OSG Section 4.1: k (k - 1) tuples of w/k, then one of w; sending the long one first takes w."""
    costs = [1.0] * (k * (k - 1)) + [float(k)]
    workers = FullKnowledge(n_workers=k).route(np.zeros(len(costs), np.int64), costs=costs)
    assert np.bincount(workers, costs, k).max() == (2 - 1 / k) * k


def test_bad_parameters(refused):
    assert refused(FullKnowledge, n_workers=0).startswith("n_workers = ")
    partitioner = FullKnowledge(n_workers=2)
    assert refused(partitioner.employ, [1.0]).startswith("capacity = ")
    assert refused(partitioner.route, [1, 1], [1.0, 0.0], [1.0, 1.0]).startswith("times[1] = ")
