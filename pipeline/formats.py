"""Raw lines to keys: the text formats that are streams of keys, one function each.

A format turns a line into the columns of `Parsed`. All of it is Spark SQL: no line passes through Python.
Times are UTC unless the line says otherwise, whatever the session's time zone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

SEPARATOR = "\x01"


class Parsed(NamedTuple):
    """What a line becomes, as columns."""

    reason: Column
    """Why the line is malformed; null if it is not."""
    keys: Column
    """Array of its keys, as strings, a tuple each; empty for a comment or a tweet without hashtags."""
    time: Column | None = None
    """Seconds since 1970; None if the format has no times."""
    value: Column | None = None
    """A number; None for 1."""
    repeats: Column | None = None
    """Number c of tuples that the line stands for; None for 1."""
    span: Column | None = None
    """Seconds from ``time`` on over which these c tuples came."""
    cost: Column | None = None
    """Work per tuple; None if unknown."""


class Format(NamedTuple):
    """A text format: what its key can be, the first by default, and how a line is read.

    ``parse`` takes the line, the name of its file and what the key is.
    """

    by: tuple[str, ...]
    parse: Callable[[Column, Column, str], Parsed]
    integers: bool = False
    """Whether keys are integers, and so their own ids."""


def first_reason(*checks: tuple[Column, str]) -> Column:
    """The text of the first condition that is true, or null."""
    return F.coalesce(*(F.when(condition, F.lit(text)) for condition, text in checks), F.lit(None))


def seconds(timestamp: Column) -> Column:
    """Seconds since 1970 of a timestamp, to the microsecond."""
    return F.unix_micros(timestamp) / F.lit(1e6)


def instant(text: Column) -> Column:
    """Seconds since 1970 of an ISO date or time; UTC if the text has no zone, null if it is no time."""
    guesses = [F.concat(text, F.lit(rest)) for rest in ("Z", ":00Z", "T00:00:00Z", "")]
    times = F.coalesce(*(seconds(guess.try_cast("timestamp")) for guess in guesses))
    # A time of day without a date would be one of today.
    return F.when(text.rlike(r"^\s*[+-]?\d{4,6}-\d"), times)


def instant_of(text: Column, pattern: str) -> Column:
    """Seconds since 1970 of a time in a pattern of Spark; null if it does not fit."""
    if not any(letter in pattern for letter in "zZXxOV"):
        text, pattern = F.concat(text, F.lit(" +0000")), f"{pattern} Z"
    return seconds(F.try_to_timestamp(text, F.lit(pattern)))


def _groups(line: Column, pattern: str, count: int) -> Column:
    """The groups of a pattern that fits the whole line, else an array of another length than ``count``."""
    # One look at the line, where a call of regexp_extract per group would be as many.
    replacement = SEPARATOR.join(f"${i + 1}" for i in range(count))
    groups = F.split(F.regexp_replace(line, f"^(?:{pattern})$", replacement), SEPARATOR)
    return F.when(~line.contains(SEPARATOR), groups).otherwise(F.array(F.lit("")))


def pageviews(line: Column, file: Column, by: str) -> Parsed:
    """Hourly page views of Wikimedia: ``en.m Main_Page 42 0``, the hour in the file's name.

    The key is the page with its project (``en.m Main_Page``), or the language: the project up to the first
    point. The name tells the end of the hour.
    """
    groups = _groups(line, r"(\S+) (\S+) (\d{1,15}) \d+", 3)
    project, page = F.get(groups, F.lit(0)), F.get(groups, F.lit(1))
    count = F.get(groups, F.lit(2)).try_cast("bigint")
    end = instant_of(F.regexp_extract(file, r"(\d{8}-\d{6})", 1), "yyyyMMdd-HHmmss")
    reason = first_reason(
        (F.size(groups) != 3, "expected project, page, views and bytes"),
        (end.isNull(), "expected the hour in the name of the file, as in pageviews-20240131-130000.gz"),
        (count < 1, "expected at least one view"),
    )
    key = F.concat_ws(" ", project, page) if by == "page" else F.substring_index(project, ".", 1)
    return Parsed(reason, F.array(key), end - 3600, repeats=count, span=F.lit(3600.0))


def clickstream(line: Column, file: Column, by: str) -> Parsed:
    """Monthly clickstream of Wikipedia: source, target, type and count, the month in the file's name."""
    fields = F.split(line, "\t")
    count = F.get(fields, F.lit(3)).try_cast("bigint")
    month = F.regexp_replace(F.regexp_extract(file, r"(\d{4}[-_]\d{2})", 1), "_", "-")
    first = F.concat(month, F.lit("-01T00:00:00Z")).try_cast("timestamp")
    reason = first_reason(
        (F.size(fields) != 4, "expected source, target, type and count between tabs"),
        (
            first.isNull(),
            "expected the month in the name of the file, as in clickstream-enwiki-2024-01.tsv.gz",
        ),
        (count.isNull() | (count < 1), "expected a whole number >= 1 as count"),
    )
    # A month in UTC has whole days, whatever the session's zone thinks of summer time.
    days = F.dayofmonth(F.last_day(F.concat(month, F.lit("-01")).try_cast("date")))
    key = F.get(fields, F.lit(1 if by == "target" else 0))
    return Parsed(reason, F.array(key), seconds(first), repeats=count, span=days * F.lit(86400.0))


