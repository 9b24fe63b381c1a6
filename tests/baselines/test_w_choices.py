"""W-Choices: a key of the head to the least loaded of all, others to the lighter of two candidates."""

from collections import Counter

import numpy as np
import pytest

from dalton.baselines.w_choices import WChoices
from dalton.envs.hashing import candidates, family


def test_hand_derived_decisions(keys_with):
    # θ = 0.5. The first tuple of all is the head, k stays it; x and y never have half of the tuples.
    k, x, y = keys_with([(2, 3), (0, 1), (0, 0)], n=4)
    partitioner = WChoices(n_workers=4, theta=0.5)
    # k: 0000 -> 0, 1000 -> 1, 1100 -> 2; x (1/4): 0 and 1 tie -> 0; k: 2110 -> 3; y (1/6) -> 0; k: 3111 -> 1.
    assert partitioner.route([k, k, k, x, k, y, k]).tolist() == [0, 1, 2, 0, 3, 0, 1]
    # x: 3211 has 3 at its first and 2 at its second candidate -> 1.
    assert partitioner.route([x]).tolist() == [1]


@pytest.mark.parametrize("s", [0.5, 1.0, 1.4, 2.0])
@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, n, s, seed):
    keys = zipf(3_000, n_keys=200, s=s, seed=seed)
    hashed = candidates(keys, family(seed, 2), n).T.tolist()
    counts, load, expected = Counter(), [0] * n, []
    for t, (key, choices) in enumerate(zip(keys.tolist(), hashed, strict=True), start=1):
        counts[key] += 1
        options = range(n) if counts[key] >= t / (5 * n) else choices
        best = min(options, key=lambda w: load[w])
        load[best] += 1
        expected.append(best)
    # As many entries as keys: the summary is exact.
    partitioner = WChoices(n_workers=n, seed=seed, theta=1 / (5 * n), capacity=200)
    assert partitioner.route(keys).tolist() == expected
    assert partitioner.max_workers_per_key == n


@pytest.mark.parametrize("n", [5, 20])
def test_a_summary_of_the_default_size_never_takes_a_frequent_key_for_a_rare_one(zipf, n):
    # Estimates are not below the counts: a key with a share of θ or more has all workers, always. A tuple of
    # such a key went to a least loaded worker.
    keys = zipf(4_000, n_keys=2_000, s=1.1, seed=n)
    workers = WChoices(n_workers=n).route(keys)
    counts, load, heads = Counter(), np.zeros(n, np.int64), 0
    for t, (key, worker) in enumerate(zip(keys.tolist(), workers.tolist(), strict=True), start=1):
        counts[key] += 1
        if counts[key] > t / (5 * n):
            assert worker == load.argmin()
            heads += 1
        load[worker] += 1
    assert 0.2 * len(keys) < heads < 0.9 * len(keys)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": 1.5}, "seed"),
        ({"theta": -0.1}, "theta"),
        ({"theta": 1.01}, "theta"),
        ({"capacity": 0}, "capacity"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(WChoices, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
