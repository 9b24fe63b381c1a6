"""Shuffle grouping: tuple t to worker (seed + t) mod n."""

import numpy as np
import pytest

from dalton.baselines.sg import ShuffleGrouping


def test_hand_derived_decisions():
    # Seed 5 on 3 workers starts at 2; keys are ignored, and a batch goes on where the last one stopped.
    partitioner = ShuffleGrouping(n_workers=3, seed=5)
    assert partitioner.route([7, 7, 7, 7]).tolist() == [2, 0, 1, 2]
    assert partitioner.route([7]).tolist() == [0]
    assert partitioner.route([8, 9]).tolist() == [1, 2]


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("seed", [0, 13, 2**40 + 5])
def test_workers_in_turn(zipf, n, seed):
    workers = ShuffleGrouping(n_workers=n, seed=seed).route(zipf(2_001, seed=1))
    assert workers.tolist() == [(seed + t) % n for t in range(2_001)]
    loads = np.bincount(workers, minlength=n)
    assert loads.max() - loads.min() <= 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"n_workers": -3}, "n_workers"), ({"n_workers": 2, "seed": 0.5}, "seed")],
)
def test_bad_parameters(refused, fields, field):
    assert refused(ShuffleGrouping, **fields).startswith(f"{field} = ")
