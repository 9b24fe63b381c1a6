"""Ids against xxhash, the hash family against mmh3, both against values published for Spark."""

import struct

import mmh3
import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dalton.envs.errors import ConfigError
from dalton.envs.hashing import (
    candidates,
    family,
    hash32,
    hash_workers,
    key_ids,
    member,
    mix64,
    worker_of,
)

LOW, HIGH = -(2**63), 2**63 - 1
EDGES = [LOW, LOW + 1, -(2**32) - 1, -(2**31) - 1, -1, 0, 1, 2**31, 2**32 - 1, 2**32, HIGH - 1, HIGH]
SEEDS = [0, 1, 42, 32_767, 32_768, 65_535, 65_536, 2**31, 2**40 + 7]
WORKERS = [1, 2, 3, 7, 64, 255, 1000, 65_537, 2**31 - 1]
INT64 = st.integers(LOW, HIGH)
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=200)


def signed64(raw: bytes) -> int:
    """XXH64 with seed 42 as a signed number."""
    return struct.unpack("<q", struct.pack("<Q", xxhash.xxh64(raw, seed=42).intdigest()))[0]


def composed(seed: int, index: int = 0) -> int:
    """murmur3_32 of ``s = 65536 seed + index`` as 4 bytes, with seed 42."""
    return mmh3.hash(struct.pack("<I", (65536 * seed + index) & 0xFFFFFFFF), 42, signed=False)


def reference_hash(key: int, seed: int) -> int:
    return mmh3.hash(struct.pack("<q", key), seed, signed=True)


def objects(*keys):
    array = np.empty(len(keys), object)
    array[:] = keys
    return array


def rejected(keys) -> str:
    with pytest.raises(ConfigError) as caught:
        key_ids(keys)
    text = str(caught.value)
    assert text.startswith("key ")
    assert len(text.splitlines()) == 1
    return text


STRINGS = ["", "a", "b", "a", "key-12", "Zürich", "東京", "🙂", "a b\n", "ab\0c", "x" * 1_000]


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda keys: objects(*keys)])
def test_strings_are_xxh64_of_utf8_with_seed_42(make):
    ids = key_ids(make(STRINGS))
    assert ids.dtype == np.int64
    assert ids.tolist() == [signed64(key.encode("utf-8")) for key in STRINGS]


@pytest.mark.parametrize("make", [list, np.array, lambda keys: objects(*keys)])
def test_bytes_are_xxh64_with_seed_42(make):
    keys = [b"", b"a", b"\xff\xfe", b"a", "Zürich".encode(), b"\x00a", b"y" * 333]
    assert key_ids(make(keys)).tolist() == [signed64(key) for key in keys]


def test_string_and_its_utf8_bytes_have_one_id():
    assert key_ids(STRINGS).tolist() == key_ids([key.encode() for key in STRINGS]).tolist()


def test_string_id_is_the_value_in_the_pyspark_documentation():
    assert key_ids(["ABC"]).tolist() == [4105715581806190027]


@FIXED
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_random_strings_against_xxhash(keys):
    assert key_ids(objects(*keys)).tolist() == [signed64(key.encode()) for key in keys]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_integers_are_themselves(dtype):
    info = np.iinfo(dtype)
    keys = np.array([info.min, 0, 1, 100, min(info.max, HIGH)], dtype)
    ids = key_ids(keys)
    assert ids.dtype == np.int64
    assert ids.tolist() == [int(key) for key in keys]


def test_ids_do_not_alias_the_keys():
    keys = np.arange(5)
    ids = key_ids(keys)
    ids[0] = 99
    assert keys.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, "U5", "S5", object])
def test_no_keys_make_no_ids(dtype):
    ids = key_ids(np.empty(0, dtype))
    assert ids.dtype == np.int64
    assert ids.shape == (0,)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_an_unsigned_key_too_large_for_int64_is_rejected(value):
    assert str(value) in rejected(np.array([3, value], np.uint64))
    assert str(value) in rejected([value])


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (objects(1, "a"), "int, str"),
        (objects("a", None), "NoneType, str"),
        (objects(b"a", 1.5), "bytes, float"),
        (objects((1, 2)), "tuple"),
    ],
)
def test_object_arrays_with_anything_but_strings_or_bytes_are_rejected(keys, names):
    assert f"values of type {names}:" in rejected(keys)


@pytest.mark.parametrize("keys", [[1.5], [1j], np.array(["2020-01-01"], "M8[D]"), [1, float("nan")]])
def test_keys_of_other_types_are_rejected(keys):
    assert f"type {np.asarray(keys).dtype}:" in rejected(keys)


def test_strings_mixed_with_bytes_are_rejected():
    assert "bytes, str" in rejected(objects("a", b"a"))


def test_a_list_of_integers_and_strings_is_rejected():
    assert "int" in rejected([1, "a"])


