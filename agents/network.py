"""A trained network as arrays: the file it is kept in, and its forward pass in a kernel.

Neither Ray nor torch is needed to route with a policy: training writes the weights beside the library's own
checkpoint, as ``policy.npz`` (arrays, no pickle) and ``policy.json`` (what they belong to).
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError, check_choice, check_int, check_real, shown
from dalton.envs.kernel import kernel

FORMAT = 1
KINDS = ("stream", "batch")
HEADER, ARRAYS = "policy.json", "policy.npz"
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


class Network(NamedTuple):
    """Fully connected layers, y = ReLU(x W + b), without ReLU after the last."""

    sizes: NDArray[np.int64]
    """Width of the input and of every layer."""
    weights: NDArray[np.float32]
    """All W, ``(in, out)`` each, one after the other."""
    biases: NDArray[np.float32]
    """All b, one after the other."""
    values: NDArray[np.float32]
    """``(2, widest)`` scratch: the input is laid in row 0."""


def network(layers: list[Layer]) -> Network:
    """The network of ``(W, b)`` per layer."""
    sizes = np.array([len(layers[0][0]), *(len(bias) for _, bias in layers)])
    return Network(
        sizes,
        np.concatenate([weights.ravel() for weights, _ in layers]),
        np.concatenate([bias for _, bias in layers]),
        np.zeros((2, sizes.max()), np.float32),
    )


@kernel
def forward(net: Any) -> Any:
    """Take the input in row 0 of ``values`` through all layers; returns the row that holds the output.

    Inputs one by one, so that the inner loop runs over independent sums, which vectorises without changing
    the order of any of them. Zeros, as most fragments and half of what ReLU lets through, cost nothing.
    """
    sizes, weights, biases, values = net
    row, at, first = 0, 0, 0
    for layer in range(1, len(sizes)):
        width = sizes[layer]
        x, y = values[row], values[1 - row]
        for j in range(width):
            y[j] = biases[first + j]
        for i in range(sizes[layer - 1]):
            if x[i] != 0.0:
                column = weights[at + i * width : at + (i + 1) * width]
                for j in range(width):
                    y[j] += x[i] * column[j]
        if layer < len(sizes) - 1:
            for j in range(width):
                y[j] = max(y[j], np.float32(0.0))
        at += sizes[layer - 1] * width
        first += width
        row = 1 - row
    return row


@kernel
def choose(net: Any) -> Any:
    """The first action with the largest output, for the input in row 0 of ``values``."""
    out = net.values[forward(net)]
    best = 0
    for j in range(1, net.sizes[len(net.sizes) - 1]):
        if out[j] > out[best]:
            best = j
    return best


@dataclass(frozen=True)
class Policy:
    """A trained policy: its network, and what it must know to observe as in training.

    Args:
        kind: ``stream`` (a worker per tuple) or ``batch`` (a split table per micro-batch).
        n_workers: Number of workers n.
        hot_factor: c in the threshold 1 / (c n) of a hot key.
        layers: W, ``(in, out)``, and b, ``(out,)``, of every layer.
        only_hot: Whether cold keys are hashed, without asking the network.
        quantum: q of the observed loads.
        n_rows: Rows H of the split table; 0 for a stream.
        origin: How it was trained; for people.
    """

    kind: str
    n_workers: int
    hot_factor: float
    layers: list[Layer] = field(repr=False)
    only_hot: bool = True
    quantum: int = 1
    n_rows: int = 0
    origin: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def widths(self) -> tuple[int, int]:
        """What the network takes and gives: observation and actions."""
        n, h = self.n_workers, self.n_rows
        return (2 * n + 2, n) if self.kind == "stream" else (h * n + h + 2 * n, h * n)

    def save(self, folder: Path) -> None:
        """Write the policy into a folder, which should not be looked at before it is complete."""
        names = ("kind", "n_workers", "hot_factor", "only_hot", "quantum", "n_rows", "origin")
        header = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        header["layers"] = len(self.layers)
        arrays = {f"w{i}": weights for i, (weights, _) in enumerate(self.layers)}
        arrays |= {f"b{i}": bias for i, (_, bias) in enumerate(self.layers)}
        with open(folder / ARRAYS, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        (folder / HEADER).write_text(json.dumps(header, indent=2), encoding="utf-8")


def read_policy(checkpoint: object) -> Policy:
    """Read the policy in a folder that `Policy.save` wrote.

    Raises:
        ConfigError: There is none, or it is damaged.
    """
    name = f"checkpoint = {shown(str(checkpoint) if isinstance(checkpoint, Path) else checkpoint)}"
    if not isinstance(checkpoint, str | Path) or not str(checkpoint):
        raise ConfigError(f"{name}: expected the folder of a policy, as dalton train writes it")
    folder = Path(checkpoint)
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        with open(folder / ARRAYS, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            stored = {part: arrays[part] for part in arrays.files}
    except OSError as error:
        reason = f"{Path(error.filename).name} is missing" if error.filename else shown(str(error))
        raise ConfigError(f"{name}: expected the folder of a policy; {reason}") from None
    except (ValueError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise ConfigError(f"{name}: the policy is damaged ({shown(str(error))})") from None
    try:
        return _checked(header, stored)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name}: the policy is damaged ({shown(str(error))})") from None


def load_policy(checkpoint: object, kind: str, n_workers: int) -> Policy:
    """Read a policy that must be of a kind and for a number of workers."""
    policy = read_policy(checkpoint)
    if policy.kind != kind:
        other = "rllib" if policy.kind == "stream" else "rllib_batch"
        problem = f"expected a policy for a {kind}; this one is for partitioner={other}"
        raise ConfigError(f"checkpoint = {str(checkpoint)!r}: {problem}")
    if policy.n_workers != n_workers:
        trained = f"which {checkpoint} was trained for"
        raise ConfigError(f"n_workers = {n_workers}: expected {policy.n_workers}, {trained}")
    return policy


def _checked(header: Any, stored: dict[str, NDArray[Any]]) -> Policy:
    """The policy of what a file held; raises anything but OSError if that is no policy."""
    if header["format"] != FORMAT:
        raise ConfigError(f"format = {shown(header['format'])}: expected {FORMAT}")
    count = check_int("layers", header["layers"], low=1)
    policy = Policy(
        kind=check_choice("kind", header["kind"], KINDS),
        n_workers=check_int("n_workers", header["n_workers"], low=1),
        hot_factor=check_real("hot_factor", header["hot_factor"], above=0),
        layers=[(stored[f"w{i}"], stored[f"b{i}"]) for i in range(count)],
        only_hot=bool(header["only_hot"]),
        quantum=check_int("quantum", header["quantum"], low=1),
        n_rows=check_int("n_rows", header["n_rows"], low=0),
        origin=dict(header["origin"]),
    )
    width, last = policy.widths
    for i, (weights, bias) in enumerate(policy.layers):
        if weights.dtype != np.float32 or bias.dtype != np.float32:
            raise ConfigError(f"layer {i} has type {weights.dtype}: expected float32")
        if weights.ndim != 2 or len(weights) != width or bias.shape != weights.shape[1:]:
            raise ConfigError(
                f"layer {i} has shapes {weights.shape} and {bias.shape}: expected {width} inputs"
            )
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise ConfigError(f"layer {i} has values that are not finite")
        width = len(bias)
    if width != last:
        raise ConfigError(f"{width} outputs: expected {last}")
    return policy
