"""Dalton whose load is time over capacity against Dalton that counts tuples: paired streams of five seeds."""

import numpy as np
import pytest

from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments import make

SEEDS = range(5)
N = 8
WINDOW = Window(20_000, 2_000)
STRONG = [4.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 1.0]


def decisions(name, exponent, seed, measure, capacity=None, **more):
    """Tuples, and the worker of each: 200k tuples of 10k keys."""
    stream = make_workload("zipf", n_tuples=200_000, n_keys=10_000, exponent=exponent, seed=seed, **more)
    chunk = next(stream.chunks(stream.n_tuples))
    agent = make(name, n_workers=N, seed=seed, window=WINDOW)
    agent.measure(measure, capacity)
    return chunk, agent.route(chunk.keys, chunk.times, chunk.costs)


def worst(chunk, workers, capacity=None):
    """Mean over windows of the time that the slowest worker needs, over the least possible one."""
    strength = np.ones(N) if capacity is None else np.array(capacity)
    length = int(WINDOW.slide)
    work = np.array(
        [
            np.bincount(workers[at : at + length], chunk.costs[at : at + length], minlength=N)
            for at in range(0, len(workers), length)
        ]
    )
    slides = WINDOW.n_slides
    windows = np.array([work[i : i + slides].sum(axis=0) for i in range(len(work) - slides + 1)])
    return float(((windows / strength).max(axis=1) / (windows.sum(axis=1) / strength.sum())).mean())


COSTS = {"cost_mean": 0.001, "cost_spread": 1.0, "cost_seeded": True}


@pytest.mark.parametrize(
    ("name", "exponent", "capacity", "most"),
    [
        # Excess over the least possible time, mean over seeds: counting tuples, then in time.
        ("dalton", 2.0, None, 0.6),  # 0.27, 0.10
        ("dalton", 2.0, STRONG, 0.6),  # 1.22, 0.49
        ("dalton_share", 1.2, None, 0.2),  # 0.23, 0.01
        ("dalton_share", 1.2, STRONG, 0.2),  # 1.16, 0.07
        ("dalton_share", 1.5, None, 0.2),  # 0.17, 0.002
        ("dalton_share", 1.5, STRONG, 0.2),  # 1.05, 0.006
    ],
)
def test_time_is_better_where_costs_differ_by_key(name, exponent, capacity, most):
    excess = np.array(
        [
            [
                worst(*decisions(name, exponent, seed, measure, capacity, **COSTS), capacity) - 1
                for measure in ("tuples", "time")
            ]
            for seed in SEEDS
        ]
    )
    assert (excess[:, 1] < excess[:, 0]).all(), "on every one of the paired streams"
    blind, aware = excess.mean(axis=0)
    assert aware <= most * blind


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["dalton", "dalton_share"])
def test_time_is_tuples_where_all_cost_the_same(name, seed):
    # A cost of which no float scales a load without rounding.
    same = {"cost_mean": 1_000_003e-9}
    _, blind = decisions(name, 1.5, seed, "tuples", **same)
    _, aware = decisions(name, 1.5, seed, "time", **same)
    np.testing.assert_array_equal(aware, blind)
