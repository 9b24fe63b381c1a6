"""Key grouping: w = H(k) mod n, for every tuple of k."""

import struct

import mmh3
import pytest

from dalton.baselines.kg import KeyGrouping
from dalton.envs.hashing import member


def test_hand_derived_decisions(keys_with):
    # Keys found by their hashed worker; where they go does not depend on what came before.
    a, b, c = keys_with([(2,), (0,), (2,)], n=3, seed=4)
    assert KeyGrouping(n_workers=3, seed=4).route([a, b, c, a, a, c, b]).tolist() == [2, 0, 2, 2, 2, 2, 0]


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("seed", [0, 9])
def test_every_tuple_goes_to_murmur3_of_its_key_mod_n(zipf, n, seed):
    keys = zipf(2_000, seed=seed)
    expected = [mmh3.hash(struct.pack("<q", key), int(member(seed)), signed=True) % n for key in keys]
    partitioner = KeyGrouping(n_workers=n, seed=seed)
    assert partitioner.route(keys).tolist() == expected
    assert partitioner.max_workers_per_key == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"n_workers": "2"}, "n_workers"),
        ({"n_workers": 2, "seed": -1}, "seed"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(KeyGrouping, **fields).startswith(f"{field} = ")
