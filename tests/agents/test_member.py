import pickle

import numpy as np
import pytest

from dalton.agents.member import Member
from dalton.agents.protocol import VERSION, Policy
from dalton.agents.qtable import row_of
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import member as hashed_by
from dalton.envs.hashing import worker_of
from dalton.envs.hotness import LEAST

PARAMS = {"n_workers": 3, "window": {"size": 40, "slide": 10}, "epsilon": 0.0, "seed": 4}


def member(**more):
    one = Member(**(PARAMS | more))
    sent = []
    one.send = sent.append
    return one, sent


def policy(round=0, load=10, hot=(), q=None, dsync=1):
    keys = np.array(hot, np.int64)
    values = np.full((len(keys), 3), np.nan) if q is None else np.array(q, np.float64)
    return Policy(VERSION, round, load, keys, values, round + 1, dsync, (), None)


def values_of(one, key):
    """Values of a key by worker."""
    t = one.qtable
    row = row_of(t, key)
    return np.roll(t.q[row], t.home[row]).tolist()


# Threshold ⌈10 / 3⌉ = 4: key 1 is hot from its fourth tuple on.
KEYS = np.array([1, 1, 2, 1, 1, 3, 1, 2, 1, 1])


def test_a_message_tells_what_was_seen_and_learned():
    one, sent = member()
    one.route(KEYS)
    assert sent == []
    one.route(np.array([9]))
    (message,) = sent
    assert (message.version, message.sender, message.round, message.tuples) == (VERSION, 0, 0, 10)
    assert message.keys.tolist() == [1, 2, 3]
    assert message.counts.tolist() == [7, 2, 1]
    assert message.hot.tolist() == [1]
    assert message.weights.tolist() == [7]
    assert message.q.shape == (1, 3)
    home = worker_of(np.int64(1), hashed_by(4), 3)
    assert message.q[0, home] > -2.0
    assert [message.q[0, w] for w in range(3) if w != home] == [-2.0, -2.0]
    assert message.double is False


def test_rewards_wait_until_the_answer():
    one, sent = member()
    one.route(KEYS)
    one.route(np.array([1, 1, 1]))
    assert one.awaiting
    before = values_of(one, 1)
    assert before == sent[0].q[0].tolist()
    gains = one.rewards.copy()
    assert one.receive(policy(hot=[1], q=[[-0.5, -0.5, -0.5]]))
    assert not one.awaiting
    home = worker_of(np.int64(1), hashed_by(4), 3)
    wanted = -0.5
    for gain in gains:
        wanted += 0.1 * (gain - wanted)
    found = values_of(one, 1)
    assert found[home] == pytest.approx(wanted, rel=1e-12)
    assert [found[w] for w in range(3) if w != home] == [-0.5, -0.5]


def test_a_key_that_is_hot_elsewhere_becomes_hot_here():
    one, _ = member()
    one.route(KEYS)
    one.route(np.array([2]))
    best = (worker_of(np.int64(2), hashed_by(4), 3) + 1) % 3
    q = [-1.0, -1.0, -1.0]
    q[best] = -0.1
    assert one.receive(policy(hot=[2], q=[q]))
    assert one.route(np.array([2])).tolist() == [best]
    assert not np.isnan(one.rewards[0])


def test_a_key_that_is_hot_only_here_is_hashed_again():
    one, _ = member()
    one.route(KEYS)
    one.route(np.array([2]))
    one.receive(policy(hot=[], load=1000))
    one.route(np.array([1]))
    assert np.isnan(one.rewards[0])


def test_the_threshold_is_that_of_the_global_load():
    one, _ = member()
    one.route(KEYS)
    one.route(np.array([5]))
    one.receive(policy(load=24))  # 24 / 3: from the eighth tuple on
    one.route(np.full(8, 6))
    assert np.isnan(one.rewards[:7]).all()
    assert not np.isnan(one.rewards[7])


def test_answers_that_are_old_or_of_another_version_are_ignored():
    one, _ = member()
    one.route(KEYS)
    one.route(np.array([2]))
    assert not one.receive(policy()._replace(version=VERSION + 1))
    assert one.awaiting
    assert one.receive(policy())
    assert not one.receive(policy())
    assert one.round == 1


