"""On-Greedy: a new key to the least loaded worker, the first of several, and there it stays."""

import numpy as np
import pytest

from dalton.baselines.on_greedy import OnlineGreedy


def test_hand_derived_decisions():
    # load before:  000  100  200  210  220   221       222   322
    stream = [11, 11, 12, 12, 13, 13, 14, 11]
    # 11 -> 0 and stays, 12 -> 1 and stays, 13 -> 2 and stays, 14 finds 222 -> 0, 11 stays.
    assert OnlineGreedy(n_workers=3).route(stream).tolist() == [0, 0, 1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, n, seed):
    keys = zipf(5_000, n_keys=3_000, s=0.8, seed=seed)
    assert len(np.unique(keys)) > 1_000
    load, home, expected = [0] * n, {}, []
    for key in keys.tolist():
        if key not in home:
            home[key] = load.index(min(load))
        load[home[key]] += 1
        expected.append(home[key])
    partitioner = OnlineGreedy(n_workers=n, seed=seed)
    assert partitioner.route(keys).tolist() == expected
    assert partitioner.loads.load.tolist() == load
    assert partitioner.max_workers_per_key == 1


@pytest.mark.parametrize(
    ("fields", "field"), [({"n_workers": None}, "n_workers"), ({"n_workers": 2, "seed": True}, "seed")]
)
def test_bad_parameters(refused, fields, field):
    assert refused(OnlineGreedy, **fields).startswith(f"{field} = ")
