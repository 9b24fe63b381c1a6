"""Cooperative Dalton: the messages, and the QtableReducer (Dalton Section 4.1).

P partitioners learn each on its own part of the stream. When its STATS_WIN ends, a partitioner sends what it
learned (`Sync`); when the reducer has heard from all, it answers with one policy for everybody (`Policy`).
Nothing here knows how messages travel: runtimes carry them, in one process or between many.

Messages have a version and the number of their round. One of an earlier round is old news, one that comes
twice is the same news, and both change nothing. One of a later round says that the receiver missed something,
and it catches up: so neither a lost message nor a reducer that forgot everything stops the rounds. Their size
is O(n²): at most 2 c n rows of Q, and the ids of keys that are split.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError, check_int, check_real

VERSION = 1
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Sync(NamedTuple):
    """From a partitioner: what it saw in the STATS_WIN that ended, and what it learned so far."""

    version: int
    sender: int
    """Number of the partitioner, from 0."""
    round: int
    tuples: int
    """L_i, tuples since the last message."""
    keys: Ints
    """``(F,)`` its most frequent keys, at most ⌈c n⌉."""
    counts: Ints
    """``(F,)`` their tuples."""
    hot: Ints
    """``(R,)`` keys with a row of Q, at most 2 ⌈c n⌉: those of this STATS_WIN and of the one before."""
    weights: Ints
    """``(R,)`` f_i(k), their tuples since the last message."""
    q: Floats
    """``(R, n)`` values by worker."""
    double: bool
    """Whether the last answer came so late that it asks for a doubled DSYNC."""
    dsync: int
    """The sender's present DSYNC, from which a reducer that forgot goes on."""
    split: Ints | None
    """``(S,)`` keys not on their hashed worker alone within its window; None if they are too many."""
    position: int
    """Tuples that it had routed."""


class Policy(NamedTuple):
    """From the reducer: the policy of the next rounds."""

    version: int
    round: int
    """The round that it answers."""
    load: int
    """GL, tuples of all partitioners in the round: their next threshold is GL / (c n)."""
    hot: Ints
    """``(H,)`` keys that are hot for everybody, at most ⌈c n⌉."""
    q: Floats
    """``(H, n)`` values by worker; NaN where no partitioner had the key."""
    until: int
    """The last round in which these keys are hot unless they become hot again."""
    dsync: int
    """Length of the next STATS_WINs, in units of the shortest."""
    silent: tuple[int, ...]
    """Partitioners that were not heard in this round."""
    split: Ints | None
    """``(S,)`` keys that some partitioner has split (see `Sync`); None if that is not known of all."""


class Round(NamedTuple):
    """What a round was like; times and positions are in tuples of the whole stream, or seconds on Ray."""

    number: int
    position: int
    """Tuples of the stream that had passed when it closed, or on Ray when its answer was first taken."""
    time: float
    """From the first message to the answer."""
    dsync: int
    """DSYNC that it granted, in units of the shortest."""
    hot: int
    """Keys that are hot for everybody."""
    silent: int
    """Partitioners that were not heard."""
    disagreement: float
    """See `disagreement`."""


def frequent_keys(hot_keys: float) -> int:
    """The most frequent keys that a message names: as many as can be hot, ⌈c n⌉."""
    return math.ceil(hot_keys)


