import numpy as np
import pytest

from dalton.agents.cooperation import Cooperation
from dalton.envs.errors import ConfigError
from dalton.envs.workloads import make_workload
from dalton.experiments import make

WINDOW = {"size": 4_000, "slide": 400}


def stream(seed, n_tuples=12_000, sources=("uniform", {"name": "zipf", "exponent": 1.5})):
    workload = make_workload("multi", sources=list(sources), n_tuples=n_tuples, seed=seed)
    return next(workload.chunks(n_tuples))


def together(**given):
    params = {"n_partitioners": 2, "n_workers": 8, "window": WINDOW, "seed": 0}
    return Cooperation(**(params | given))


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
    work = [(0, 0), (10_000, 900), (25_000, 0)]
    one = together(step=50, max_dsync=16, work=work)
    one.route(chunk.keys, chunk.sources)
    lengths = {start: [r.dsync for r in one.rounds if start <= r.position] for start, _ in work}
    assert set(lengths[0][: -len(lengths[10_000])]) == {1}
    slowed = lengths[10_000][: -len(lengths[25_000])]
    assert max(slowed) >= 4
    assert min(slowed[-3:]) >= 2  # it stays up while the reducer is slow
    assert lengths[25_000][-1] == 1


@pytest.mark.parametrize("chunk_size", [333, 5_000])
def test_decisions_do_not_depend_on_how_the_stream_is_cut(chunk_size):
    chunk = stream(2)
    whole, cut = together(delay=170, step=60), together(delay=170, step=60)
    wanted = whole.route(chunk.keys, chunk.sources)
    parts = [slice(low, low + chunk_size) for low in range(0, len(chunk.keys), chunk_size)]
    found = np.concatenate([cut.route(chunk.keys[part], chunk.sources[part]) for part in parts])
    np.testing.assert_array_equal(found, wanted)
    assert cut.rounds == whole.rounds


def test_rounds_go_on_after_a_lost_message():
    chunk = stream(4, n_tuples=20_000)
    one = together(delay=20, step=10, timeout=600)
    heard = one.reducer.hear
    one.reducer.hear = lambda message: (message.round, message.sender) != (5, 1) and heard(message)
    one.route(chunk.keys, chunk.sources)
    assert [each.number for each in one.rounds] == list(range(len(one.rounds)))
    assert [each.number for each in one.rounds if each.silent] == [5]
    assert len(one.rounds) > 30


def test_rounds_go_on_after_a_lost_answer():
    chunk = stream(4, n_tuples=20_000)
    one = together(delay=20, step=10, timeout=600)
    receive = one.members[0].receive
    one.members[0].receive = lambda policy: policy.round != 5 and receive(policy)
    one.route(chunk.keys, chunk.sources)
    # The member waits for an answer that never comes, and joins with that of the round it missed.
    assert [each.number for each in one.rounds if each.silent] == [6]
    assert one.members[0].round == one.members[1].round > 30


def test_a_late_message_is_ignored():
    chunk = stream(4, n_tuples=20_000)
    one = together(delay=20, step=10, timeout=300)
    one.route(chunk.keys[:8_000], chunk.sources[:8_000])
    held = []
    send = one.members[1].send
    one.members[1].send = held.append
    one.route(chunk.keys[8_000:9_000], chunk.sources[8_000:9_000])
    one.members[1].send = send
    before = len(one.rounds)
    assert one.rounds[-1].silent == 1
    assert not one.reducer.hear(held[0])
    one.route(chunk.keys[9_000:], chunk.sources[9_000:])
    assert len(one.rounds) > before + 10
    assert not any(each.silent for each in one.rounds[before + 1 :])


def test_windows_of_the_members_are_parts_of_the_whole():
    one = Cooperation(n_partitioners=3, n_workers=4, window={"size": 4_000, "slide": 400}, stats_window=200)
    assert {(m.window.size, m.window.slide, m.stats_window) for m in one.members} == {(1_330, 133, 66)}
    timed = {"size": 10.0, "slide": 1.0, "by": "time"}
    one = Cooperation(n_partitioners=3, n_workers=4, window=timed)
    assert {m.window.size for m in one.members} == {10.0}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"work": [(5, 1)]}, r"^work = \[\(5, 1\)\]: expected tuples, or pairs"),
        ({"work": [(0, 1), (0, 2)]}, r"^work = .*expected tuples, or pairs"),
        ({"work": "slow"}, r"^work = 'slow': expected a whole number >= 0$"),
        ({"work": [7]}, r"^work = \[7\]: expected tuples, or pairs"),
        ({"timeout": 0}, r"^timeout = 0: expected a whole number >= 1$"),
        ({"window": {"size": 4, "slide": 1}}, r"^window.slide = 1: expected at least a tuple for each of 2"),
    ],
)
def test_what_is_not_allowed(given, found):
    with pytest.raises(ConfigError, match=found):
        together(**given)


def test_several_members_need_to_know_the_sources():
    with pytest.raises(ConfigError, match=r"^sources = None: expected the source of every tuple, 0 to 1$"):
        together().route(np.arange(10))