def test_an_empty_list_makes_no_ids():
    assert key_ids([]).tolist() == []


@pytest.mark.parametrize("keys", [("a", "a\0"), (b"a", b"a\0")])
def test_trailing_nul_counts(keys):
    raw = [key.encode() if isinstance(key, str) else key for key in keys]
    assert key_ids(objects(*keys)).tolist() == [signed64(key) for key in raw]


@pytest.mark.parametrize("seed", [*SEEDS, -1, -32_768, -32_769, -(2**40)])
@pytest.mark.parametrize("index", [0, 1, 65_535])
def test_member_is_murmur3_of_the_wrapped_s(seed, index):
    value = member(seed, index)
    assert value.dtype == np.uint32
    assert int(value) == composed(seed, index)


def test_member_wraps_at_32_bits_and_continues_into_the_next_seed():
    assert member(65_536) == member(0)
    assert member(-1, 65_536) == member(0)
    assert member(3, 65_536) == member(4)
    assert member(32_768) == member(-32_768)
    assert member(0) != member(1)


def test_family_is_its_first_members():
    members = family(7, 5)
    assert members.dtype == np.uint32
    assert members.tolist() == [composed(7, index) for index in range(5)]
    assert family(7, 0).shape == (0,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("key", EDGES)
def test_hash32_of_extreme_ids_against_mmh3(key, seed):
    assert hash32(key, member(seed)) == reference_hash(key, composed(seed))


@FIXED
@given(INT64, st.integers(0, 2**32 - 1))
def test_hash32_against_mmh3(key, seed):
    assert hash32(key, np.uint32(seed)) == reference_hash(key, seed)


@FIXED
@given(INT64, st.integers(0, 2**20), st.integers(0, 65_535), st.integers(1, 2**31 - 1))
@example(HIGH, 0, 0, 1)
def test_worker_of_against_mmh3(key, seed, index, n):
    assert worker_of(key, member(seed, index), n) == reference_hash(key, composed(seed, index)) % n


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("seed", [0, 5, 65_535])
def test_hash_workers_against_mmh3(n, seed):
    rng = np.random.default_rng(n)
    keys = np.concatenate([EDGES, rng.integers(LOW, HIGH, 2_000, endpoint=True)])
    out = np.full(len(keys), -1, np.int32)
    hash_workers(keys, member(seed), n, out)
    assert out.tolist() == [reference_hash(int(key), composed(seed)) % n for key in keys]


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_candidates_are_the_hashed_workers_under_every_member(n, count):
    rng = np.random.default_rng(n)
    keys = np.concatenate([EDGES, rng.integers(LOW, HIGH, 200, endpoint=True)])
    out = candidates(keys, family(9, count), n)
    assert out.dtype == np.int32
    assert out.tolist() == [
        [reference_hash(int(key), composed(9, j)) % n for key in keys] for j in range(count)
    ]


def test_candidates_of_no_keys_or_no_members():
    assert candidates(np.empty(0, np.int64), family(1, 3), 4).shape == (3, 0)
    assert candidates(np.arange(5), family(1, 0), 4).shape == (0, 5)


def test_candidates_of_a_strided_part_of_a_batch():
    keys = np.arange(100)
    assert (
        candidates(keys[3::7], family(2, 2), 8).tolist()
        == candidates(keys, family(2, 2), 8)[:, 3::7].tolist()
    )


def test_hash_is_the_bigint_hash_of_spark():
    # What Spark SQL's hash(1L, 0L, -1L, max, min) and its partitioner over 200 give, one by one.
    keys = [1, 0, -1, HIGH, LOW]
    published = [0x99F0149D, 0x9C67B85D, 0xC8008529, 0xA05B5D7B, 0xCD1E64FB]
    assert [hash32(key, np.uint32(42)) & 0xFFFFFFFF for key in keys] == published
    assert [worker_of(key, np.uint32(42), 200) for key in keys] == [69, 5, 193, 171, 115]


def test_the_remainder_by_a_float_quotient_is_exact():
    # worker_of divides in float64; hashes next to a multiple of n would show a wrong rounding.
    keys = np.arange(200_000)
    seed = member(1)
    hashes = np.array([hash32(key, seed) for key in keys.tolist()], np.int64)
    for n in (3, 49, 1000, 46_341, 2**31 - 1):
        out = np.empty(len(keys), np.int32)
        hash_workers(keys, seed, n, out)
        assert np.array_equal(out, hashes % n)


@FIXED
@given(st.integers(0, 2**64 - 1))
@example(0)
@example(2**64 - 1)
def test_mix64_is_the_finaliser_of_splitmix64(x):
    full = 2**64 - 1
    y = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & full
    y = ((y ^ (y >> 27)) * 0x94D049BB133111EB) & full
    assert int(mix64(np.uint64(x))) == y ^ (y >> 31)
