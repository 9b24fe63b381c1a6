"""A learned policy as one file: the split table and the warm state of the agent it is from.

The file has no pickle in it and is read without running anything:

    8 bytes   ``DALTON`` and two zeros
    4 bytes   version of the format, little-endian
    32 bytes  SHA-256 of the rest
    rest      a NumPy ``.npz`` of plain arrays; ``meta`` is JSON as bytes

The checksum finds accidents, not forgery: whoever can write the file can write a checksum.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.agents.dalton import Dalton
from dalton.agents.member import Member
from dalton.agents.microbatch import DaltonMicroBatch
from dalton.agents.qtable import lately
from dalton.agents.split_table import SplitTable, check_split
from dalton.agents.statistics import GIVEN, KIND
from dalton.envs.errors import ConfigError, check_int, check_real, shown
from dalton.envs.hotness import LEAST, NUMBER
from dalton.envs.window import BASE, SLIDE, TICKS

MAGIC, VERSION = b"DALTON\0\0", 1
HEADER = struct.Struct("<8sI32s")
KINDS: dict[str, type[Dalton]] = {"dalton": Dalton, "dalton_batch": DaltonMicroBatch, "member": Member}
# Of the last batch only.
FLEETING = ("forward", "rewards")
SLIVER = 0.01
"""Share of a worker's mean load below which a key is not worth one more fragment."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Policy:
    """What an agent has learned.

    Freezing the Q-table alone would send each hot key to the one worker with the largest value: Dalton splits
    a key because its values keep moving. So a policy is how the agent *spread* each hot key lately, for jobs
    that decide without learning, and the whole state of the agent, for those that learn on.
    """

    n_workers: int
    seed: int
    split: dict[int, dict[int, float]] = field(repr=False)
    """Hot keys, and for each the weights of its workers, of sum 1; every other key is hashed."""
    kind: str
    """Class of the agent: a key of KINDS."""
    params: dict[str, Any] = field(repr=False)
    """The agent's parameters."""
    scalars: dict[str, Any] = field(repr=False)
    arrays: Arrays = field(repr=False)
    """The agent's state."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", check_split(self.split, self.n_workers))

    @classmethod
    def of(cls, agent: Dalton, *, sliver: float = SLIVER) -> Policy:
        """The policy of an agent as it is now.

        Args:
            agent: ``dalton``, ``dalton_share`` or ``dalton_batch``.
            sliver: Fragments with less than this share of a worker's mean load go to the key's other workers.
                Exploration leaves such; they cost a pair each and carry next to nothing.
        """
        kinds = [name for name, kind in KINDS.items() if type(agent) is kind]
        if not kinds:
            raise ConfigError(f"agent = {type(agent).__name__}: expected one of {', '.join(KINDS)}")
        check_real("sliver", sliver, low=0)
        scalars = {
            name: value
            for name, value in vars(agent).items()
            if name not in agent.params and isinstance(value, bool | int | float)
        }
        arrays = {name: array.copy() for name, array in _arrays(agent)}
        params = {**agent.params, "window": asdict(agent.window) if agent.window else None}
        split = spread(agent, sliver)
        return cls(agent.n_workers, agent.seed, split, kinds[0], params, scalars, arrays)

    def check_workers(self, n_workers: int | None) -> int:
        """The policy's number of workers, if it is the one asked for."""
        if n_workers is not None and check_int("n_workers", n_workers, low=1) != self.n_workers:
            raise ConfigError(
                f"n_workers = {n_workers}: expected {self.n_workers}, as the policy was trained"
            )
        return self.n_workers

    def partitioner(self, task: int = 0) -> SplitTable:
        """The frozen policy, as input partition ``task`` of a Spark job decides by it."""
        return SplitTable(n_workers=self.n_workers, seed=self.seed, split=self.split, task=task)

    def agent(self, task: int = 0) -> Dalton:
        """The agent, going on from where it was; tasks other than 0 draw other random numbers."""
        agent = KINDS[self.kind](**self.params)
        if "pace" in self.arrays:
            agent.measure("time", TICKS / self.arrays["pace"])
        _restore(agent, self.arrays)
        for name, value in self.scalars.items():
            setattr(agent, name, value)
        agent.random += np.uint64(task) * np.uint64(0x9E3779B97F4A7C15)
        return agent

    @cached_property
    def version(self) -> str:
        """Twelve digits that tell this policy from any other."""
        return hashlib.sha256(self._payload()).hexdigest()[:12]

    def _payload(self) -> bytes:
        meta = {
            "n_workers": self.n_workers,
            "seed": self.seed,
            "kind": self.kind,
            "params": self.params,
            "scalars": self.scalars,
        }
        pairs = [(key, w, weight) for key, row in self.split.items() for w, weight in row.items()]
        split: Arrays = {
            "split.key": np.array([pair[0] for pair in pairs], np.int64),
            "split.worker": np.array([pair[1] for pair in pairs], np.int32),
            "split.weight": np.array([pair[2] for pair in pairs], np.float64),
        }
        text: NDArray[Any] = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
        state: Arrays = {f"state.{name}": array for name, array in self.arrays.items()}
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, meta=text, **split, **state)
        return content.getvalue()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, under another name until it is complete."""
        target = Path(path)
        payload = self._payload()
        target.parent.mkdir(parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(HEADER.pack(MAGIC, VERSION, hashlib.sha256(payload).digest()) + payload)
            os.replace(draft, target)
        finally:
            Path(draft).unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a file that `save` wrote.

        Raises:
            ConfigError: There is none, or it is damaged, of another version, or not a policy.
        """
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"policy = {path}: {error.strerror}; expected a file of `dalton export`"
            ) from None
        if len(raw) < HEADER.size or not raw.startswith(MAGIC):
            raise ConfigError(f"policy = {path}: not a policy; expected a file of `dalton export`")
        _, version, digest = HEADER.unpack_from(raw)
        if version != VERSION:
            raise ConfigError(f"policy = {path}: has version {version}; expected version {VERSION}")
        payload = raw[HEADER.size :]
        if hashlib.sha256(payload).digest() != digest:
            raise ConfigError(f"policy = {path}: damaged, its checksum is wrong; expected it as it was saved")
        try:
            return cls._from_payload(payload)
        except ConfigError as error:
            raise ConfigError(f"policy = {path}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise ConfigError(f"policy = {path}: malformed ({shown(error)})") from None

    @classmethod
    def _from_payload(cls, payload: bytes) -> Policy:
        with np.load(io.BytesIO(payload), allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        meta = json.loads(arrays["meta"].tobytes())
        n = check_int("n_workers", meta["n_workers"], low=1)
        split: dict[int, dict[int, float]] = {}
        columns = (arrays[f"split.{name}"].tolist() for name in ("key", "worker", "weight"))
        for key, worker, weight in zip(*columns, strict=True):
            split.setdefault(key, {})[worker] = weight
        if meta["kind"] not in KINDS:
            raise ConfigError(f"kind = {shown(meta['kind'])}: expected one of {', '.join(KINDS)}")
        state = {name.removeprefix("state."): a for name, a in arrays.items() if name.startswith("state.")}
        policy = cls(n, meta["seed"], split, meta["kind"], meta["params"], meta["scalars"], state)
        policy.agent()
        return policy


def spread(agent: Dalton, sliver: float) -> dict[int, dict[int, float]]:
    """How an agent spread its hot keys lately: tuples by worker, those of older slides faded, of sum 1."""
    t, n = agent.qtable, agent.n_workers
    window = int(agent.span[NUMBER])
    clock = agent.loads.clock
    slide = window if agent.stats.mode[KIND] == GIVEN else int(clock[SLIDE] - clock[BASE])
    # The share of keys that are hot only since the present STATS_WIN is not known yet: that of the threshold.
    least = agent.span[LEAST] * agent.hot_factor
    split, sent = {}, np.empty(n)
    for row in np.flatnonzero(t.until >= window):
        lately(t, row, slide, sent)
        if sent.sum() <= 0:
            continue
        busy = max(t.share[row], t.tuples[row] / least if np.isfinite(least) and least > 0 else 0.0)
        weights = sent / sent.sum()
        kept = (weights * busy >= sliver) | (weights == weights.max())
        chosen = np.flatnonzero(kept & (weights > 0))
        if len(chosen) > 1 or chosen[0] != t.home[row]:
            total = weights[chosen].sum()
            split[int(t.keys[row])] = {int(w): float(weights[w] / total) for w in chosen}
    return split


def _arrays(owner: Any, path: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays of an agent, by their path; named tuples are walked through."""
    named = owner._asdict() if hasattr(owner, "_asdict") else vars(owner)
    for name, value in named.items():
        if isinstance(value, np.ndarray) and name not in FLEETING:
            yield f"{path}{name}", value
        elif hasattr(value, "_asdict"):
            yield from _arrays(value, f"{path}{name}.")


def _restore(agent: Dalton, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set all arrays of a new agent, if they are what such an agent has."""
    fresh = dict(_arrays(agent))
    if set(fresh) != set(arrays):
        raise ConfigError(f"state: expected the arrays of {type(agent).__name__}")
    for name, array in arrays.items():
        own = fresh[name]
        # Tables grow, but not in the number of workers or of slides; kernels do not check their bounds.
        fits = array.ndim == own.ndim and array.shape[1:] == own.shape[1:] and len(array) >= len(own)
        if array.dtype != own.dtype or not fits:
            raise ConfigError(
                f"state of {name}: has type {array.dtype} and shape {array.shape}, "
                f"expected {own.dtype} and {own.shape} or longer"
            )
    for name in {path.partition(".")[0] for path in arrays}:
        setattr(agent, name, _filled(getattr(agent, name), name, arrays))


def _filled(value: Any, path: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return np.array(arrays[path])
    return type(value)(*(_filled(getattr(value, name), f"{path}.{name}", arrays) for name in value._fields))
