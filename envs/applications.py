"""Applications that run on the workers, to see what splitting a key does to answers and memory.

The contract is three steps: the workers *observe* the tuples routed to them and keep partial results; these
are *merged*; the merged *answer* is compared with that of a single worker which saw everything (PKG Section
4, Dalton Section 5). `ApplicationMeter` does this beside a simulation, once in every aggregation period.

A tuple has a value besides its key: its class as the whole part, a number x in [0, 1) as the fraction
(`tuple_values`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.cells import Cells
from dalton.envs.draws import unit
from dalton.envs.errors import ConfigError, check_choice, check_int, shown
from dalton.envs.kernel import kernel
from dalton.envs.metrics import mean_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Workers = NDArray[np.int32]

APPLICATIONS = {
    "word_count": "dalton.envs.word_count.WordCount",
    "naive_bayes": "dalton.envs.word_count.NaiveBayes",
    "heavy_hitters": "dalton.envs.heavy_hitters.HeavyHitters",
    "decision_tree": "dalton.envs.decision_tree.DecisionTree",
    "correlation_clustering": "dalton.envs.correlation_clustering.CorrelationClustering",
}
CLASSES = 2
VALUES, THRESHOLDS = np.uint64(0xA77217), np.uint64(0x7E5705)
CERTAINTY = 0.9


@kernel
def _values(keys: Any, start: Any, seed: Any, out: Any) -> None:
    for i in range(len(keys)):
        x = unit(seed, 2 * (start + i))
        likely = unit(seed, 2 * (start + i) + 1) < CERTAINTY
        above = x >= unit(THRESHOLDS, keys[i])
        out[i] = x + (1.0 if above == likely else 0.0)


def tuple_values(keys: Ints, start: int, seed: np.uint64 = VALUES) -> Floats:
    """Values of tuples ``start .. start + m - 1``, shape ``(m,)``: a class, 0 or 1, plus x uniform in [0, 1).

    A key k has a threshold θ(k) in [0, 1): the class is 1 with probability 0.9 if x ≥ θ(k), else with 0.1. So
    keys differ in how often they go with a class, and a test of x against θ(k) tells the classes apart.
    """
    out = np.empty(len(keys))
    _values(keys, start, seed, out)
    return out


class Application(ABC):
    """What the workers compute of the tuples routed to them, until the period ends (`reset`).

    Args:
        n_workers: Number of workers n.
    """

    def __init__(self, *, n_workers: int) -> None:
        self.n_workers = check_int("n_workers", n_workers, low=1)

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def single(self) -> Application:
        """What the answer is compared with: the same on one worker."""
        return type(self)(**{**self.params, "n_workers": 1})

    @abstractmethod
    def reset(self) -> None:
        """Forget all partial results."""

    @abstractmethod
    def observe(self, keys: Ints, workers: Workers, values: Floats) -> None:
        """Take the tuples of a batch, shapes ``(m,)``, each on its worker."""

    @property
    @abstractmethod
    def memory(self) -> Ints:
        """Counters of every worker, shape ``(n,)``: what its partial results hold."""

    @property
    @abstractmethod
    def work(self) -> Ints:
        """Operations of every worker since `reset`, shape ``(n,)``."""

    @property
    @abstractmethod
    def merged(self) -> int:
        """Partial results that the next answer merges."""

    @abstractmethod
    def error(self, single: Any) -> float:
        """How far the merged answer is from that of `single`, which has observed the same; 0 is equal."""


class CellApplication(Application):
    """An application with one partial result per key, worker and class: a cell."""

    classes: ClassVar[int] = CLASSES
    cells: Cells
    tuples: Ints

    def __init__(self, *, n_workers: int) -> None:
        super().__init__(n_workers=n_workers)
        self.reset()

    def reset(self) -> None:
        """Forget all partial results."""
        self.cells = Cells(self.n_workers, self.classes)
        self.tuples = np.zeros(self.n_workers, np.int64)

    def observe(self, keys: Ints, workers: Workers, values: Floats) -> None:
        """Take the tuples of a batch, shapes ``(m,)``, each on its worker."""
        self._observe(self.cells.rows(keys, workers, values.astype(np.int64)), values)
        self.tuples += np.bincount(workers, minlength=self.n_workers)

    @abstractmethod
    def _observe(self, rows: Ints, values: Floats) -> None:
        """Add tuples to their cells."""

    @property
    def memory(self) -> Ints:
        """Cells of every worker, shape ``(n,)``."""
        return np.bincount(self.cells.workers, minlength=self.n_workers)

    @property
    def work(self) -> Ints:
        """Tuples of every worker, shape ``(n,)``."""
        return self.tuples

    @property
    def merged(self) -> int:
        """Cells on all workers."""
        return self.cells.used


class Period(NamedTuple):
    """What an application held and answered at the end of an aggregation period."""

    slide: int
    """Number of the slide with which the period ended."""
    tuples: int
    """Tuples in it."""
    error: float
    """How far the answer is from that of a single worker."""
    memory: int
    """Counters on all workers."""
    memory_max: int
    """Counters on the worker that has most."""
    memory_single: int
    """Counters of the single worker."""
    merged: int
    """Partial results merged."""
    work: int
    """Operations of all workers."""
    work_max: int
    """Operations of the worker that has most: the others wait for it."""


@dataclass(frozen=True)
class Answers:
    """What an application answered, period by period."""

    n_workers: int
    periods: list[Period] = field(repr=False)

    def column(self, name: str) -> Floats:
        """One quantity of all periods, shape ``(periods,)``."""
        return np.array([getattr(period, name) for period in self.periods], np.float64)

    @property
    def imbalance(self) -> Floats:
        """Max over mean operations of the workers, of all periods, shape ``(periods,)``."""
        return self.column("work_max") * self.n_workers / np.maximum(self.column("work"), 1.0)

    def summary(self) -> dict[str, float]:
        """Means over periods; memory also relative to a single worker, work as max/mean over workers."""
        return {
            "answer_error": mean_of(self.column("error")),
            "answer_memory": mean_of(self.column("memory")),
            "answer_memory_max": mean_of(self.column("memory_max")),
            "answer_memory_ratio": mean_of(
                self.column("memory") / np.maximum(self.column("memory_single"), 1.0)
            ),
            "answer_merged": mean_of(self.column("merged")),
            "answer_work": mean_of(self.imbalance),
        }


ApplicationSpec = str | Mapping[str, Any] | None


def make_application(spec: ApplicationSpec, n_workers: int) -> tuple[Application, int | None] | None:
    """An application and its period in slides, from a name or a mapping with ``name``; None stays None.

    ``every`` is the aggregation period in slides, None for one window; other fields are the application's.
    """
    if spec is None:
        return None
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping) or "name" not in given:
        raise ConfigError(f"application = {shown(spec)}: expected a name or a mapping with a name")
    name = check_choice("application.name", given["name"], APPLICATIONS)
    module, _, cls = APPLICATIONS[name].rpartition(".")
    kind: type[Application] = getattr(import_module(module), cls)
    own = {key: value for key, value in given.items() if key not in ("name", "every")}
    allowed = [parameter for parameter in inspect.signature(kind).parameters if parameter != "n_workers"]
    for key in own:
        check_choice("key of application", key, [*allowed, "every"])
    every = given.get("every")
    return kind(n_workers=n_workers, **own), None if every is None else check_int(
        "application.every", every, low=1
    )


class ApplicationMeter:
    """Runs an application beside a simulation and compares its answers with those of a single worker."""

    def __init__(self, application: Application, every: int) -> None:
        self.application, self.every = application, every
        self.reference = application.single()
        self.periods: list[Period] = []
        self._tuples = 0
        self._begun: int | None = None
        self._slide = 0

    def observe(self, slide: int, start: int, keys: Ints, workers: Workers) -> Ints | None:
        """Take tuples ``start .. start + m - 1`` of the stream, all of one slide, and where they went.

        Returns:
            If a period ended before them, the counters that each worker has sent, shape ``(n,)``.
        """
        sent = None
        if self._begun is not None and slide // self.every != self._begun:
            sent = self._close()
        self._begun, self._slide = slide // self.every, slide
        values = tuple_values(keys, start)
        self.application.observe(keys, workers, values)
        self.reference.observe(keys, np.zeros(len(keys), np.int32), values)
        self._tuples += len(keys)
        return sent

    def _close(self) -> Ints:
        done, alone = self.application, self.reference
        memory, work = done.memory, done.work
        self.periods.append(
            Period(
                slide=self._slide,
                tuples=self._tuples,
                error=done.error(alone),
                memory=int(memory.sum()),
                memory_max=int(memory.max()),
                memory_single=int(alone.memory.sum()),
                merged=done.merged,
                work=int(work.sum()),
                work_max=int(work.max()),
            )
        )
        done.reset()
        alone.reset()
        self._tuples = 0
        return memory

    def result(self) -> Answers:
        """All of it, after the last slide; a period that has only begun is ended."""
        if self._tuples:
            self._close()
        return Answers(self.application.n_workers, self.periods)
