"""What cooperation is worth, on paired streams."""

import numpy as np
import pytest

from dalton.agents.cooperation import Cooperation
from dalton.envs.workloads import make_workload

SIZE, SLIDE, N, LENGTH = 40_000, 4_000, 16, 200_000
ZIPF = {"name": "zipf", "exponent": 1.5}


def routed(sources, seed, **given):
    workload = make_workload("multi", sources=sources, n_tuples=LENGTH, seed=seed)
    chunk = next(workload.chunks(LENGTH))
    window = {"size": SIZE, "slide": SLIDE}
    one = Cooperation(n_partitioners=len(sources), n_workers=N, window=window, seed=seed, step=400, **given)
    return chunk.keys, one.route(chunk.keys, chunk.sources)


def balance(workers):
    """Mean over slides of the second half of max/mean load in the window."""
    ends = range(LENGTH // 2, LENGTH + 1, SLIDE)
    loads = [np.bincount(workers[end - SIZE : end], minlength=N) for end in ends]
    return np.mean([load.max() / load.mean() for load in loads])


def pairs(keys, workers):
    return len(np.unique(keys[-SIZE:] * N + workers[-SIZE:]))


def test_cooperating_balances_better_where_one_source_hides_what_the_other_needs():
    # Not so everywhere: on uniform + Zipf 1.5 and on two shifted Zipfs those that never sync balance better,
    # because a threshold of the local load lets them split more keys (next test).
    sources = [{"name": "zipf", "exponent": 1.0}, {"name": "zipf", "exponent": 2.5}]
    gaps = [
        balance(routed(sources, seed)[1]) - balance(routed(sources, seed, sync=False)[1])
        for seed in range(200, 206)
    ]
    assert np.mean(gaps) < -0.05


@pytest.mark.parametrize(
    "sources", [["uniform", ZIPF], [ZIPF, {**ZIPF, "shift": 50_000}]], ids=["uniform", "shifted"]
)
def test_cooperating_splits_only_what_is_hot_for_all(sources):
    for seed in range(200, 205):
        together, alone = (pairs(*routed(sources, seed, sync=sync)) for sync in (True, False))
        assert together < alone
