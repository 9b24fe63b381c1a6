"""Progress of long work: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

log = logging.getLogger("dalton")

PATIENCE = 2.0
"""Seconds that pass before anything is shown."""
LOG_EVERY = 30.0
"""Seconds between two lines in a log."""


@contextmanager
def progress(label: str, total: int, unit: str, *, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the amount done since its last call.

    Nothing is shown of work that takes less than two seconds.
    """
    if not show:
        yield lambda amount: None
        return
    started = last = time.monotonic()
    done = 0
    bar: Progress | None = None
    task = TaskID(0)

    def advance(amount: int) -> None:
        nonlocal done, last, bar, task
        done += amount
        now = time.monotonic()
        if not sys.stderr.isatty():
            if now - last > LOG_EVERY:
                last = now
                log.info("%s: %d of %d %s (%.0f %%)", label, done, total, unit, 100 * done / max(1, total))
        elif bar is not None:
            bar.update(task, completed=done)
        elif now - started > PATIENCE:
            columns = (MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
            bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *columns,
                console=Console(stderr=True),
                transient=True,
            )
            task = bar.add_task(label, total=total, completed=done)
            bar.start()

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
