"""Key forwarding with several partitioners, and its repair (Dalton Section 4.2).

A key on one worker only needs no merging: that worker may send its result to the output directly. A
partitioner marks the keys that it hashes, but does not see what the others split. Results of a window are
therefore held until the slide after its last one ends. A global table that tells what all had split when the
window's tuples had passed recalls the keys that were marked wrongly; without such a table by then, all keys
of that window go to the reducers.
"""

from __future__ import annotations

from typing import NamedTuple

from dalton.agents.protocol import Ints


class Table(NamedTuple):
    """How far a round tells what was split, and when everybody knew; positions in the whole stream."""

    covers: int
    """Tuples that every partitioner had routed its own of, when it sent its message."""
    known: int
    """Tuples that had passed when the last partitioner received the answer."""
    split: Ints


class Forwarding:
    """Decides for every slide whether keys are forwarded, and which are recalled.

    Args:
        n_partitioners: Number of partitioners P.
    """

    def __init__(self, n_partitioners: int) -> None:
        self.size = n_partitioners
        self._sent: dict[int, dict[int, int]] = {}
        self._taken: dict[int, dict[int, int]] = {}
        self._split: dict[int, Ints] = {}

    def sent(self, member: int, round: int, at: int) -> None:
        """A partitioner made its message when it had routed its own of the first ``at`` tuples."""
        self._sent.setdefault(round, {})[member] = at

    def received(self, member: int, round: int, at: int, split: Ints | None) -> None:
        """A partitioner received an answer when ``at`` tuples had passed."""
        self._taken.setdefault(round, {})[member] = at
        if split is not None:
            self._split[round] = split

    def tables(self) -> list[Table]:
        """The rounds of which all partitioners were heard and all received the answer, in their order."""
        return [
            Table(min(self._sent[number].values()), max(self._taken[number].values()), split)
            for number, split in sorted(self._split.items())
            if len(self._sent.get(number, ())) == len(self._taken[number]) == self.size
        ]


def recalled(tables: list[Table], end: int, deadline: int) -> Ints | None:
    """Keys that the window up to tuple ``end`` must not forward; None if it must not forward any.

    Args:
        tables: See `Forwarding.tables`.
        end: Tuples of the stream up to the end of the window's last slide.
        deadline: Tuples up to the end of the slide after it, when results go out.
    """
    return next((t.split for t in tables if t.covers >= end and t.known <= deadline), None)
