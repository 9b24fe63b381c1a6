"""Static two choices: the first tuple of a key decides for all of them (PKG Section 3.1)."""

import numpy as np
import pytest

from dalton.baselines.potc import StaticTwoChoices
from dalton.envs.hashing import candidates, family


def test_hand_derived_decisions(keys_with):
    a, b, c = keys_with([(0, 1), (0, 1), (1, 2)], n=4)
    # a: 0 and 1 are both empty, so 0, for ever. b: 0 has 3 and 1 none, so 1. c: 1 has 2 and 2 none, so 2.
    # At the end a would find 0 at 3 and 1 at 2, but it stays.
    assert StaticTwoChoices(n_workers=4).route([a, a, a, b, b, c, a]).tolist() == [0, 0, 0, 1, 1, 2, 0]


@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, n, seed):
    # More keys than the first table holds.
    keys = zipf(5_000, n_keys=3_000, s=0.8, seed=seed)
    assert len(np.unique(keys)) > 1_000
    choices = candidates(keys, family(seed, 2), n).T.tolist()
    load, home, expected = [0] * n, {}, []
    for key, hashed in zip(keys.tolist(), choices, strict=True):
        if key not in home:
            home[key] = min(hashed, key=lambda w: load[w])
        load[home[key]] += 1
        expected.append(home[key])
    partitioner = StaticTwoChoices(n_workers=n, seed=seed)
    assert partitioner.route(keys).tolist() == expected
    assert partitioner.loads.load.tolist() == load
    assert partitioner.max_workers_per_key == 1


@pytest.mark.parametrize(
    ("fields", "field"), [({"n_workers": 0}, "n_workers"), ({"n_workers": 2, "seed": "x"}, "seed")]
)
def test_bad_parameters(refused, fields, field):
    assert refused(StaticTwoChoices, **fields).startswith(f"{field} = ")