class QtableReducer:
    """Makes one policy of what P partitioners learned.

    A key is hot if Σ_i f_i(k) ≥ GL / (c n), GL = Σ_i L_i. Its values are the means of the partitioners'
    weighted by their counts, Q(k, w) = Σ_i f_i(k) Q_i(k, w) / Σ_i f_i(k) over those that have the key. (The
    formula as printed divides by P GL instead, which shrinks all values towards 0: with rewards below 0 it
    would make actions that were never taken look best. The authors' code divides as here.)

    DSYNC doubles when a partitioner asks for it, up to ``max_dsync``, and halves when the reducer was idle
    more than twice as long as it worked on the round.

    Args:
        n_workers: Number of workers n.
        n_partitioners: Number of partitioners P.
        hot_factor: c in the threshold.
        max_dsync: The longest STATS_WIN, in units of the shortest; 1 for a fixed one.
    """

    def __init__(
        self, *, n_workers: int, n_partitioners: int, hot_factor: float = 1.0, max_dsync: int = 64
    ) -> None:
        self.n_workers = check_int("n_workers", n_workers, low=1)
        self.n_partitioners = check_int("n_partitioners", n_partitioners, low=1)
        self.hot_factor = check_real("hot_factor", hot_factor, above=0)
        self.max_dsync = check_int("max_dsync", max_dsync, low=1)
        self.round = 0
        self.dsync = 1
        self.heard: dict[int, Sync] = {}
        self.present = set(range(self.n_partitioners))
        self.last: Policy | None = None
        """The latest answer: for a sender of an earlier round, which missed it."""

    @property
    def complete(self) -> bool:
        """Whether all partitioners that are still there were heard in the present round."""
        return bool(self.heard) and self.present <= set(self.heard)

    def leave(self, sender: int) -> None:
        """Wait no more for a partitioner whose stream has ended."""
        self.present.discard(sender)

    def hear(self, message: Sync) -> bool:
        """Take a message; False if it is of an earlier round, or was heard before.

        One of a later round comes to a reducer that was started anew: it goes on from there.

        Raises:
            ConfigError: The sender speaks another version, is not one of the partitioners, or says too much.
        """
        if message.version != VERSION:
            raise ConfigError(f"version = {message.version}: expected messages of version {VERSION}")
        check_int("sender", message.sender, low=0, high=self.n_partitioners - 1)
        if message.q.shape != (len(message.hot), self.n_workers):
            expected = (len(message.hot), self.n_workers)
            raise ConfigError(f"q has shape {message.q.shape}: expected {expected}, rows by workers")
        most = frequent_keys(self.hot_factor * self.n_workers)
        for name, length, limit in (("keys", len(message.keys), most), ("hot", len(message.hot), 2 * most)):
            if length > limit:
                raise ConfigError(f"{name} has {length} keys: expected at most {limit} in a message")
        if message.round > self.round:
            self.round, self.dsync, self.heard = message.round, message.dsync, {}
        if message.round < self.round or message.sender in self.heard:
            return False
        self.heard[message.sender] = message
        return True

    def close(self, *, idle: float, busy: float) -> Policy:
        """End the round with those that were heard, and answer.

        Args:
            idle: Time since the last answer in which there was nothing to do.
            busy: Time that a round takes; same unit.
        """
        # In the order of the partitioners, not of arrival: sums of floats depend on it.
        messages = [self.heard[sender] for sender in sorted(self.heard)]
        load = sum(message.tuples for message in messages)
        hot = self._hot(messages, load)
        if any(message.double for message in messages):
            self.dsync = min(2 * self.dsync, self.max_dsync)
        elif idle > 2 * busy:
            self.dsync = max(1, self.dsync // 2)
        silent = sorted(self.present - set(self.heard))
        parts = [message.split for message in messages]
        known = [part for part in parts if part is not None]
        split = np.unique(np.concatenate(known)) if known and len(known) == len(parts) else None
        answer = Policy(
            version=VERSION,
            round=self.round,
            load=load,
            hot=hot,
            q=self._mean(messages, hot),
            until=self.round + 1,
            dsync=self.dsync,
            silent=tuple(silent),
            split=None if silent else split,
        )
        self.last = answer
        self.round += 1
        self.heard = {}
        return answer

    def _hot(self, messages: list[Sync], load: int) -> Ints:
        """Keys of GL / (c n) tuples or more, in ascending order; at most c n can be."""
        if not messages or load == 0:
            return np.empty(0, np.int64)
        keys, places = np.unique(np.concatenate([message.keys for message in messages]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([message.counts for message in messages]), len(keys))
        hot: Ints = keys[counts >= load / (self.hot_factor * self.n_workers)]
        return hot

    def _mean(self, messages: list[Sync], hot: Ints) -> Floats:
        """Weighted means as deviations from the first partitioner's: one alone gets back what it sent."""
        reference = np.full((len(hot), self.n_workers), np.nan)
        total, weight = np.zeros(reference.shape), np.zeros((len(hot), 1))
        for message in messages:
            known = np.flatnonzero(np.isin(message.hot, hot))
            rows = np.searchsorted(hot, message.hot[known])
            new = np.isnan(reference[rows]).all(axis=1)
            reference[rows[new]] = message.q[known[new]]
            # A key that was hot before and had no tuple since still counts, if little.
            share = np.maximum(message.weights[known], 1)[:, None]
            total[rows] += share * (message.q[known] - reference[rows])
            weight[rows] += share
        mean: Floats = reference + np.divide(total, weight, out=np.zeros(total.shape), where=weight > 0)
        return mean


def disagreement(messages: list[Sync], hot: Ints) -> float:
    """Mean over hot keys and workers of the standard deviation of Q between the partitioners that have it."""
    found = []
    for key in hot.tolist():
        rows = [message.q[message.hot == key][0] for message in messages if key in message.hot]
        if len(rows) > 1:
            found.append(float(np.std(rows, axis=0).mean()))
    return float(np.mean(found)) if found else 0.0


def round_of(policy: Policy, heard: list[Sync], position: int, time: float) -> Round:
    """What a round was like."""
    spread = disagreement(heard, policy.hot)
    return Round(policy.round, position, time, policy.dsync, len(policy.hot), len(policy.silent), spread)