WORD = r"[\p{L}\p{M}\p{N}_]"


def tweets(line: Column, file: Column, by: str) -> Parsed:
    """Tweets as JSON lines: the keys are their words, hashtags or cashtags, each occurrence a tuple.

    The text is ``text``, or ``full_text`` also of an extended tweet; the time ``created_at`` in the forms of
    both versions of Twitter's interface, ``time``, or ``timestamp_ms``. Words and hashtags are in lower case,
    words without addresses of pages, cashtags in upper case.
    """
    del file
    tweet = F.try_parse_json(line)

    def part(path: str) -> Column:
        return F.try_variant_get(tweet, f"$.{path}", "string")

    text = F.coalesce(part("extended_tweet.full_text"), part("full_text"), part("text"))
    created = part("created_at")
    # Spark parses no days of the week: "Wed Aug 27 13:08:45 +0000 2008" without its first four letters.
    old = instant_of(F.substring(created, 5, 26), "MMM dd HH:mm:ss Z yyyy")
    stamp = part("timestamp_ms").try_cast("double") / F.lit(1e3)
    time = F.coalesce(instant(created), old, instant(part("time")), part("time").try_cast("double"), stamp)
    if by == "word":
        plain = F.regexp_replace(F.lower(text), r"https?://\S+", " ")
        keys = F.regexp_extract_all(plain, F.lit(rf"((?:{WORD}|')+)"), 1)
    elif by == "hashtag":
        found = F.regexp_extract_all(F.lower(text), F.lit(rf"(?<!{WORD}|&)[#＃]({WORD}+)"), 1)
        keys = F.filter(found, lambda tag: tag.rlike(r"\p{L}"))
    else:
        ticker = rf"(?<!{WORD}|\$)\$([A-Z]{{1,6}}(?:[._][A-Z]{{1,2}})?)(?!{WORD})"
        keys = F.regexp_extract_all(F.upper(text), F.lit(ticker), 1)
    reason = first_reason(
        (tweet.isNull(), "expected JSON"),
        (text.isNull(), "expected a text"),
        (time.isNull(), "expected a time"),
    )
    return Parsed(reason, keys, time)


def _edges(line: Column, by: str, timed: bool) -> Parsed:
    third = r"\s+(-?\d+(?:\.\d+)?)\s*" if timed else r"(?:\s.*)?()"
    groups = _groups(F.trim(line), rf"(-?\d+)\s+(-?\d+){third}", 3)
    node = F.get(groups, F.lit(0 if by == "source" else 1)).try_cast("bigint")
    comment = F.trim(line).rlike("^[#%]")
    what = "source, target and time" if timed else "source and target"
    reason = first_reason(
        (~comment & (F.size(groups) != 3), f"expected {what}"),
        (~comment & node.isNull(), "expected a node below 2**63"),
    )
    keys = F.when(comment, F.array().cast("array<string>")).otherwise(F.array(node.cast("string")))
    return Parsed(reason, keys, F.get(groups, F.lit(2)).try_cast("double") if timed else None)


def edges(line: Column, file: Column, by: str) -> Parsed:
    """Edge list of SNAP: ``source target``, further columns ignored; # begins a comment."""
    del file
    return _edges(line, by, timed=False)


def temporal_edges(line: Column, file: Column, by: str) -> Parsed:
    """Temporal edge list of SNAP: ``source target time``, the time in seconds since 1970."""
    del file
    return _edges(line, by, timed=True)


# Lazy dots, not alternatives in a loop: Java's matcher would recurse for every letter of a long request.
ACCESS = r'(\S+) \S+ .*? ?\[([^\]]+)\] "(.*?)" (?:\d{3}) (\d+|-)(?: .*)?'


def access_log(line: Column, file: Column, by: str) -> Parsed:
    """HTTP access log, common or combined: the key is the host or the URL, the value the bytes."""
    del file
    groups = _groups(line, ACCESS, 4)
    host, request, size = (F.get(groups, F.lit(i)) for i in (0, 2, 3))
    time = instant_of(F.get(groups, F.lit(1)), "dd/MMM/yyyy:HH:mm:ss Z")
    url = F.regexp_extract(request, r"^[A-Za-z]+ (\S+)(?: HTTP/\S+)?$", 1)
    checks = [
        (F.size(groups) != 4, "expected the common or combined log format"),
        (time.isNull(), "expected a time as 10/Oct/2000:13:55:36 -0700"),
    ]
    if by == "url":
        checks.append((url == "", "expected a request with a URL"))
    value = F.when(size == "-", F.lit(0.0)).otherwise(size.try_cast("double"))
    return Parsed(first_reason(*checks), F.array(host if by == "host" else url), time, value)


FORMATS = {
    "pageviews": Format(("page", "language"), pageviews),
    "clickstream": Format(("target", "source"), clickstream),
    "tweets": Format(("word", "hashtag", "cashtag"), tweets),
    "edges": Format(("source", "target"), edges, integers=True),
    "temporal_edges": Format(("source", "target"), temporal_edges, integers=True),
    "access_log": Format(("host", "url"), access_log),
}
