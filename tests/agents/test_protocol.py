import numpy as np
import pytest

from dalton.agents.protocol import VERSION, QtableReducer, Sync, disagreement
from dalton.envs.errors import ConfigError


def sync(
    sender=0,
    round=0,
    tuples=100,
    counts=None,
    rows=None,
    double=False,
    version=VERSION,
    n=2,
    dsync=1,
    split=(),
):
    """A message; ``counts`` is {key: tuples}, ``rows`` {key: (weight, values)}."""
    counts, rows = counts or {}, rows or {}
    return Sync(
        version=version,
        sender=sender,
        round=round,
        tuples=tuples,
        keys=np.array(list(counts), np.int64),
        counts=np.array(list(counts.values()), np.int64),
        hot=np.array(list(rows), np.int64),
        weights=np.array([weight for weight, _ in rows.values()], np.int64),
        q=np.array([values for _, values in rows.values()], np.float64).reshape(len(rows), n),
        double=double,
        dsync=dsync,
        split=None if split is None else np.array(split, np.int64),
        position=tuples,
    )


def reducer(**more):
    return QtableReducer(**({"n_workers": 2, "n_partitioners": 2} | more))


def closed(one, *messages, idle=0.0, busy=1.0):
    for message in messages:
        assert one.hear(message)
    return one.close(idle=idle, busy=busy)


def test_hot_keys_are_those_of_the_global_load():
    # GL = 300, threshold 150: key 7 has 160 in all, key 8 is hot for the second alone, key 9 has 149.
    answer = closed(
        reducer(n_partitioners=3),
        sync(0, tuples=200, counts={7: 120, 9: 80}),
        sync(1, tuples=70, counts={7: 20, 8: 50}),
        sync(2, tuples=30, counts={7: 20, 9: 69}),
    )
    assert answer.hot.tolist() == [7]
    assert (answer.load, answer.round, answer.until, answer.silent) == (300, 0, 1, ())


def test_the_hot_factor_lowers_the_threshold():
    answer = closed(
        reducer(hot_factor=2.0),
        sync(0, tuples=200, counts={7: 120, 9: 80}),
        sync(1, tuples=100, counts={8: 74, 9: 1}),
    )
    assert answer.hot.tolist() == [7, 9]


def test_values_are_means_weighted_by_counts():
    answer = closed(
        reducer(),
        sync(0, tuples=100, counts={5: 90}, rows={5: (90, [-0.2, -1.0])}),
        sync(1, tuples=100, counts={5: 30}, rows={5: (30, [-0.6, -2.0])}),
    )
    # (90 · -0.2 + 30 · -0.6) / 120 and (90 · -1 + 30 · -2) / 120.
    np.testing.assert_allclose(answer.q, [[-0.3, -1.25]], rtol=1e-15)


def test_values_of_one_partitioner_come_back_as_they_are():
    values = np.random.default_rng(0).normal(size=(3, 2))
    rows = {key: (17 + key, values[key]) for key in range(3)}
    one = reducer(n_partitioners=1, hot_factor=3.0)
    answer = closed(one, sync(0, tuples=30, counts=dict.fromkeys(range(3), 10), rows=rows))
    assert answer.q.tolist() == values.tolist()


def test_a_hot_key_that_nobody_learned_about_has_no_values():
    answer = closed(reducer(), sync(0, tuples=50, counts={1: 50}), sync(1, tuples=50, counts={1: 10}))
    assert answer.hot.tolist() == [1]
    assert np.isnan(answer.q).all()


def test_the_order_of_arrival_changes_nothing():
    rng = np.random.default_rng(3)
    messages = []
    for i in range(5):
        rows = {key: (int(rng.integers(9, 60)), rng.normal(size=2)) for key in (1, 2)}
        messages.append(sync(i, tuples=100, counts={1: 60, 2: 40}, rows=rows))
    answers = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        answers.append(closed(reducer(n_partitioners=5), *(messages[i] for i in order)))
    assert answers[0].q.tolist() == answers[1].q.tolist()


