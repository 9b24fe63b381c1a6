"""The frozen policy: weights as alias tables, choices by position, cold keys hashed."""

import mmh3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.agents.split_table import GOLDEN, WHOLE, SplitTable, cells, check_split
from dalton.envs.checks import CHECKS
from dalton.envs.workloads import make_workload

KEYS = np.unique(
    next(make_workload("zipf", n_tuples=30_000, n_keys=2_000, exponent=1.3, seed=1).chunks()).keys
)


def table(n_workers, seed=0):
    """Half of the frequent keys of the checks' stream, each on up to three workers."""
    rows = {int(key): {(i + j) % n_workers: 1.0 + j for j in range(3)} for i, key in enumerate(KEYS[:200:2])}
    return SplitTable(n_workers=n_workers, seed=seed, split=rows)


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check):
    CHECKS[check](table)


def mass(c, row, n):
    """The exact share of every worker of a key, as counts of u k: alias tables must lose nothing."""
    out = np.zeros(n, object)
    for e in range(c.start[row], c.start[row + 1]):
        out[c.first[e]] += int(c.limit[e])
        out[c.second[e]] += WHOLE - int(c.limit[e])
    return out


weights = st.floats(1e-6, 1e6)
splits = st.dictionaries(
    st.integers(-(2**63), 2**63 - 1), st.dictionaries(st.integers(0, 15), weights, min_size=1), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(splits)
def test_alias_tables_hold_the_weights(split):
    checked = check_split(split, 16)
    c = cells(checked)
    assert c.keys.tolist() == sorted(split)
    for row, key in enumerate(c.keys.tolist()):
        total = sum(split[key].values())
        k = len(split[key])
        shares = mass(c, row, 16)
        assert sum(shares) == k * WHOLE
        for worker in range(16):
            assert abs(shares[worker] / (k * WHOLE) - split[key].get(worker, 0.0) / total) < 1e-8


def test_choice_by_hand():
    # Key 7 on workers 1 (a quarter) and 2 (three quarters), task 5, seed 3: two cells. Worker 1 fills half of
    # its cell, the rest of it is worker 2's.
    split = {7: {1: 1.0, 2: 3.0}}
    p = SplitTable(n_workers=4, seed=3, split=split, task=5)
    s = 65536 * 3 + 1
    inner = mmh3.hash(
        (5).to_bytes(4, "little"), mmh3.hash(s.to_bytes(4, "little"), 42, signed=False), signed=False
    )
    shift = mmh3.hash((7).to_bytes(8, "little"), inner)
    wanted = []
    for position in range(200):
        x = 2 * ((GOLDEN * position + shift) % WHOLE)
        wanted.append(1 if x < WHOLE // 2 else 2)
    assert p.route(np.full(200, 7)).tolist() == wanted
    assert p.position.tolist() == [200]


def test_cold_keys_are_hashed():
    keys = np.arange(1000)
    homes = SplitTable(n_workers=8, seed=4, split={}).route(keys)
    assert homes.tolist() == [
        mmh3.hash(
            int(k).to_bytes(8, "little"), mmh3.hash((65536 * 4).to_bytes(4, "little"), 42, signed=False)
        )
        % 8
        for k in keys
    ]
    some = SplitTable(n_workers=8, seed=4, split={5: {0: 1, 7: 1}}).route(keys)
    assert np.flatnonzero(some != homes).tolist() in ([], [5])


@pytest.mark.parametrize("period", [1, 2, 3, 4, 5, 8, 13, 16, 64, 100, 144])
def test_every_period_is_spread_by_the_weights(period):
    # The hot key is every p-th tuple, as in data made by `id % p`. Fibonacci numbers are the worst periods: u
    # advances by 2³² / (√5 p), so that a worker is off by less than √5 p of the key's m tuples; 1 % here.
    keys = np.full(30_000 * period, 1)
    keys[::period] = 0
    split = {0: {0: 1.0, 3: 2.0, 4: 1.0, 9: 4.0}}
    workers = SplitTable(n_workers=10, split=split).route(keys)[keys == 0]
    shares = np.bincount(workers, minlength=10) / len(workers)
    np.testing.assert_allclose(shares[[0, 3, 4, 9]], [0.125, 0.25, 0.125, 0.5], atol=0.01)


def test_short_tasks_do_not_begin_alike():
    split = {0: dict.fromkeys(range(8), 1.0)}
    firsts = [SplitTable(n_workers=8, split=split, task=task).route([0])[0] for task in range(800)]
    assert np.bincount(firsts, minlength=8).min() > 60


WRONG = {
    "not a mapping": ([3], "split = [3]: expected weights"),
    "no weights": ({1: {}}, "split[1] = {}: expected a weight"),
    "worker out of range": ({1: {4: 1.0}}, "split[1]: worker = 4: expected a whole number from 0 to 3"),
    "no weight": ({1: {2: 0.0}}, "split[1][2] = 0.0: expected a number > 0"),
    "key of text": ({"a": {0: 1.0}}, "split: key = 'a': expected a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(case, refused):
    split, message = WRONG[case]
    assert message in refused(SplitTable, n_workers=4, split=split)
