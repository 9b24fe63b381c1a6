"""What a stream is like: messages, keys, p1, shares of the heaviest keys (PKG Table 1), drift."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

TENTHS = 10
HEAD = 100
"""Heaviest keys that drift is measured on."""


class Heavy(NamedTuple):
    """A key and how often it occurs."""

    key: int
    name: str | None
    messages: int
    share: float


class Tenth(NamedTuple):
    """A tenth of the messages, in the order of the stream."""

    messages: int
    leader: Heavy
    """The most frequent key, with its share of this tenth."""
    drift: float | None
    """How far the distribution is from that of the tenth before; None for the first.

    Total variation distance ½ Σ_k |p(k) - q(k)|, over the `HEAD` keys that are heaviest in the whole stream
    and all others as one: 0 is no change, 1 is no key in common. The others are one because a distance over
    rare keys would mostly measure that they are rare.
    """


class Distribution(NamedTuple):
    """What is known of a stream's keys."""

    messages: int
    keys: int
    begin: float
    """Time of the first message, in seconds."""
    end: float
    top: list[Heavy]
    """The heaviest keys, heaviest first, with their shares of the messages."""
    tenths: list[Tenth]

    @property
    def p1(self) -> float:
        """Share of the messages that the most frequent key has."""
        return self.top[0].share

    @property
    def drift(self) -> float:
        """Mean drift from a tenth to the next; 0 with fewer than two."""
        found = [tenth.drift for tenth in self.tenths if tenth.drift is not None]
        return sum(found) / len(found) if found else 0.0


class Statistics(NamedTuple):
    """What an ingest read and wrote."""

    format: str
    lines: int
    """Lines or rows read, without headers."""
    malformed: int
    reasons: dict[str, int]
    """Malformed lines by what was expected of them."""
    without_key: int
    """Well-formed lines without a key: comments, blank lines, tweets without a hashtag."""
    sample: int
    """Tuples in the sample."""
    stream: Distribution

    def to_dict(self) -> dict[str, Any]:
        """As plain mappings and lists, with p1 and the mean drift."""
        plain: dict[str, Any] = _plain(self)
        plain["stream"] = {"p1": self.stream.p1, "drift": self.stream.drift, **plain["stream"]}
        return plain


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def measure(stream: DataFrame, total: int, top: int) -> Distribution:
    """Count the keys of a stream, as a whole and in tenths, in one shuffle.

    Args:
        stream: With ``rank`` 0 .. total - 1, ``key``, ``time``, and ``name`` if keys have one.
        total: Its messages.
        top: Heaviest keys to name.
    """
    if "name" not in stream.columns:
        stream = stream.withColumn("name", F.lit(None).cast("string"))
    tenth = F.floor(F.col("rank") * TENTHS / F.lit(total))
    parts = [f"n{i}" for i in range(TENTHS)]
    counts = (
        stream.groupBy("key")
        .agg(
            F.first("name").alias("name"),
            F.count("*").alias("n"),
            F.min("time").alias("begin"),
            F.max("time").alias("end"),
            *(F.count_if(tenth == i).alias(part) for i, part in enumerate(parts)),
        )
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    try:
        whole = counts.agg(
            F.count("*").alias("keys"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            *(F.sum(part).alias(part) for part in parts),
            *(F.max(F.struct(part, "key", "name")).alias(f"leader{part}") for part in parts),
        ).first()
        assert whole is not None
        head = counts.orderBy(F.desc("n"), "key").limit(max(top, HEAD)).collect()
    finally:
        counts.unpersist()
    tenths: list[Tenth] = []
    before: list[float] = []
    for part in parts:
        messages, leader = whole[part], whole[f"leader{part}"]
        if not messages:
            continue  # a stream of fewer than ten
        shares = [row[part] / messages for row in head[:HEAD]]
        shares.append(1.0 - sum(shares))
        drift = sum(abs(p - q) for p, q in zip(shares, before, strict=True)) / 2 if before else None
        tenths.append(Tenth(messages, Heavy(leader.key, leader.name, leader[0], leader[0] / messages), drift))
        before = shares
    heavy = [Heavy(row.key, row.name, row.n, row.n / total) for row in head[:top]]
    return Distribution(total, whole.keys, whole.begin, whole.end, heavy, tenths)
