"""Key ids and the seeded hash family: the only hashes in the project.

A key is an int64 id. Integers are themselves; strings and bytes are XXH64 with seed 42 over UTF-8,
which is Spark SQL's ``xxhash64(col)``. The family is

    H_s(id) = murmur3_32(id as 8 little-endian bytes, seed = murmur3_32(s as 4 bytes, seed = 42))

which is Spark SQL's ``hash(lit(s), id)`` for a bigint ``id``, and the worker is ``pmod(H_s(id), n)``:
a policy means the same worker in the simulator and in plain Spark SQL. Hash function j of a partitioner
with seed q is ``s = 65536 q + j`` (`member`).
"""

from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from dalton.envs.errors import ConfigError
from dalton.envs.kernel import kernel

SPARK_SEED = 42


def key_ids(keys: ArrayLike) -> NDArray[np.int64]:
    """Map keys of one kind (integers, strings or bytes) to int64 ids, shape ``(len(keys),)``.

    Only the distinct strings are hashed, so the cost per tuple is a table look-up.
    """
    array = np.asarray(keys)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind in "iub":
        if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
            raise ConfigError(f"key = {array.max()}: expected an integer below 2**63")
        return array.astype(np.int64)
    if array.dtype.kind not in "USO":
        raise ConfigError(f"key has type {array.dtype}: expected integers, strings or bytes")
    if array.dtype.kind == "O" or not isinstance(keys, np.ndarray):
        # numpy has turned a list of mixed kinds into strings, and would drop trailing NULs.
        array = np.empty(len(array), object)
        array[:] = keys
        kinds = {str if isinstance(key, str) else type(key) for key in array}
        if kinds != {str} and kinds != {bytes}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ConfigError(f"key has values of type {names}: expected only integers, strings or bytes")
        fixed = array.astype("S" if kinds == {bytes} else "U")
        # Sorting fixed-width strings is many times faster, but they cannot end in NUL.
        if np.char.str_len(fixed).sum() == sum(map(len, array)):
            array = fixed
    distinct, inverse = np.unique(array, return_inverse=True)
    ids = np.fromiter((_string_id(key) for key in distinct), np.int64, len(distinct))
    return ids[inverse]


def _string_id(key: str | bytes) -> int:
    try:
        raw = key.encode() if isinstance(key, str) else bytes(key)
    except UnicodeEncodeError:
        raise ConfigError(f"key = {key!r}: expected a string that UTF-8 can encode") from None
    unsigned = xxhash.xxh64_intdigest(raw, seed=SPARK_SEED)
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned


def literal(seed: int, index: int = 0) -> int:
    """The int32 s of hash function ``index`` of partitioner seed ``seed``, for ``hash(lit(s), id)``."""
    return (65536 * seed + index + 2**31) % 2**32 - 2**31


def composed(value: int, seed: int = SPARK_SEED) -> np.uint32:
    """murmur3_32 of an int32: the seed with which Spark SQL's ``hash`` goes on to the next column."""
    return np.uint32(mmh3.hash(value.to_bytes(4, "little", signed=True), seed, signed=False))


def member(seed: int, index: int = 0) -> np.uint32:
    """The composed murmur3 seed of hash function ``index`` of partitioner seed ``seed``."""
    return composed(literal(seed, index))


def family(seed: int, count: int) -> NDArray[np.uint32]:
    """The first ``count`` members of the family of ``seed``, shape ``(count,)``."""
    return np.array([member(seed, index) for index in range(count)], np.uint32)


@kernel
def _rotl32(x: Any, r: Any) -> Any:
    return (x << r) | (x >> (np.uint64(32) - r))


@kernel
def hash32(key: Any, seed: Any) -> Any:
    """murmur3_32 of the 8 bytes of ``key`` with a composed seed, as a signed 32-bit value."""
    # Arithmetic in uint64 under a 32-bit mask: numba widens uint32 operands anyway.
    mask = np.uint64(0xFFFFFFFF)
    h = np.uint64(seed)
    whole = np.uint64(key)
    for part in range(2):
        k = (whole >> np.uint64(32 * part)) & mask
        k = (k * np.uint64(0xCC9E2D51)) & mask
        k = _rotl32(k, np.uint64(15)) & mask
        k = (k * np.uint64(0x1B873593)) & mask
        h ^= k
        h = _rotl32(h, np.uint64(13)) & mask
        h = (h * np.uint64(5) + np.uint64(0xE6546B64)) & mask
    h ^= np.uint64(8)
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & mask
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & mask
    h ^= h >> np.uint64(16)
    return np.int32(h)


@kernel
def worker_of(key: Any, seed: Any, n: Any) -> Any:
    """``pmod(H(key), n)``, the hashed worker of a key: int64 in ``[0, n)``."""
    # In floating point, which vectorises. It is exact: |h| and n are below 2**31, so h / n is further from
    # the next whole number than its rounding error.
    h = np.int64(hash32(key, seed))
    return h - np.int64(np.floor(h / np.float64(n))) * n


@kernel
def mix64(x: Any) -> Any:
    """splitmix64's finaliser: a bijection of uint64 that spreads every bit; for tables and generators."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def spread(x: Any) -> Any:
    """32 well spread bits of a 64-bit key, as int64: Fibonacci hashing, a third of the latency of `mix64`.

    For tables. The fold brings the upper half of the key down, which a product alone would not.
    """
    x = np.uint64(x)
    return np.int64(((x ^ (x >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32))


@kernel
def hash_workers(keys: Any, seed: Any, n: Any, out: Any) -> None:
    """Hashed worker of every key: int64 ``(m,)`` in, int32 ``(m,)`` out."""
    for i in range(len(keys)):
        out[i] = worker_of(keys[i], seed, n)


def candidates(keys: NDArray[np.int64], members: NDArray[np.uint32], n: int) -> NDArray[np.int32]:
    """Hashed workers of every key under several members, shape ``(len(members), len(keys))``.

    A loop that does nothing else is compiled to vector instructions: a fifth of the cost of hashing between
    other steps.
    """
    out = np.empty((len(members), len(keys)), np.int32)
    for j, seed in enumerate(members):
        hash_workers(keys, seed, n, out[j])
    return out