@pytest.mark.parametrize("awaiting", [False, True])
def test_an_answer_of_a_later_round_lets_it_join_again(awaiting):
    one, sent = member()
    one.route(KEYS)
    if awaiting:
        one.route(np.array([1]))
    best = (worker_of(np.int64(1), hashed_by(4), 3) + 1) % 3
    q = [-1.0, -1.0, -1.0]
    q[best] = -0.1
    assert one.receive(policy(round=7, hot=[1], q=[q]))
    assert (one.round, one.awaiting, one.pending) == (8, False, None)
    if not awaiting:
        one.route(np.array([9]))
    one.route(np.array([9] * 10))
    assert sent[-1].round == 8


def test_a_message_tells_which_keys_are_split():
    one, sent = member(epsilon=1.0, n_workers=8)
    one.route(np.tile(KEYS, 2))
    one.route(np.array([2]))
    assert sent[0].split.tolist() == [1, 2]  # with eight workers two tuples make a key hot
    assert sent[0].position == 10
    alone, sent = member()
    alone.route(np.tile(KEYS, 2))
    assert sent[0].split.tolist() == []


def test_a_message_is_bounded_also_when_the_stream_speeds_up():
    # Ten tuples in the first second, then 3000: the threshold is that of ten, and hundreds of keys reach it.
    one, sent = member(window={"size": 4.0, "slide": 1.0, "by": "time"}, epsilon=0.5)
    times = np.concatenate([np.linspace(0, 0.9, 10), np.linspace(1, 1.9, 3_000), [2.0]])
    keys = np.concatenate([KEYS, np.arange(3_000) % 300, [5]])
    one.route(keys[:11], times[:11])
    one.receive(policy(load=10))
    one.route(keys[11:-1], times[11:-1])
    assert np.count_nonzero(one.qtable.tuples > 0) > 200
    one.route(keys[-1:], times[-1:])
    message = sent[-1]
    assert message.tuples == 3_000
    assert (len(message.keys), len(message.hot)) == (3, 6)
    assert message.split is None  # too many to tell


def test_it_pickles_while_it_waits_and_goes_on_identically(zipf):
    keys = zipf(400)
    one, sent = member(epsilon=0.3)
    one.route(keys[:205])
    assert one.awaiting
    copy = pickle.loads(pickle.dumps(one))
    assert copy.send is None
    assert copy.pending.q.tolist() == sent[-1].q.tolist()
    answers = [policy(hot=[int(keys[0])], q=[[-0.1, -0.2, -0.3]])] * 2
    for each, answer in zip((one, copy), answers, strict=True):
        each.send = None
        assert each.receive(answer)
    np.testing.assert_array_equal(one.route(keys[205:]), copy.route(keys[205:]))


def test_a_late_answer_makes_it_ask_for_a_longer_interval():
    one, sent = member()
    for _ in range(3):
        one.route(KEYS)
    assert len(sent) == 1
    assert one.late
    one.receive(policy())
    one.route(KEYS)
    assert [message.double for message in sent] == [False, True]
    assert not one.late


def test_a_longer_interval_begins_with_the_next_and_keeps_what_is_hot():
    one, sent = member()
    one.route(KEYS)
    one.route(np.array([2]))
    one.receive(policy(hot=[1], q=[[-1.0, -1.0, -1.0]], dsync=2))
    one.route(KEYS[1:])
    assert len(sent) == 1
    assert one.span[LEAST] == 4
    one.route(np.tile(KEYS, 4))
    assert [message.tuples for message in sent[:3]] == [10, 10, 20][: len(sent)]
    assert [message.dsync for message in sent[:3]] == [1, 1, 2][: len(sent)]
    # The threshold ⌈10 / 3⌉ of the global load, in twice the time.
    assert one.span[LEAST] == 8


def test_without_a_runtime_it_is_the_single_agent(zipf):
    from dalton.experiments import make

    keys = zipf(3_000)
    alone = Member(**(PARAMS | {"epsilon": 0.2}))
    single = make("dalton", **(PARAMS | {"epsilon": 0.2, "statistics": "exact"}))
    np.testing.assert_array_equal(alone.route(keys), single.route(keys))


def test_its_parameters_make_it_again():
    one = Member(**PARAMS, member=2, statistics="space_saving")
    assert type(one)(**one.params).params == one.params


def test_statistics_must_name_the_frequent_keys():
    with pytest.raises(ConfigError, match=r"^statistics = 'sketch': unknown.*known: exact, space_saving"):
        Member(**PARAMS, statistics="sketch")
