"""What the tests of the agents share: keys with a given hashed worker, bandit and window in Python."""

import math
import sys
import warnings
from collections import Counter, defaultdict, deque
from fractions import Fraction
from itertools import count

import numpy as np
import pytest

from dalton.envs.hashing import candidates, family

MASK = 2**64 - 1


@pytest.fixture
def homes():
    """The hashed worker of every key."""

    def hashed(keys, n, seed=0):
        return candidates(np.asarray(keys, np.int64), family(seed, 1), n)[0].tolist()

    return hashed


@pytest.fixture
def keys_at(homes):
    """The least keys whose hashed workers are the given ones; equal wishes get different keys."""

    def search(wanted, n, seed=0):
        found = [None] * len(wanted)
        for key in count():
            (home,) = homes([key], n, seed)
            for i, wish in enumerate(wanted):
                if found[i] is None and home == wish:
                    found[i] = key
                    break
            if None not in found:
                return found
        raise AssertionError

    return search


def mix(x):
    """splitmix64's finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


class Bandit:
    """Values, choice and update of hot keys (Dalton Sections 3.1 and 3.2), values by worker."""

    def __init__(
        self, n, seed=0, epsilon=0.1, epsilon_decay=0.0, gamma=0.1, p1=0.5, initial_q=-2.0, explore="uniform"
    ):
        self.n, self.epsilon, self.decay, self.gamma, self.p1 = n, epsilon, epsilon_decay, gamma, p1
        self.initial, self.rule = initial_q, explore
        self.state = mix((mix(seed) + 16) & MASK)  # generator 16 of a seed
        self.values, self.visits = {}, {}

    def draw(self):
        """Knuth's MMIX generator, its upper 53 bits as a fraction."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 11) / 2**53

    def forget(self, key):
        self.values[key], self.visits[key] = [self.initial] * self.n, 0

    def explore(self, rule, load, holders, share):
        if rule == "least_loaded" or (rule == "share" and len(holders) < math.ceil(share) + 4):
            return load.index(min(load))
        if rule == "share":
            return min(sorted(holders), key=lambda w: load[w])
        if rule == "fragments" and holders:
            return sorted(holders)[int(self.draw() * len(holders))]
        return int(self.draw() * self.n)

    def choose(self, key, home, load, holders, share, max_split=None):
        values, visits = self.values[key], self.visits[key]
        self.visits[key] += 1
        if self.draw() * (1 + self.decay * visits) < self.epsilon:
            capped = max_split is not None and len(holders) >= max_split
            return self.explore("fragments" if capped else self.rule, load, holders, share)
        # max() returns the first of the largest: ties from the hashed worker on.
        return max(((home + j) % self.n for j in range(self.n)), key=lambda w: values[w])

    def learn(self, key, worker, load, total, fragments):
        """Eq. 3 to 5; load and total include the tuple."""
        average = total / self.n
        balance = (load - average) / max(load, average)
        reward = -(self.p1 * balance + (1 - self.p1) * fragments / self.n)
        self.values[key][worker] += self.gamma * (reward - self.values[key][worker])
        return reward


@pytest.fixture
def bandit():
    return Bandit


class Held:
    """Load and holders of the keys within the window, by definition: its slide and the W/s - 1 before it."""

    def __init__(self, n, size, slide):
        self.length, self.slides = Fraction(slide), round(size / slide)
        self.load, self.kept, self.slide = [0] * n, deque(), None
        self.holding = defaultdict(Counter)

    def arrive(self, now):
        """Move to the slide of ``now``; whether that is another one."""
        before, self.slide = self.slide, math.floor(Fraction(now) / self.length)
        while self.kept and self.kept[0][0] <= self.slide - self.slides:
            _, key, worker = self.kept.popleft()
            self.load[worker] -= 1
            self.holding[key][worker] -= 1
        return before not in (None, self.slide)

    def holders(self, key):
        return {worker for worker, tuples in self.holding[key].items() if tuples}

    def send(self, key, worker):
        self.kept.append((self.slide, key, worker))
        self.load[worker] += 1
        self.holding[key][worker] += 1


@pytest.fixture
def held():
    return Held


@pytest.fixture(scope="session")
def rllib():
    """RLlib, whose import warns of what it imports itself; warnings of its use are for the tests to decide.

    With it comes absl, whose log handler keeps the standard error of the moment, here a file of pytest's, and
    closes it as soon as anybody configures logging anew.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import absl.logging
        import ray.rllib
    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
    return ray.rllib
