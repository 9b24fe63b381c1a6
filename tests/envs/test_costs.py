"""Costs of keys: their range, distinct values, and what they depend on."""

import numpy as np
import pytest

from dalton.envs.errors import ConfigError
from dalton.envs.workloads import make_workload

OSG = {"cost_mean": 0.0325, "cost_spread": 31.5 / 32.5, "cost_levels": 64}
"""{1, ..., 64} ms, OSG Section 5.1."""


def costs_of(chunk_size=10_000, **params):
    workload = make_workload("uniform", **{"n_keys": 4_096, "n_tuples": 40_000, **params})
    chunks = list(workload.chunks(chunk_size))
    return np.concatenate([c.keys for c in chunks]), np.concatenate([c.costs for c in chunks])


def table(keys, costs):
    """Cost by key, after a check that a key has one."""
    found = {}
    for key, cost in zip(keys.tolist(), costs.tolist(), strict=True):
        assert found.setdefault(key, cost) == cost
    return found


def test_levels_are_at_equal_distance_in_the_range_and_about_equally_frequent():
    cost = table(*costs_of(**OSG))
    values, counts = np.unique(np.round([1e3 * c for c in cost.values()], 9), return_counts=True)
    assert values.tolist() == list(range(1, 65))
    # 4096 keys over 64 levels: 64 each, standard deviation 8.
    assert counts.min() >= 30
    assert counts.max() <= 98


def test_two_levels_are_the_ends_of_the_range():
    _, costs = costs_of(cost_mean=2.0, cost_spread=0.5, cost_levels=2)
    assert np.unique(costs).tolist() == [1.0, 3.0]


def test_levels_keep_the_order_of_the_continuous_costs():
    _, plain = costs_of(cost_mean=1.0, cost_spread=0.9)
    _, stepped = costs_of(cost_mean=1.0, cost_spread=0.9, cost_levels=10)
    order = np.argsort(plain)
    assert np.all(np.diff(stepped[order]) >= 0)


def test_costs_are_of_the_key_alone_unless_seeded():
    plain = [table(*costs_of(seed=seed, **OSG)) for seed in (1, 2)]
    seeded = [table(*costs_of(seed=seed, cost_seeded=True, **OSG)) for seed in (1, 2, 1)]
    both = set(plain[0]) & set(plain[1])
    assert all(plain[0][key] == plain[1][key] for key in both)
    assert seeded[0] == seeded[2]
    same = np.mean([seeded[0][key] == seeded[1][key] for key in both])
    assert same < 0.05, "two of 64 levels agree by chance"


@pytest.mark.parametrize("chunk_size", [40_000, 7_000, 999])
def test_costs_change_after_every_period_and_at_no_other_tuple(chunk_size):
    keys, costs = costs_of(chunk_size, cost_every=15_000, **OSG)
    periods = [table(keys[lo : lo + 15_000], costs[lo : lo + 15_000]) for lo in (0, 15_000, 30_000)]
    assert periods[0] == table(*(column[:15_000] for column in costs_of(**OSG)))
    for one, other in [(0, 1), (1, 2), (0, 2)]:
        both = set(periods[one]) & set(periods[other])
        assert np.mean([periods[one][key] == periods[other][key] for key in both]) < 0.05
    np.testing.assert_array_equal(costs, costs_of(40_000, cost_every=15_000, **OSG)[1])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cost_levels": 4}, "cost_levels = 4: expected none unless cost_mean is set"),
        ({"cost_seeded": True}, "cost_seeded = True: expected none unless cost_mean is set"),
        ({"cost_every": 10}, "cost_every = 10: expected none unless cost_mean is set"),
        ({"cost_mean": 1, "cost_levels": 1}, "cost_levels = 1: expected a whole number from 2 to 2147483647"),
        ({"cost_mean": 1, "cost_every": 0}, "cost_every = 0: expected a whole number >= 1"),
        ({"cost_mean": 1, "cost_seeded": 1}, "cost_seeded = 1: expected true or false"),
        ({"cost_mean": 0}, "cost_mean = 0: expected a number > 0"),
    ],
)
def test_mistakes_are_one_clear_line(params, message):
    with pytest.raises(ConfigError) as caught:
        make_workload("zipf", **params)
    assert str(caught.value) == message
