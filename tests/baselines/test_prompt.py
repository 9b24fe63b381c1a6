"""Prompt: cut frequent keys, zigzag over the blocks, then place what is left; no block above ⌈m/n⌉."""

import math
from collections import Counter

import numpy as np
import pytest

from dalton.baselines.prompt import Prompt


def test_hand_derived_decisions():
    # a five times, b twice, c once on two blocks: m = 8, K = 3, a block takes 4 and a key gives at most
    # ⌈8 / 3⌉ = 3 tuples at first. Zigzag: a -> 0 (3), b -> 1 (2), c -> 1 (1). 2 of a are left; its block 0
    # has room for 1 and no block for 2: 1 to 0, which fills it, and the last to 1.
    a, b, c = 31, 32, 33
    assert Prompt(n_workers=2).route([a, a, a, a, a, b, b, c]).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_hand_derived_zigzag():
    # Six keys with counts 6 ... 1 on three blocks: m = 21, a block takes 7, S_cut = ⌈21 / 6⌉ = 4. There:
    # 6 -> 0 (4), 5 -> 1 (4), 4 -> 2 (4); back: 3 -> 2 (3, full), 2 -> 1 (2, room 1), 1 -> 0 (1, room 2).
    # Left: 2 of key 6, for which 0 has room; 1 of key 5, which 1 takes.
    keys = np.repeat([6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1])
    expected = np.repeat([0, 1, 2, 2, 1, 0], [6, 5, 4, 3, 2, 1])
    assert Prompt(n_workers=3).route(keys).tolist() == expected.tolist()


def reference(keys, n, plan):
    """Algorithm 2 with whole tuples: keys by decreasing count, equal ones by first appearance."""
    counts = Counter(keys)
    cut = math.ceil(len(keys) / len(counts))
    made, block, rest = plan(n, math.ceil(len(keys) / n)), {}, {}
    order = sorted(counts, key=lambda key: -counts[key])
    zigzag = [*range(n), *reversed(range(n))]
    for i, key in enumerate(order):
        block[key] = zigzag[i % (2 * n)]
        size = min(counts[key], cut, made.room[block[key]])
        made.put(key, block[key], size)
        rest[key] = counts[key] - size
    by_code = [key for key in counts if rest[key]]
    for key in sorted(by_code, key=lambda key: -rest[key]):
        made.fit(key, block[key], rest[key], tight=True)
    return made.deal(keys)


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, plan, n, s, seed):
    keys = zipf(4_000, s=s, seed=seed).tolist()
    partitioner = Prompt(n_workers=n)
    for batch in (keys[:999], keys[999:1_003], keys[1_003:]):
        assert partitioner.route(batch).tolist() == reference(batch, n, plan)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_no_block_exceeds_its_share(n):
    rng = np.random.default_rng(n)
    for _ in range(300):
        counts = (
            np.ceil(rng.pareto(rng.uniform(0.3, 3), rng.integers(1, 25)) + 0.01).clip(max=300).astype(int)
        )
        keys = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        loads = np.bincount(Prompt(n_workers=n).route(keys), minlength=n)
        assert loads.max() == math.ceil(len(keys) / n)


@pytest.mark.parametrize("n", [4, 16])
def test_blocks_have_about_as_many_keys_and_few_keys_are_cut(zipf, n):
    # Far more keys than blocks, mild skew: every block gets K/n keys, and only some for what was left over.
    keys = zipf(5_000, n_keys=1_000, s=0.6, seed=n)
    workers = Prompt(n_workers=n).route(keys)
    pairs = np.unique(np.stack([keys, workers]), axis=1)
    per_block, distinct = np.bincount(pairs[1], minlength=n), len(np.unique(keys))
    assert per_block.min() >= distinct // n
    assert pairs.shape[1] <= 1.2 * distinct


@pytest.mark.parametrize(
    ("fields", "field"), [({"n_workers": 0}, "n_workers"), ({"n_workers": 2, "seed": -1}, "seed")]
)
def test_bad_parameters(refused, fields, field):
    assert refused(Prompt, **fields).startswith(f"{field} = ")
