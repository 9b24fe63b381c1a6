"""A partitioner that cooperates: Dalton with the states PREPARE and AWAIT (Section 4.1, Algorithm 2)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dalton.agents.dalton import AWAIT, GAMMA, HOT, INITIAL, PAUSE, Dalton, buffer, new_window
from dalton.agents.protocol import VERSION, Ints, Policy, Sync, frequent_keys
from dalton.agents.qtable import FREE, forget_values, more_rows, row_of, set_value, take_row
from dalton.agents.statistics import WINDOW, has_place
from dalton.envs.contract import Times
from dalton.envs.errors import check_choice, check_int
from dalton.envs.hashing import candidates
from dalton.envs.hotness import LEAST, LENGTH, NUMBER, TUPLES
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY
from dalton.envs.window import BASE, BY_TIME, POSITION, SLIDE

# Statistics that can name the most frequent keys; a sketch cannot.
ENUMERABLE = ("exact", "space_saving")
FIRST_BUFFER = 4096


@kernel
def _learn(t: Any, waiting: Any, window: Any, gamma: Any) -> None:
    """Update the values of keys that are hot by the rewards that waited, in their order (Eq. 5)."""
    for i in range(waiting.used[0]):
        row = row_of(t, waiting.keys[i])
        if row != EMPTY and t.until[row] >= window:
            action = waiting.actions[i]
            value = t.q[row, action]
            set_value(t, row, action, value + gamma * (waiting.gains[i] - value))
    waiting.used[0] = 0


class Member(Dalton):
    """One of P partitioners that learn one policy (Dalton Section 4.1, Algorithm 2).

    A STATS_WIN is also the interval DSYNC between messages. At its end the member gives a `Sync` to ``send``,
    which the runtime sets, and is in AWAIT: it goes on deciding by what it knows, but rewards wait in a
    buffer. A `Policy` given to `receive` replaces the values, ends the hotness of keys that are hot only
    here, makes the threshold that of the global load, and then the rewards are learned: PREPARE. A member
    that is still in AWAIT when the next STATS_WIN ends sends nothing, and asks for a longer interval with its
    next message. A policy of a later round is taken in any state: it tells of rounds that went on without
    this member, which thereby joins them again.

    Args:
        member: Number of this partitioner, from 0.
        statistics: ``exact`` or ``space_saving``: a message names the most frequent keys.
        **params: See `Dalton`. Window and STATS_WIN are of the member's own tuples, where they count tuples.
    """

    def __init__(self, *, member: int = 0, statistics: str = "exact", **params: Any) -> None:
        self.member = check_int("member", member, low=0)
        check_choice("statistics", statistics, ENUMERABLE)
        super().__init__(statistics=statistics, **params)

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ["member", *list(inspect.signature(Dalton).parameters)]
        return {name: getattr(self, name) for name in names}

    send: Callable[[Sync], None] | None = None
    """Where messages go; without it the member learns alone."""
    poll: Callable[[], None] | None = None
    """Called in AWAIT when a STATS_WIN ends: a runtime may have the answer by now."""

    def _reset(self) -> None:
        super()._reset()
        # Members have one policy; with one sequence of draws too, all would explore the same worker at once.
        self.random += np.uint64(self.member * 0x9E3779B97F4A7C15 % 2**64)
        self.rule[PAUSE] = 1.0
        self.buffer = buffer(FIRST_BUFFER)
        self.round = 0
        self.begun = self.late = False
        self.pending: Sync | None = None
        """The message of AWAIT, for a runtime that must send it again."""
        self.shortest = self.span[LENGTH]
        self.dsync = self.next_dsync = 1

    def __getstate__(self) -> dict[str, Any]:
        """Leave the runtime's functions out of a pickle."""
        return {name: value for name, value in vars(self).items() if name not in ("send", "poll")}

    @property
    def awaiting(self) -> bool:
        """Whether it is in AWAIT."""
        return bool(self.rule[AWAIT])

    def _paused(self, times: Times, at: int) -> None:
        if self.awaiting and self.buffer.used[0] == len(self.buffer.keys):
            grown = buffer(2 * len(self.buffer.keys))
            for new, old in zip(grown[:3], self.buffer[:3], strict=True):
                new[: len(old)] = old
            grown.used[0] = self.buffer.used[0]
            self.buffer = grown
        elif self.qtable.spare[0] == 0 or not has_place(self.stats):
            super()._paused(times, at)
        else:
            by_time = self.loads.edge[BY_TIME] > 0
            self._turn(float(times[at]) if by_time else float(self.loads.clock[POSITION]))

    def _turn(self, now: float) -> None:
        """End a STATS_WIN, with a message, and begin the one that holds ``now``."""
        message = None
        if self.awaiting and self.poll is not None:
            self.poll()
        if self.begun and self.awaiting:
            self.late = True
        elif self.begun and self.send is not None:
            message = self.pending = self._message()
            self.rule[AWAIT] = 1.0
            self.late = False
        self.begun = True
        if self.next_dsync != self.dsync:
            self._stretch()
        least = self.span[LEAST]
        new_window(self.stats, self.qtable, self.span, self.rule[HOT], now)
        if self.awaiting and self.round > 0:
            # What this member saw alone is no measure; the last global load is, until there is a newer one.
            self.span[LEAST] = least
        if message is not None and self.send is not None:
            self.send(message)  # last: the answer may come at once

    def _stretch(self) -> None:
        """Change DSYNC: STATS_WINs get another number, and what is hot keeps how long it has left."""
        present = int(self.span[NUMBER])
        length = self.shortest * self.next_dsync
        moved = math.floor((present + 1) * self.span[LENGTH] / length) - 1
        hot = self.qtable.until != FREE
        self.qtable.until[hot] += moved - present
        self.span[LENGTH], self.span[NUMBER] = length, moved
        # A load is as many times larger as the time in which it comes.
        self.span[LEAST] = np.ceil(self.span[LEAST] * self.next_dsync / self.dsync)
        self.dsync = self.next_dsync

    def _message(self) -> Sync:
        t = self.qtable
        rows = np.flatnonzero(t.until >= self.span[NUMBER])
        most = 2 * frequent_keys(self.rule[HOT])
        if len(rows) > most:
            # A STATS_WIN with more tuples than the one before can have more hot keys than Theorem 3.4 allows.
            rows = np.sort(rows[np.argsort(-t.tuples[rows], kind="stable")[:most]])
        keys, counts = self._frequent()
        by_worker = (np.arange(self.n_workers) - t.home[rows][:, None]) % self.n_workers
        return Sync(
            version=VERSION,
            sender=self.member,
            round=self.round,
            tuples=int(self.span[TUPLES]),
            keys=keys,
            counts=counts,
            hot=t.keys[rows].copy(),
            weights=t.tuples[rows].copy(),
            q=np.take_along_axis(t.q[rows], by_worker, axis=1),
            double=self.late,
            dsync=self.dsync,
            split=self._split(most),
            position=int(self.loads.clock[POSITION]),
        )

    def _split(self, most: int) -> Ints | None:
        """Keys that are not on their hashed worker alone; None if more than ``most`` per slide of the window.

        A key is split only while it is hot, and few keys are in one slide.
        """
        t, clock = self.qtable, self.loads.clock
        slides = t.ages.shape[1]
        oldest = clock[SLIDE] - clock[BASE] - slides
        home = t.stamps[np.arange(len(t.keys)), t.home] > oldest
        away = (t.until != FREE) & (t.fragments > 0) & ~((t.fragments == 1) & home)
        keys = np.sort(t.keys[away])
        return keys if len(keys) <= most * slides else None

    def _frequent(self) -> tuple[Ints, Ints]:
        """The ⌈c n⌉ most frequent keys of the STATS_WIN, of equals the smaller ids, and their counts."""
        t, s = self.qtable, self.stats
        rows = np.flatnonzero((t.until != FREE) & (t.tuples > 0))
        if self.statistics == "exact":
            live = s.seen[s.seen["window"] == s.mode[WINDOW]]
            keys, counts = live["key"], live["count"].astype(np.int64)
        else:
            size = int(s.summary.size[0])
            keys, counts = s.summary.keys[:size], s.summary.counts[:size]
        # Statistics stop counting a key while it is hot; its row goes on.
        others = ~np.isin(keys, t.keys[rows])
        keys = np.concatenate([t.keys[rows], keys[others]])
        counts = np.concatenate([t.tuples[rows], counts[others]])
        order = np.lexsort((keys, -counts))[: frequent_keys(self.rule[HOT])]
        return keys[order], counts[order]

    def receive(self, policy: Policy) -> bool:
        """Take the answer to the last message, or that of a later round; False if it is older."""
        if policy.round < self.round or policy.version != VERSION:
            return False
        window = int(self.span[NUMBER])
        t = self.qtable
        # Hot since before this STATS_WIN, and only here.
        t.until[(t.until == window) & ~np.isin(t.keys, policy.hot)] = window - 1
        homes = candidates(policy.hot, self.members, self.n_workers)[0] if len(policy.hot) else []
        for key, home, q in zip(policy.hot.tolist(), homes, policy.q, strict=True):
            self._adopt(key, int(home), q, window)
        self.span[LEAST] = math.ceil(policy.load / self.rule[HOT]) if policy.load else np.inf
        _learn(self.qtable, self.buffer, window, self.rule[GAMMA])
        self.next_dsync = policy.dsync
        self.rule[AWAIT] = 0.0
        self.round = policy.round + 1
        self.pending = None
        return True

    def _adopt(self, key: int, home: int, q: Any, window: int) -> None:
        """Give a hot key the global values."""
        if self.qtable.spare[0] == 0:
            self.qtable = more_rows(self.qtable)
        t = self.qtable
        row = row_of(t, key)
        if row == EMPTY:
            row = take_row(t, key, home)
        if t.until[row] < window:
            forget_values(t, row, self.rule[INITIAL])
        t.until[row] = max(t.until[row], window)
        if np.isnan(q).any():
            return
        values = np.roll(q, -home)
        t.q[row] = values
        order = np.argsort(-values, kind="stable")
        t.best[row] = order[0]
        t.bound[row] = values[order[1]] if len(order) > 1 else -np.inf


def warm_up(params: dict[str, Any]) -> None:
    """Have all kernels of a member compiled, or loaded from the cache."""
    one = Member(**params)
    one.route(np.arange(2000), np.linspace(0.0, 1000.0, 2000))
    q = np.zeros((1, one.n_workers))
    one.receive(Policy(VERSION, 0, 1, np.arange(1), q, until=1, dsync=1, silent=(), split=None))