def test_messages_of_earlier_rounds_and_repeated_ones_are_ignored():
    one = reducer()
    assert one.hear(sync(0))
    assert not one.hear(sync(0, tuples=7))
    assert not one.complete
    assert one.hear(sync(1))
    assert one.complete
    assert one.close(idle=0, busy=1).load == 200
    assert not one.hear(sync(0, round=0))
    assert one.hear(sync(0, round=1))


def test_a_reducer_that_forgot_goes_on_with_the_round_of_the_partitioners():
    one = reducer(max_dsync=64)
    assert one.hear(sync(0, round=0))
    assert one.hear(sync(1, round=41, dsync=8))
    assert set(one.heard) == {1}
    assert one.hear(sync(0, round=41, dsync=8))
    answer = one.close(idle=0, busy=1)
    assert (answer.round, answer.dsync, answer.silent) == (41, 8, ())
    assert one.last is answer


def test_a_partitioner_that_left_is_not_waited_for():
    one = reducer()
    one.leave(1)
    assert not one.complete
    assert one.hear(sync(0))
    assert one.complete
    assert one.close(idle=0, busy=1).silent == ()


def test_split_keys_are_those_of_all_or_unknown():
    answer = closed(reducer(), sync(0, split=[5, 3]), sync(1, split=[3, 9]))
    assert answer.split.tolist() == [3, 5, 9]
    assert closed(reducer(), sync(0, split=[5]), sync(1, split=None)).split is None
    assert closed(reducer(), sync(0, split=[5])).split is None  # the other was silent


def test_a_round_closes_without_a_silent_member_and_says_so():
    one = reducer(n_partitioners=3)
    answer = closed(one, sync(1, tuples=40, counts={3: 40}))
    assert answer.silent == (0, 2)
    assert (answer.load, answer.hot.tolist()) == (40, [3])


def test_an_empty_round_closes():
    answer = reducer().close(idle=0, busy=1)
    assert (answer.load, len(answer.hot), answer.silent) == (0, 0, (0, 1))


def test_dsync_doubles_on_request_and_halves_when_idle():
    one = reducer(max_dsync=4)
    seen = []
    plan = [(True, 0), (True, 9), (True, 9), (False, 2), (False, 3), (False, 3), (False, 3)]
    for number, (double, idle) in enumerate(plan):
        answer = closed(one, sync(0, round=number, double=double), sync(1, round=number), idle=idle, busy=1.0)
        seen.append(answer.dsync)
    # Idle for exactly twice the work is not long enough.
    assert seen == [2, 4, 4, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (sync(version=2), r"^version = 2: expected messages of version 1$"),
        (sync(sender=2), r"^sender = 2: expected a whole number from 0 to 1$"),
        (sync(rows={1: (1, [0, 0, 0])}, n=3), r"^q has shape \(1, 3\): expected \(1, 2\)"),
        (sync(counts={1: 1, 2: 1, 3: 1}), r"^keys has 3 keys: expected at most 2 in a message$"),
        (sync(rows={key: (1, [0, 0]) for key in range(5)}), r"^hot has 5 keys: expected at most 4 in a"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(message, found):
    one = reducer()
    with pytest.raises(ConfigError, match=found):
        one.hear(message)
    assert not one.heard


def test_disagreement_is_the_spread_of_values_between_those_that_have_the_key():
    messages = [
        sync(0, rows={1: (1, [-1.0, -2.0]), 2: (1, [0.0, 0.0])}),
        sync(1, rows={1: (1, [-3.0, -2.0])}),
    ]
    # Key 1: deviations 1 and 0. Key 2 has one opinion only.
    assert disagreement(messages, np.array([1, 2])) == 0.5
    assert disagreement(messages, np.array([2])) == 0.0
