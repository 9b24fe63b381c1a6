"""What the tests of the stream environment share: streams, and what an environment holds."""

import numpy as np
import pytest

from dalton.envs.workloads import Workload, make_workload


class Recorded(Workload):
    """A stream given as arrays; it has no seed."""

    name = "recorded"

    def __init__(self, *, keys, times=None):
        super().__init__(n_tuples=len(keys), arrivals="count" if times is None else "constant")
        self.keys, self.times = np.asarray(keys, np.int64), times

    def _keys(self, lo, hi):
        return self.keys[lo:hi]

    def _times(self, lo, hi, clock):
        return None if self.times is None else self.times[lo:hi], clock


@pytest.fixture
def recorded():
    return Recorded


@pytest.fixture
def skewed_keys():
    """Keys of both signs and any size, the first ones frequent."""

    def make(length, seed=0):
        rng = np.random.default_rng(seed)
        limits = np.iinfo(np.int64)
        ids = np.concatenate([[limits.min, 0, limits.max, -1], rng.integers(-(2**62), 2**62, 40)])
        shares = np.arange(1, len(ids) + 1) ** -1.3
        return rng.choice(ids, length, p=shares / shares.sum())

    return make


@pytest.fixture
def times_with_gaps():
    """Times on a grid of eighths: ties, tuples on slide edges, gaps of up to many windows."""

    def make(length, seed=0):
        rng = np.random.default_rng(seed)
        waits = rng.integers(0, 3, length) / 8.0
        waits[rng.choice(np.arange(1, length), 6, replace=False)] += [1.0, 2.5, 3.0, 4.0, 9.75, 300.0]
        return np.cumsum(waits) - 2.0

    return make


@pytest.fixture
def drawn_keys():
    """The keys of the first episode after ``reset(seed=seed)``: the stream's seed is the first draw."""

    def draw(spec, seed):
        workload = make_workload(spec, seed=int(np.random.default_rng(seed).integers(2**31)))
        return next(workload.chunks(workload.n_tuples)).keys

    return draw


@pytest.fixture
def loads_of():
    """Loads of the workers, of a single environment."""

    def loads(env):
        return env.copies.state.ring[0, 0, : env.n].tolist()

    return loads
