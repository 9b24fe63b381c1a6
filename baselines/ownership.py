"""Who owns which virtual worker, and how that follows the workers' signals (CG Sections IV-B and IV-C)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import Times, Workers
from dalton.envs.kernel import kernel
from dalton.envs.window import lightest

Ints = NDArray[np.int64]

IDLE, BUSY, FINE, SILENT = range(4)
"""What a worker says of its last slot; the first two are also the rows of the queues."""


class Ownership(NamedTuple):
    """A source's V virtual workers, their n owners, and what it has heard of them."""

    owner: Workers
    """``(V,)`` worker of every virtual worker."""
    came: Ints
    """``(V,)`` number of the move that brought it there, 0 where it was at first."""
    owned: Ints
    """``(n,)`` virtual workers of every worker."""
    says: Ints
    """``(n,)`` what a worker adds to its next acknowledgement; SILENT if nothing, or if that was sent."""
    carried: Ints
    """``(n,)`` what the acknowledgement under way says."""
    due: Times
    """``(n,)`` when it comes; inf if none is under way."""
    first: Times
    """The earliest of these."""
    waiting: Ints
    """``(2, n)`` the queues of idle and of busy workers, first come first."""
    length: Ints
    """``(2,)`` workers in them."""
    heard: Ints
    """``(n,)`` what a worker said last; SILENT if it has not been heard."""
    order: Ints
    """``(n,)`` the workers by when they were last busy, or were given something without having asked."""
    moves: Ints
    """Virtual workers moved so far, and the last number in ``order``."""


def ownership(virtual: int, n: int) -> Ownership:
    """``virtual`` virtual workers for each of ``n`` workers: v belongs to v mod n."""
    return Ownership(
        owner=(np.arange(virtual * n) % n).astype(np.int32),
        came=np.zeros(virtual * n, np.int64),
        owned=np.full(n, virtual),
        says=np.full(n, SILENT),
        carried=np.full(n, SILENT),
        due=np.full(n, np.inf),
        first=np.array([np.inf]),
        waiting=np.zeros((2, n), np.int64),
        length=np.zeros(2, np.int64),
        heard=np.full(n, SILENT),
        order=np.zeros(n, np.int64),
        moves=np.zeros(2, np.int64),
    )


@kernel
def _take_out(o: Any, side: Any, worker: Any) -> None:
    """Take ``worker`` out of a queue, if it is there."""
    kept = 0
    for at in range(o.length[side]):
        if o.waiting[side, at] != worker:
            o.waiting[side, kept] = o.waiting[side, at]
            kept += 1
    o.length[side] = kept


@kernel
def _put_in(o: Any, side: Any, worker: Any) -> None:
    """Put ``worker`` at the end of a queue; one that is there keeps its place."""
    for at in range(o.length[side]):
        if o.waiting[side, at] == worker:
            return
    o.waiting[side, o.length[side]] = worker
    o.length[side] += 1


@kernel
def _move(o: Any, giver: Any, taker: Any) -> None:
    # The one that came last goes first: what moves back and forth are the same few keys.
    chosen = 0
    latest = np.int64(-1)
    for v in range(len(o.owner)):
        if o.owner[v] == giver and o.came[v] >= latest:
            chosen, latest = v, o.came[v]
    o.moves[0] += 1
    o.owner[chosen] = taker
    o.came[chosen] = o.moves[0]
    o.owned[giver] -= 1
    o.owned[taker] += 1


@kernel
def _pair(o: Any) -> None:
    """Move a virtual worker from the first busy worker to the first idle one while there are both."""
    while o.length[IDLE] > 0 and o.length[BUSY] > 0:
        giver = o.waiting[BUSY, 0]
        _take_out(o, BUSY, giver)
        if o.owned[giver] == 1:
            continue
        taker = o.waiting[IDLE, 0]
        _take_out(o, IDLE, taker)
        _move(o, giver, taker)


@kernel
def _rank(o: Any, worker: Any) -> None:
    """Make ``worker`` the last in ``order``."""
    o.moves[1] += 1
    o.order[worker] = o.moves[1]


@kernel
def _spill(o: Any, giver: Any) -> None:
    """Give a virtual worker of a busy one to the first in ``order`` of those that are not."""
    taker = -1
    for w in range(len(o.order)):
        if o.heard[w] != BUSY and (taker < 0 or o.order[w] < o.order[taker]):
            taker = w
    if taker >= 0 and o.owned[giver] > 1:
        _take_out(o, BUSY, giver)
        _move(o, giver, taker)
        _rank(o, taker)


@kernel
def _hear(o: Any, now: Any, spill: Any) -> None:
    """Take the acknowledgements due by ``now``, in the order in which they come."""
    while o.first[0] <= now:
        worker = lightest(o.due)
        sign = o.carried[worker]
        o.due[worker] = np.inf
        o.heard[worker] = sign
        if sign != IDLE:
            _take_out(o, IDLE, worker)
        if sign != BUSY:
            _take_out(o, BUSY, worker)
        if sign != FINE:
            _put_in(o, sign, worker)
            _pair(o)
        if sign == BUSY:
            _rank(o, worker)
            if spill and o.length[BUSY] > 0:
                _spill(o, o.waiting[BUSY, 0])
        o.first[0] = o.due[lightest(o.due)]


@kernel
def _to_owners(o: Any, delay: Any, spill: Any, times: Any, out: Any) -> None:
    for i in range(len(out)):
        now = times[i]
        if o.first[0] <= now:
            _hear(o, now, spill)
        worker = o.owner[out[i]]
        out[i] = worker
        if o.says[worker] != SILENT and o.due[worker] == np.inf:
            o.carried[worker] = o.says[worker]
            o.says[worker] = SILENT
            o.due[worker] = now + delay
            o.first[0] = min(o.first[0], o.due[worker])


def is_quiet(o: Ownership) -> bool:
    """Whether no worker has anything to say and nothing is under way: owners stay as they are."""
    return bool(o.first[0] == np.inf and (o.says == SILENT).all())


def to_owners(o: Ownership, delay: float, spill: bool, times: Times, out: Workers) -> None:
    """Replace virtual workers by their owners, while signals come in and owners change.

    Args:
        o: The ownership, which is changed.
        delay: Seconds from sending a tuple until its acknowledgement.
        spill: Whether a busy worker gives also where none is idle.
        times: Arrival times, shape ``(m,)``; may be empty if it `is_quiet`.
        out: Virtual worker of every tuple, shape ``(m,)``; its worker afterwards.
    """
    if is_quiet(o):
        np.take(o.owner, out, out=out)
    else:
        _to_owners(o, delay, spill, times, out)
