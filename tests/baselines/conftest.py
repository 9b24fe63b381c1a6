"""What the tests of the heuristics share: times, keys with given candidates, and loads by definition."""

import math
from collections import deque
from fractions import Fraction
from itertools import count

import numpy as np
import pytest

from dalton.envs.hashing import candidates, family


@pytest.fixture
def ticking():
    """Times with ties and slide edges, half a second apart on average, and some gaps."""

    def make(length, seed=0, gaps=(3.0, 10.0, 40.0, 1_000.0)):
        rng = np.random.default_rng(seed + 1)
        waits = rng.integers(0, 3, length) / 2
        waits[rng.choice(length, len(gaps), replace=False)] += gaps
        return np.cumsum(waits) - 7.5

    return make


@pytest.fixture
def keys_with():
    """The least keys whose first hashed candidates are the given ones; equal wishes get different keys."""

    def search(wanted, n, seed=0, first=0):
        found = [None] * len(wanted)
        members = family(seed, max(map(len, wanted)))
        for key in count(first):
            hashed = candidates(np.array([key]), members, n)[:, 0].tolist()
            for i, wish in enumerate(wanted):
                if found[i] is None and hashed[: len(wish)] == list(wish):
                    found[i] = key
                    break
            if None not in found:
                return found
        raise AssertionError

    return search


class Tally:
    """What was sent within the window, by definition: its slide and the W/s - 1 before it."""

    def __init__(self, n, window=None):
        self.n, self.window, self.position = n, window, 0
        self.kept = deque()
        self.load = [0] * n
        self.slide = 0

    def arrive(self, time=None):
        """A tuple arrives: move to its slide; returns how many slides have passed."""
        before, first = self.slide, self.position == 0
        if self.window is not None:
            now = time if self.window.get("by") == "time" else self.position
            length = self.window.get("slide", self.window["size"])
            self.slide = math.floor(Fraction(now) / Fraction(length))
            oldest = self.slide - round(self.window["size"] / length)
            while self.kept and self.kept[0][0] <= oldest:
                self.load[self.kept.popleft()[2]] -= 1
        self.position += 1
        return 0 if first else self.slide - before

    def send(self, key, worker):
        self.kept.append((self.slide, key, worker))
        self.load[worker] += 1

    def holders(self, key):
        return {worker for _, k, worker in self.kept if k == key}

    def cardinality(self, worker):
        return len({k for _, k, w in self.kept if w == worker})


@pytest.fixture
def tally():
    return Tally


class Plan:
    """Parts of keys for workers with a room each, and the tuples of a batch dealt out by it."""

    def __init__(self, n, capacity):
        self.room = [capacity] * n
        self.parts = {}

    def put(self, key, worker, size):
        self.parts.setdefault(key, []).extend([worker] * size)
        self.room[worker] -= size

    def fit(self, key, preferred, size, tight):
        """All to the preferred worker, else to another with room for all, else fill the roomiest first.

        The other one is that with the least room if ``tight``, else the next; so are ties decided.
        """
        n = len(self.room)
        around = [(preferred + step) % n for step in range(n)]
        while size:
            sufficient = [w for w in around if self.room[w] >= size]
            if not sufficient:
                worker = max(around, key=lambda w: self.room[w])
            elif preferred in sufficient or not tight:
                worker = sufficient[0]
            else:
                worker = min(sufficient, key=lambda w: self.room[w])
            part = min(size, self.room[worker])
            self.put(key, worker, part)
            size -= part

    def deal(self, keys):
        """The tuples of a key go to its parts in turn."""
        left = {key: iter(workers) for key, workers in self.parts.items()}
        return [next(left[key]) for key in keys]


@pytest.fixture
def plan():
    return Plan
