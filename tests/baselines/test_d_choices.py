"""D-Choices: d candidates for the head, two for the tail; d from the printed inequality."""

from collections import Counter

import numpy as np
import pytest

from dalton.baselines.d_choices import DChoices, choices_for
from dalton.envs.hashing import candidates, family


def enough(head, n, epsilon, d):
    """The inequality of Section IV-A, prefix by prefix."""
    tail = 1 - sum(head)
    for h in range(1, len(head) + 1):
        b = n - n * ((n - 1) / n) ** (h * d)
        left = sum(head[:h]) + (b / n) ** d * sum(head[h:]) + (b / n) ** 2 * tail
        if left > b * (1 / n + epsilon):
            return False
    return True


def least_d(head, n, epsilon):
    """The least d in 2 ... n - 1 that is enough, else n."""
    if not head:
        return min(2, n)
    return next((d for d in range(2, n) if enough(head, n, epsilon, d)), n)


@pytest.mark.parametrize("epsilon", [1e-4, 1e-2, 0.1])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 50, 100])
def test_choices_for_random_heads_are_those_of_the_inequality(n, epsilon):
    rng = np.random.default_rng(n)
    found = set()
    for _ in range(120):
        size = int(rng.integers(1, 3 * n + 2))
        whole = np.sort(rng.dirichlet(np.full(size + 1, rng.choice([0.1, 1.0, 10.0]))))[::-1]
        head = (whole[:size] * rng.choice([0.02, 0.2, 0.6, 1.0])).tolist()
        d = choices_for(np.array(head), n, epsilon)
        assert d == least_d(head, n, epsilon)
        found.add(d)
    # The heads are of many kinds; with little slack some need all workers.
    assert len(found) >= min(3, max(1, n - 1))
    assert n in found or epsilon > 1e-4


def test_hand_derived_number_of_choices():
    # One key with half of the stream, 4 workers. d = 2: b = 4 - 4 (3/4)^2 = 1.75, left = 0.5 + 0.4375^2 / 2
    # = 0.5957, right = 1.75 (0.25 + ε). d = 3: b = 2.3125, left = 0.5 + 0.578125^2 / 2 = 0.6671.
    half = np.array([0.5])
    assert choices_for(half, 4, 0.1) == 2  # right = 0.6125
    assert choices_for(half, 4, 0.05) == 3  # right = 0.525, then 0.69375
    assert choices_for(half, 4, 1e-4) == 4  # right = 0.4377, then 0.5784: all workers


def test_no_head_needs_two_choices_and_one_worker_has_one():
    assert choices_for(np.empty(0), 10, 1e-4) == 2
    assert choices_for(np.empty(0), 1, 1e-4) == 1
    assert choices_for(np.array([0.9]), 1, 1e-4) == 1


def test_hand_derived_decisions(keys_with):
    # θ = 0.5: k is in the head while at least half of the tuples are its own. d = 2 until 4 tuples are seen.
    k, x, y = keys_with([(0, 1), (0, 0), (3, 3)], n=4)
    partitioner = DChoices(n_workers=4, theta=0.5, epsilon=1e-4, refresh=4)
    # k k k x: k alternates 0, 1, 0; x (share 1/4) can only go to 0. Loads 3 1 0 0.
    assert partitioner.route([k, k, k, x]).tolist() == [0, 1, 0, 0]
    # The head is k with 3/4. For d = 3, 0.75 > 2.3125 (0.25 + ε): no d below 4 is enough.
    assert partitioner.d == 4
    # Now k may go anywhere: 3100 -> 2, 3110 -> 3, 3111 -> 1 and y (1/8) only to 3. Loads 3 2 1 2.
    assert partitioner.route([k, k, k, y]).tolist() == [2, 3, 1, 3]
    assert partitioner.loads.load.tolist() == [3, 2, 1, 2]
    # Four tuples of x, 5/12 in the end: never half, so to 0. k is left with 6/12, still the head: 7212 -> 2.
    assert partitioner.route([x, x, x, x]).tolist() == [0, 0, 0, 0]
    assert partitioner.route([k]).tolist() == [2]


def reference(keys, n, seed, theta, epsilon, refresh):
    """The rule with exact counts."""
    hashed = candidates(keys, family(seed, max(2, n)), n).T.tolist()
    counts, load, d, decisions, used = Counter(), [0] * n, min(2, n), [], set()
    for t, (key, choices) in enumerate(zip(keys.tolist(), hashed, strict=True), start=1):
        counts[key] += 1
        options = choices[:2]
        if counts[key] >= theta * t:
            options = choices[:d] if d < n else range(n)
        best = min(options, key=lambda w: load[w])
        load[best] += 1
        decisions.append(best)
        used.add(d)
        if t % refresh == 0:
            head = sorted((c / t for c in counts.values() if c >= theta * t), reverse=True)
            d = least_d(head, n, epsilon)
    return decisions, used


@pytest.mark.parametrize("s", [0.5, 1.0, 1.4, 2.0])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 64])
@pytest.mark.parametrize(("seed", "epsilon"), [(0, 1e-2), (7, 1e-4)])
def test_every_decision_matches_the_rule(zipf, n, s, seed, epsilon):
    keys = zipf(3_000, n_keys=200, s=s, seed=seed)
    theta = 1 / (5 * n)
    expected, _ = reference(keys, n, seed, theta, epsilon, 250)
    # As many entries as keys: the summary is exact.
    partitioner = DChoices(n_workers=n, seed=seed, theta=theta, epsilon=epsilon, capacity=200, refresh=250)
    assert partitioner.route(keys).tolist() == expected


def test_the_streams_above_need_few_many_and_all_choices(zipf):
    used = set()
    for s in (0.5, 1.0, 1.4, 2.0):
        for seed, epsilon in ((0, 1e-2), (7, 1e-4)):
            used |= reference(zipf(3_000, n_keys=200, s=s, seed=seed), 16, seed, 1 / 80, epsilon, 250)[1]
    assert {2, 16} < used


def test_defaults_of_theta_and_capacity():
    # θ = 1/(5n), and four entries per key that can have that share.
    partitioner = DChoices(n_workers=10)
    assert (partitioner.theta, partitioner.capacity) == (None, None)
    assert len(partitioner.summary.keys) == 200
    # The first 49 tuples make every key part of the head, after 50 a single tuple is below 1/50.
    keys = np.arange(51)
    partitioner.route(keys[:50])
    assert len(partitioner.head()) == 50
    partitioner.route(keys[50:])
    assert len(partitioner.head()) == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"n_workers": "3"}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"theta": 0}, "theta"),
        ({"theta": 1.5}, "theta"),
        ({"theta": "high"}, "theta"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 2}, "epsilon"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"refresh": 0}, "refresh"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(DChoices, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
