"""The hash table against a dict and ``encode`` against ``np.unique``, under random operations."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dalton.envs.hashing import spread
from dalton.envs.table import EMPTY, MAX_FILL, KeyMap, capacity_for, encode, find, is_full, remove

LOW, HIGH = -(2**63), 2**63 - 1
EDGES = [LOW, LOW + 1, -2, -1, 0, 1, HIGH - 1, HIGH]
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=150)
SLOTS = 8


def home(key: int, slots: int) -> int:
    return int(spread(key)) % slots


def at_home(slot: int, count: int, slots: int = SLOTS) -> list[int]:
    """The first ``count`` keys whose probe starts at ``slot``."""
    return [key for key in range(10_000) if home(key, slots) == slot][:count]


# Keys that collide in the last two slots, so that probes wrap around, one elsewhere, and the extremes.
CROWD = [*at_home(SLOTS - 1, 4), *at_home(SLOTS - 2, 3), *at_home(0, 2), *at_home(3, 1), *EDGES]


def empty(slots: int):
    return np.zeros(slots, np.int64), np.full(slots, EMPTY, np.int32)


def content(keys, mark) -> dict[int, int]:
    taken = mark != EMPTY
    pairs = dict(zip(keys[taken].tolist(), mark[taken].tolist(), strict=True))
    assert len(pairs) == taken.sum(), "a key stands in two slots"
    return pairs


def check_against(model, keys, mark, candidates):
    """Every key of the model is found with its value, every other candidate at a free slot."""
    assert content(keys, mark) == model
    for key in candidates:
        slot = find(keys, mark, key)
        if key in model:
            assert keys[slot] == key
            assert mark[slot] == model[key]
        else:
            assert mark[slot] == EMPTY


@FIXED
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(CROWD)), max_size=60))
def test_find_and_remove_in_a_crowded_table_match_a_dict(operations):
    keys, mark = empty(SLOTS)
    model: dict[int, int] = {}
    for value, (insert, key) in enumerate(operations):
        slot = find(keys, mark, key)
        if insert and (key in model or len(model) < SLOTS - 1):
            keys[slot], mark[slot] = key, value
            model[key] = value
        elif not insert and key in model:
            remove(keys, mark, slot)
            del model[key]
        check_against(model, keys, mark, CROWD)


@pytest.mark.parametrize("victim", range(6))
def test_remove_closes_a_run_that_wraps_around(victim):
    run = [*at_home(SLOTS - 2, 2), *at_home(SLOTS - 1, 2), *at_home(0, 2)]
    keys, mark = empty(SLOTS)
    for value, key in enumerate(run):
        slot = find(keys, mark, key)
        keys[slot], mark[slot] = key, value
    # All six stand in one run over the end: 6, 7, 0, 1, 2, 3.
    assert np.flatnonzero(mark == EMPTY).tolist() == [4, 5]
    remove(keys, mark, find(keys, mark, run[victim]))
    check_against({k: v for v, k in enumerate(run) if v != victim}, keys, mark, run)
    assert np.count_nonzero(mark == EMPTY) == 3


def test_remove_leaves_an_entry_in_its_home_alone():
    # The entry behind the hole starts its probe there: to shift it back would lose it.
    first, second = at_home(2, 1)[0], at_home(3, 1)[0]
    keys, mark = empty(SLOTS)
    for key, slot in ((first, 2), (second, 3)):
        assert find(keys, mark, key) == slot
        keys[slot], mark[slot] = key, slot
    remove(keys, mark, 2)
    assert content(keys, mark) == {second: 3}
    assert find(keys, mark, second) == 3


def test_a_stale_key_in_a_free_slot_is_not_found():
    keys, mark = empty(SLOTS)
    slot = find(keys, mark, 0)
    # The table starts filled with zeros, and 0 is a valid key.
    assert mark[slot] == EMPTY
    keys[slot], mark[slot] = 0, 5
    remove(keys, mark, slot)
    assert keys[slot] == 0
    assert mark[find(keys, mark, 0)] == EMPTY


@pytest.mark.parametrize(("slots", "holds"), [(8, 5), (1_024, 716), (2_048, 1_433)])
def test_a_table_is_full_at_seven_tenths(slots, holds):
    keys, _ = empty(slots)
    assert not is_full(keys, np.array([holds - 1]))
    assert is_full(keys, np.array([holds]))


def insert_all(table: KeyMap, keys, values) -> None:
    """Insert like the kernels do: stop at the fill limit, let `drive` grow, go on."""

    def step(done: int) -> int:
        for i in range(done, len(keys)):
            slot = find(table.keys, table.mark, keys[i])
            if table.mark[slot] == EMPTY:
                if is_full(table.keys, table.used):
                    return i
                table.keys[slot] = keys[i]
                table.used[0] += 1
            table.mark[slot] = values[i]
        return len(keys)

    table.drive(len(keys), step)


@pytest.mark.parametrize("spread", [1, 1024, 2**40])
def test_key_map_keeps_every_entry_while_it_grows(spread):
    rng = np.random.default_rng(3)
    keys = [*EDGES, *(rng.integers(-3_000, 3_000, 6_000) * spread).tolist(), *EDGES]
    table, model = KeyMap(), {}
    for start in range(0, len(keys), 1_000):
        part = keys[start : start + 1_000]
        values = range(start, start + len(part))
        insert_all(table, part, values)
        model.update(zip(part, values, strict=True))
        check_against(model, table.keys, table.mark, [*part[:50], *EDGES, 7 * spread + 1])
        assert table.used[0] == len(model)
        assert len(table.keys) == len(table.mark)
        assert len(model) <= MAX_FILL * len(table.keys)
    assert len(table.keys) == 8_192


def test_key_map_with_removals_between_growth_matches_a_dict():
    rng = np.random.default_rng(4)
    table, model = KeyMap(), {}
    for _ in range(12):
        keys = rng.integers(-1_500, 1_500, 400).tolist()
        insert_all(table, keys, range(400))
        model.update(zip(keys, range(400), strict=True))
        for key in rng.permutation(list(model))[:120].tolist():
            remove(table.keys, table.mark, find(table.keys, table.mark, key))
            table.used[0] -= 1
            del model[key]
        check_against(model, table.keys, table.mark, range(-1_500, 1_500, 17))
    assert len(table.keys) > 1_024


def test_grow_doubles_and_drops_nothing():
    table = KeyMap()
    insert_all(table, EDGES, range(len(EDGES)))
    before = content(table.keys, table.mark)
    table.grow()
    assert len(table.keys) == 2_048
    assert content(table.keys, table.mark) == before == {key: i for i, key in enumerate(EDGES)}


def test_drive_calls_on_from_where_the_step_stopped_and_grows_in_between():
    table, calls = KeyMap(), []

    def step(done: int) -> int:
        calls.append((done, len(table.keys)))
        return min(done + 4, 10)

    table.drive(10, step)
    assert calls == [(0, 1_024), (4, 2_048), (8, 4_096)]


def check_encoded(keys):
    encoded = encode(keys)
    distinct, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)
    assert encoded.distinct.tolist() == distinct[order].tolist()
    assert encoded.counts.tolist() == counts[order].tolist()
    assert np.array_equal(encoded.distinct[encoded.codes], keys)
    assert encoded.codes.dtype == encoded.distinct.dtype == encoded.counts.dtype == np.int64
    assert encoded.codes.shape == keys.shape


@FIXED
@given(st.lists(st.one_of(st.sampled_from(EDGES), st.integers(LOW, HIGH), st.integers(-3, 3)), max_size=80))
@example([])
@example([0])
@example([HIGH, LOW, -1, 0] * 5)
def test_encode_of_random_keys_matches_unique(keys):
    check_encoded(np.array(keys, np.int64))


@pytest.mark.parametrize("n_keys", [1, 716, 717, 1_433, 1_434, 20_000])
def test_encode_across_growth_matches_unique(n_keys):
    # 716 and 1433 entries are what 1024 and 2048 slots hold.
    rng = np.random.default_rng(n_keys)
    ids = rng.choice(2**62, n_keys, replace=False) if n_keys < 2_000 else np.arange(n_keys) * 2**44
    check_encoded(np.concatenate([ids, rng.choice(ids, 3 * n_keys), ids[::-1]]))


def test_encode_leaves_its_input_alone():
    keys = np.array([5, 5, -1])
    encode(keys)
    assert keys.tolist() == [5, 5, -1]


@FIXED
@given(st.integers(0, 2**40))
@example(0)
@example(358)
@example(359)
def test_capacity_is_the_least_power_of_two_at_half_the_allowed_fill(entries):
    capacity = capacity_for(entries, minimum=1)
    assert capacity & (capacity - 1) == 0
    assert entries <= capacity * MAX_FILL / 2
    assert capacity == 1 or max(entries, 1) > capacity * MAX_FILL / 4
    assert capacity_for(entries) == max(1_024, capacity)
