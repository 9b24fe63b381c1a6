"""How well Dalton balances: paired streams of five seeds against published figures, and after shifts.

Measured values are in the comments; the margins are the distance between them and what is asserted.
"""

import functools

import numpy as np
import pytest

from dalton.envs.simulate import simulate
from dalton.envs.workloads import make_workload
from dalton.experiments import make

SEEDS = range(5)
# In slides of 20 000 tuples, the default of the workers' window: W = 200 000.
SHIFT, WINDOW = 25, 10


@functools.cache
def runs(name, z, n):
    """2M tuples, 100k keys, W = 200k, s = 20k; seed i is the same stream and hash for every partitioner."""
    streams = [
        make_workload("zipf", n_keys=100_000, exponent=z, n_tuples=2_000_000, seed=seed) for seed in SEEDS
    ]
    return [
        simulate(make(name, n_workers=n, seed=seed), stream, show_progress=False)
        for seed, stream in zip(SEEDS, streams, strict=True)
    ]


def mean(name, z, n, metric="max_over_mean_total"):
    return float(np.mean([run.summary()[metric] for run in runs(name, z, n)]))


@pytest.mark.parametrize(
    ("z", "n", "authors", "most"),
    [
        (1.5, 64, 4.56, 2.0),  # 1.37; the seeds 1.08 to 1.92
        (2.0, 64, 6.84, 2.0),  # 1.14; 1.07 to 1.22
        (2.0, 8, 1.11, 1.11),  # 1.001; 1.000 to 1.004
        (1.5, 8, 1.13, 1.05 * 1.13),  # 1.148; 1.00 to 1.26: where the heavy keys are hashed decides
    ],
)
def test_paper_parameters_against_the_authors_code(z, n, authors, most):
    """Maximal over mean load; ``authors`` is measured with their code on such a stream."""
    ours = mean("dalton", z, n)
    assert ours <= most
    assert ours <= 1.05 * authors
    # Hashing is far worse wherever a key is hot: 3.7 and more.
    assert ours < 0.5 * mean("kg", z, n)


def test_without_a_hot_key_it_is_hashing():
    # z = 1: the heaviest key has 8.3 % of the tuples, below 1 / 8.
    for dalton, kg in zip(runs("dalton", 1.0, 8), runs("kg", 1.0, 8), strict=True):
        np.testing.assert_array_equal(dalton.loads, kg.loads)
        np.testing.assert_array_equal(dalton.total, kg.total)
        assert dalton.summary()["replication"] == 1


@pytest.mark.parametrize(
    ("z", "n", "most_replication"),
    [
        (1.0, 8, 1.3),  # load 1.000, replication 1.002
        (1.0, 64, 1.3),  # 1.107, 1.015
        (1.5, 8, 1.3),  # 1.000, 1.017
        (1.5, 64, 1.3),  # 1.005, 1.08
        (2.0, 8, 1.3),  # 1.000, 1.08
        (2.0, 64, 2.2),  # 1.001, 1.31
    ],
)
def test_share_balances_every_cell(z, n, most_replication):
    assert mean("dalton_share", z, n) <= 1.2
    assert mean("dalton_share", z, n, "replication") <= most_replication


SHIFTING = {
    "alternate": {
        "first": {"name": "uniform", "n_keys": 100_000},
        "second": {"name": "zipf", "n_keys": 100_000, "exponent": 1.5},
    },
    "random_zipf": {"n_keys": 100_000},
}


@functools.cache
def periods(name, workload):
    """Maximal over mean load in the window: shape (seeds, periods, slides of a period)."""
    measured = []
    for seed in SEEDS:
        stream = make_workload(workload, every=500_000, n_tuples=2_500_000, seed=seed, **SHIFTING[workload])
        run = simulate(make(name, n_workers=16, seed=seed), stream, show_progress=False)
        measured.append(run.column("max_over_mean").reshape(-1, SHIFT))
    return np.array(measured)


@pytest.mark.parametrize("workload", SHIFTING)
def test_share_recovers_within_a_window_after_a_shift(workload):
    """Within 20 % of the steady value, the mean of the last 5 slides of the period, from slide 10 on.

    Measured: at most 1.02 times it (alternate) and 1.12 times it (random_zipf). With the paper's parameters
    (`dalton`) it does not hold for every shift: at worst 1.22 times it with alternate, where 3 of the 20
    shifts are above 1.2, and 1.21 times it with random_zipf, 1 of 20. All of them are there one slide later.
    """
    shifted = periods("dalton_share", workload)[:, 1:]
    steady = shifted[:, :, -5:].mean(axis=2, keepdims=True)
    assert shifted.shape == (5, 4, SHIFT)
    assert (shifted[:, :, WINDOW - 1 :] <= 1.2 * steady).all()
    # Steady is balanced (at most 1.06 and 1.15), and so are the slides in between (1.12 and 1.23). Hashing
    # comes to 7.5 and 6.4, and is "steady" at that.
    assert steady.max() <= 1.2
    assert shifted.max() <= 1.3
    assert periods("kg", workload).max() > 6


@pytest.mark.parametrize(("workload", "most"), [("alternate", 2.0), ("random_zipf", 2.2)])
def test_paper_parameters_after_a_shift(workload, most):
    """Far from hashing in every window after a shift: at worst 1.61 and 1.82, hashing 7.5 and 6.4."""
    ours, hashing = (periods(name, workload)[:, 1:] for name in ("dalton", "kg"))
    assert ours.max() <= most < hashing.max() / 2
