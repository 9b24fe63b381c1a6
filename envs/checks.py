"""What every partitioner must keep, as library code: run `check_partitioner` over your own.

    from dalton.envs.checks import check_partitioner
    check_partitioner(lambda **kw: MyPartitioner(**kw))

Each check takes a *factory*, called with ``n_workers`` and ``seed``, and raises `CheckFailedError`. A
partitioner that declares a ``lookahead`` decides by batch, so it is exempt from what is about cutting the
stream.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import Partitioner, Workers
from dalton.envs.workloads import make_workload

N_TUPLES = 30_000
N_KEYS = 2_000
RATE = 100.0
"""Tuples per second: slow enough that partitioners with a clock see several of their intervals."""


class Factory(Protocol):
    """Makes a partitioner."""

    def __call__(self, *, n_workers: int, seed: int = 0) -> Partitioner:
        """A new partitioner, its other parameters as they are to be checked."""


class CheckFailedError(AssertionError):
    """A partitioner breaks the contract; the message says how."""


def _stream(seed: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    workload = make_workload(
        "zipf", n_tuples=N_TUPLES, n_keys=N_KEYS, exponent=1.3, seed=seed, arrivals="poisson", rate=RATE
    )
    chunk = next(workload.chunks(N_TUPLES))
    assert chunk.times is not None
    return chunk.keys, chunk.times


def _require(condition: object, message: str) -> None:
    if not condition:
        raise CheckFailedError(message)


def _same(first: NDArray[Any], second: NDArray[Any], what: str) -> None:
    differs = np.flatnonzero(first != second)
    if len(differs):
        at = int(differs[0])
        raise CheckFailedError(f"{what}: tuple {at} goes to worker {second[at]} instead of {first[at]}")


def workers_in_range(factory: Factory) -> None:
    """One int32 worker in [0, n) per tuple."""
    keys, times = _stream()
    for n in (1, 2, 7, 64):
        out = factory(n_workers=n).route(keys, times)
        _require(out.shape == keys.shape, f"{n} workers: shape {out.shape} for {len(keys)} tuples")
        _require(out.dtype == np.int32, f"{n} workers: dtype {out.dtype}, expected int32")
        _require(
            out.min() >= 0 and out.max() < n,
            f"{n} workers: worker {out.min()} .. {out.max()}, expected 0 .. {n - 1}",
        )


def same_seed_same_decisions(factory: Factory) -> None:
    """Two partitioners made alike decide alike."""
    keys, times = _stream()
    for seed in (0, 5):
        first = factory(n_workers=8, seed=seed).route(keys, times)
        _same(first, factory(n_workers=8, seed=seed).route(keys, times), f"same seed {seed}")


def reset_equals_fresh(factory: Factory) -> None:
    """``reset(seed)`` makes a used partitioner a new one of that seed; ``reset()`` keeps its seed."""
    keys, times = _stream()
    used = factory(n_workers=8, seed=3)
    first = used.route(keys, times)
    used.reset()
    _same(first, used.route(keys, times), "after reset()")
    used.reset(seed=4)
    _same(factory(n_workers=8, seed=4).route(keys, times), used.route(keys, times), "after reset(seed=4)")


def batch_equals_loop(factory: Factory) -> None:
    """Decisions do not depend on how the stream is cut; with a ``lookahead`` they may."""
    if factory(n_workers=1).lookahead != "none":
        return
    keys, times = (column[:6_000] for column in _stream())
    for clock in (times, None):
        try:
            whole = factory(n_workers=8).route(keys, clock)
        except ValueError:
            if clock is None:
                continue  # its window is in time
            raise
        for size in (1, 7):
            p = factory(n_workers=8)
            cuts = range(0, len(keys), size)
            parts = [
                p.route(keys[i : i + size], None if clock is None else clock[i : i + size]) for i in cuts
            ]
            _same(whole, np.concatenate(parts), f"in batches of {size}")


def load_in_time(factory: Factory) -> None:
    """With costs, and load in time over capacity: all of the above, and costs are read only."""
    keys, times = (column[:6_000] for column in _stream())
    costs = 0.001 * (1.0 + keys % 7)
    before = costs.copy()
    costs.setflags(write=False)
    capacity = np.linspace(0.5, 2.0, 8)

    def fresh() -> Partitioner:
        p = factory(n_workers=8)
        p.measure("time", capacity)
        return p

    def routed(p: Partitioner, part: slice) -> Workers:
        return p.route(keys[part], times[part], costs[part])

    p = fresh()
    whole = routed(p, slice(None))
    _require(whole.min() >= 0 and whole.max() < 8, f"worker {whole.min()} .. {whole.max()}, expected 0 .. 7")
    _require(np.array_equal(costs, before), "costs were changed")
    p.reset()
    _same(whole, routed(p, slice(None)), "after reset()")
    if p.lookahead != "none":
        return
    half = fresh()
    first = routed(half, slice(3_000))
    copy = pickle.loads(pickle.dumps(half))
    _same(whole, np.concatenate([first, routed(copy, slice(3_000, None))]), "after pickling")
    for size in (1, 7):
        p = fresh()
        parts = [routed(p, slice(i, i + size)) for i in range(0, len(keys), size)]
        _same(whole, np.concatenate(parts), f"in batches of {size}")


def reports_are_heard_alike(factory: Factory) -> None:
    """Told how busy the workers are, it decides alike for every cut, after a reset and after pickling."""
    if factory(n_workers=8).slot is None:
        return
    keys, times = (column[:6_000] for column in _stream())
    told = [np.roll(np.linspace(0.0, 2.0, 8), slot) for slot in range(6)]

    def routed(p: Partitioner, size: int) -> Workers:
        parts = []
        for slot in range(6):
            p.report(told[slot])
            for i in range(1_000 * slot, 1_000 * (slot + 1), size):
                part = slice(i, min(i + size, 1_000 * (slot + 1)))
                parts.append(p.route(keys[part], times[part]))
                # In the middle of a slot: at its end the next report would replace what was lost.
                p = pickle.loads(pickle.dumps(p)) if (size, i) == (7, 2_350) else p
        return np.concatenate(parts)

    before = np.array(told)
    p = factory(n_workers=8)
    whole = routed(p, 1_000)
    _require(whole.min() >= 0 and whole.max() < 8, f"worker {whole.min()} .. {whole.max()}, expected 0 .. 7")
    _require(np.array_equal(np.array(told), before), "the report was changed")
    p.reset()
    _same(whole, routed(p, 1_000), "after reset()")
    for size in (1, 7):
        _same(whole, routed(factory(n_workers=8), size), f"in batches of {size}")


def pickle_continues(factory: Factory) -> None:
    """A partitioner pickled in mid-stream goes on as the original does."""
    keys, times = _stream()
    half = len(keys) // 2
    original = factory(n_workers=8)
    original.route(keys[:half], times[:half])
    copy = pickle.loads(pickle.dumps(original))
    _same(original.route(keys[half:], times[half:]), copy.route(keys[half:], times[half:]), "after pickling")


def params_round_trip(factory: Factory) -> None:
    """``type(p)(**p.params)`` is an equal partitioner."""
    keys, times = _stream()
    p = factory(n_workers=8, seed=2)
    again = type(p)(**p.params)
    _require(again.params == p.params, f"params {p.params} became {again.params}")
    _require(
        p.params.get("n_workers") == 8 and p.params.get("seed") == 2, f"params {p.params} lack what was given"
    )
    _same(p.route(keys, times), again.route(keys, times), "made again from params")


def input_not_changed(factory: Factory) -> None:
    """Keys and times are read only."""
    keys, times = _stream()
    before = keys.copy(), times.copy()
    factory(n_workers=8).route(keys, times)
    _require(np.array_equal(keys, before[0]), "keys were changed")
    _require(np.array_equal(times, before[1]), "times were changed")
    keys.setflags(write=False)
    times.setflags(write=False)
    factory(n_workers=8).route(keys, times)


def edge_cases(factory: Factory) -> None:
    """Empty batches, one worker, one tuple, the smallest and the largest keys."""
    p = factory(n_workers=8)
    empty = p.route(np.empty(0, np.int64), np.empty(0))
    _require(empty.shape == (0,) and empty.dtype == np.int32, "an empty batch: expected an empty int32 array")
    keys, times = _stream()
    _same(factory(n_workers=8).route(keys, times), p.route(keys, times), "after an empty batch")
    _require(
        not factory(n_workers=1).route(keys, times).any(), "one worker: expected worker 0 for every tuple"
    )
    extreme = np.array([np.iinfo(np.int64).min, -1, 0, np.iinfo(np.int64).max] * 5)
    later = np.full(len(extreme), times[-1])
    out = p.route(extreme, later)
    _require(out.min() >= 0 and out.max() < 8, "keys at the ends of int64: worker out of range")
    _require(len(factory(n_workers=8).route(keys[:1], times[:1])) == 1, "one tuple: expected one worker")


def memory_stays_flat(factory: Factory) -> None:
    """On a fixed set of keys the state stops growing."""
    keys, _ = _stream()
    p = factory(n_workers=8)

    def size_after(first: int, passes: int) -> int:
        for i in range(first, first + passes):
            p.route(keys, (i * N_TUPLES + np.arange(N_TUPLES)) / RATE)
        return len(pickle.dumps(p))

    early = size_after(0, 10)
    late = size_after(10, 30)
    _require(late <= 1.3 * early + 4096, f"state grew from {early} to {late} bytes on the same {N_KEYS} keys")


def split_bound_holds(factory: Factory) -> None:
    """No key is on more workers than ``max_workers_per_key``."""
    keys, times = _stream()
    for n in (2, 8, 64):
        p = factory(n_workers=n)
        out = p.route(keys, times)
        pairs = np.unique(keys * n + out)
        most = int(np.bincount(pairs // n).max())
        _require(
            most <= p.max_workers_per_key,
            f"{n} workers: a key is on {most}, declared {p.max_workers_per_key}",
        )


CHECKS: dict[str, Callable[[Factory], None]] = {
    check.__name__: check
    for check in (
        workers_in_range,
        same_seed_same_decisions,
        reset_equals_fresh,
        batch_equals_loop,
        load_in_time,
        reports_are_heard_alike,
        pickle_continues,
        params_round_trip,
        input_not_changed,
        edge_cases,
        memory_stays_flat,
        split_bound_holds,
    )
}


def check_partitioner(factory: Factory) -> None:
    """Run every check.

    Raises:
        CheckFailedError: With the name of the check and what it found.
    """
    for name, check in CHECKS.items():
        try:
            check(factory)
        except CheckFailedError as error:
            raise CheckFailedError(f"{name}: {error}") from None
        except Exception as error:
            raise CheckFailedError(f"{name}: {type(error).__name__}: {error}") from error
