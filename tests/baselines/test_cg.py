"""Consistent grouping: PoRC over α n virtual workers, of which v belongs to worker v mod n."""

from fractions import Fraction

import numpy as np
import pytest

from dalton.baselines.cg import ConsistentGrouping
from dalton.baselines.porc import PowerOfRandomChoices
from dalton.envs.hashing import candidates, family


def test_hand_derived_decisions(keys_with):
    # Two workers with two virtual ones each: 0 and 2 belong to 0, 1 and 3 to 1.
    a, b = keys_with([(2, 3, 0), (1, 2, 3)], n=4)
    # ε = 0.5: a virtual worker is full with 1.5 t / 4 or more: 0.375 0.75 1.125 1.5 1.875 2.25 2.625.
    # a: virtual 2; a: 2 is full -> 3; a: 2 (1 < 1.125); a: 2 has 2 -> 3 (1); b: 1; b: 1 (1 < 2.25);
    # b: 1 (2 < 2.625).
    partitioner = ConsistentGrouping(n_workers=2, virtual=2, epsilon=0.5)
    assert partitioner.route([a, a, a, a, b, b, b]).tolist() == [0, 1, 0, 1, 1, 1, 1]
    assert partitioner.loads.load.tolist() == [0, 3, 2, 2]
    # t = 8: 3.0, so 1 is full with 3, b -> 2, which belongs to 0.
    assert partitioner.route([b]).tolist() == [0]


@pytest.mark.parametrize("epsilon", [0.01, 0.5])
@pytest.mark.parametrize("n", [1, 5, 16])
def test_one_virtual_worker_each_is_porc(zipf, n, epsilon):
    keys = zipf(4_000, seed=n)
    fields = {"n_workers": n, "seed": 3, "epsilon": epsilon}
    assert (
        ConsistentGrouping(virtual=1, **fields).route(keys).tolist()
        == PowerOfRandomChoices(**fields).route(keys).tolist()
    )


@pytest.mark.parametrize(("n", "virtual"), [(3, 2), (5, 10), (2, 50)])
def test_the_owner_of_a_virtual_worker_is_v_mod_n(zipf, n, virtual):
    keys = zipf(4_000, seed=n)
    virtuals = PowerOfRandomChoices(n_workers=n * virtual, seed=3, epsilon=0.05).route(keys)
    partitioner = ConsistentGrouping(n_workers=n, seed=3, virtual=virtual, epsilon=0.05)
    assert partitioner.route(keys).tolist() == (virtuals % n).tolist()
    assert partitioner.owner.tolist() == [v % n for v in range(n * virtual)]
    assert partitioner.loads.load.tolist() == np.bincount(virtuals, minlength=n * virtual).tolist()


@pytest.mark.parametrize(("n", "virtual"), [(4, 2), (2, 8), (4, 16)])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, n, virtual, seed):
    keys, bins = zipf(3_000, s=1.4, seed=seed), n * virtual
    salts = candidates(keys, family(seed, 32 * bins), bins).T
    load, expected, slack = [0] * bins, [], 1 + Fraction("0.25")
    for t, choices in enumerate(salts, start=1):
        best = next(int(v) for v in choices if load[v] < slack * t / bins)
        load[best] += 1
        expected.append(best % n)
    assert (
        ConsistentGrouping(n_workers=n, seed=seed, virtual=virtual, epsilon=0.25).route(keys).tolist()
        == expected
    )


def test_workers_share_the_stream_as_their_virtual_workers_do(zipf):
    # Every virtual worker is within the bound of PoRC, so a worker is within α times it.
    keys, n, virtual, epsilon = zipf(5_000, s=1.5), 4, 10, 0.1
    workers = ConsistentGrouping(n_workers=n, virtual=virtual, epsilon=epsilon).route(keys)
    m, bins = len(keys), n * virtual
    assert np.bincount(workers).max() <= virtual * ((1 + epsilon) * m / bins + 1)


def test_probing_tells_virtual_workers_nothing(zipf):
    keys = zipf(2_000)
    probed, plain = (ConsistentGrouping(n_workers=4) for _ in range(2))
    probed.route(keys[:1_000])
    plain.route(keys[:1_000])
    probed.probe(PowerOfRandomChoices(n_workers=4).loads, np.array([9, 0, 0, 0]))
    assert probed.route(keys[1_000:]).tolist() == plain.route(keys[1_000:]).tolist()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"virtual": 0}, "virtual"),
        ({"virtual": 10_001}, "virtual"),
        ({"virtual": 2.5}, "virtual"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 11}, "epsilon"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(ConsistentGrouping, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
