import numpy as np
import pytest

from dalton.agents.cooperation import Cooperation
from dalton.envs.workloads import make_workload
from dalton.experiments import make

WINDOW = {"size": 4_000, "slide": 400}


def stream(seed, n_tuples=12_000, sources=("uniform", {"name": "zipf", "exponent": 1.5})):
    workload = make_workload("multi", sources=list(sources), n_tuples=n_tuples, seed=seed)
    return next(workload.chunks(n_tuples))


@pytest.mark.parametrize(("n", "exponent"), [(3, 1.6), (16, 1.0), (16, 1.6)])
def test_one_partitioner_alone_is_the_single_agent(n, exponent):
    for seed in range(3):
        workload = make_workload("zipf", n_tuples=12_000, n_keys=2_000, exponent=exponent, seed=seed)
        keys = next(workload.chunks()).keys
        params = {"n_workers": n, "window": WINDOW, "seed": seed, "statistics": "exact"}
        alone = Cooperation(n_partitioners=1, **params)
        single = make("dalton", **params)
        np.testing.assert_array_equal(alone.route(keys), single.route(keys))
        assert len(alone.rounds) == 29
        assert max(one.hot for one in alone.rounds) > 0


@pytest.mark.parametrize("delay", [0, 150, 1_000])
def test_the_same_seed_gives_the_same_rounds(delay):
    chunk = stream(1)
    runs = [
        Cooperation(n_partitioners=2, n_workers=8, window=WINDOW, seed=2, delay=delay, step=50)
        for _ in range(2)
    ]
    routed = [one.route(chunk.keys, chunk.sources) for one in runs]
    np.testing.assert_array_equal(*routed)
    assert runs[0].rounds == runs[1].rounds
    assert len(runs[0].rounds) > 4


def test_members_agree_after_a_round():
    chunk = stream(3, sources=[{"name": "zipf", "exponent": 1.5}] * 2)
    one = Cooperation(n_partitioners=2, n_workers=4, window=WINDOW, seed=0, step=50)
    one.route(chunk.keys[:1_600], chunk.sources[:1_600])
    policies = []
    for member in one.members:
        taken = member.receive
        member.receive = lambda policy, taken=taken: policies.append(policy) or taken(policy)
    one.route(chunk.keys[1_600:], chunk.sources[1_600:])
    assert len(policies) > 10
    for policy in policies:
        assert len(policy.hot) > 0
        assert not policy.silent


def test_every_tuple_goes_to_a_worker_by_its_own_source():
    chunk = stream(5)
    one = Cooperation(n_partitioners=2, n_workers=8, window=WINDOW, seed=0, step=64)
    workers = one.route(chunk.keys, chunk.sources)
    assert workers.min() >= 0
    assert workers.max() < 8
    for i, member in enumerate(one.members):
        assert member.loads.load.sum() <= WINDOW["size"] // 2
        assert member.loads.clock[1] >= 0
        own = workers[chunk.sources == i][-int(member.loads.load.sum()) :]
        np.testing.assert_array_equal(np.bincount(own, minlength=8), member.loads.load)


def test_dsync_follows_a_slowed_reducer_up_and_comes_back():
    # Fig. 14b: a round takes no time, then longer than the interval, then no time again.
    chunk = stream(0, n_tuples=40_000)
    one = Cooperation(n_partitioners=2, n_workers=8, window=WINDOW, seed=0, step=50, max_dsync=16)
    lengths = []
    for low, work in ((0, 0), (10_000, 900), (25_000, 0)):
        one.work = work
        high = {0: 10_000, 10_000: 25_000, 25_000: 40_000}[low]
        before = len(one.rounds)
        one.route(chunk.keys[low:high], chunk.sources[low:high])
        lengths.append([one_round.dsync for one_round in one.rounds[before:]])
    assert set(lengths[0]) == {1}
    assert max(lengths[1]) >= 4
    assert lengths[2][-1] == 1
