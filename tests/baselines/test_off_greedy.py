"""Off-Greedy: keys by decreasing count, each to a worker with the least load so far (longest first)."""

from collections import Counter

import numpy as np
import pytest

from dalton.baselines.off_greedy import OfflineGreedy


def arrays(counts: dict[int, int]):
    return np.array(list(counts)), np.array(list(counts.values()))


def check_longest_first(counts: dict[int, int], place: dict[int, int], plan: list[int]) -> None:
    """Replay: by decreasing count, equal counts in order, every key went where the plan was least."""
    for key in sorted(counts, key=lambda key: -counts[key]):
        assert plan[place[key]] == min(plan), f"key {key}"
        plan[place[key]] += counts[key]


def test_hand_derived_decisions():
    # Counts 7 6 5 4 3 on two workers: 7 | 6, 5 joins 6 (7 | 11), 4 joins 7 (11 | 11), 3 joins either.
    partitioner = OfflineGreedy(n_workers=2)
    partitioner.prepare(*arrays({3: 3, 5: 5, 7: 7, 6: 6, 4: 4}))
    seven, six, five, four, three = partitioner.route([7, 6, 5, 4, 3]).tolist()
    assert seven == four != six == five
    assert three in (0, 1)
    # What the keys do in the stream no longer matters.
    assert partitioner.route([3] * 20 + [7, 6]).tolist() == [three] * 20 + [seven, six]


def test_equal_counts_are_placed_in_the_given_order():
    # Three workers, counts 2 2 2 1: the first three keys each get an empty worker.
    for order in ([8, 9, 10], [10, 8, 9]):
        partitioner = OfflineGreedy(n_workers=3)
        partitioner.prepare(np.array([4, *order]), np.array([1, 2, 2, 2]))
        workers = partitioner.route(order).tolist()
        assert sorted(workers) == [0, 1, 2]
        assert workers[0] == 0


@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7, 8])
def test_prepared_counts_are_placed_longest_first(zipf, n, seed):
    keys = zipf(5_000, n_keys=3_000, s=0.8, seed=seed)
    counts = Counter(keys.tolist())
    assert len(counts) > 1_000
    partitioner = OfflineGreedy(n_workers=n)
    partitioner.prepare(*arrays(counts))
    workers = partitioner.route(keys).tolist()
    place = dict(zip(keys.tolist(), workers, strict=True))
    assert [place[key] for key in keys.tolist()] == workers
    check_longest_first(counts, place, [0] * n)
    # Whatever the ties, the loads are those of longest first.
    loads = [0] * n
    for count in sorted(counts.values(), reverse=True):
        loads[loads.index(min(loads))] += count
    assert sorted(np.bincount(workers, minlength=n).tolist()) == sorted(loads)
    assert partitioner.max_workers_per_key == 1


@pytest.mark.parametrize("n", [2, 5, 64])
def test_keys_not_prepared_are_placed_by_the_counts_of_their_first_batch(zipf, n):
    keys = zipf(4_000, n_keys=600, s=0.9, seed=n)
    known = {key: count for key, count in Counter(keys.tolist()).items() if key % 2}
    partitioner = OfflineGreedy(n_workers=n)
    partitioner.prepare(*arrays(known))
    place, plan = {}, [0] * n
    for start in range(0, 4_000, 1_000):
        part = keys[start : start + 1_000].tolist()
        workers = partitioner.route(part).tolist()
        new = {key: count for key, count in Counter(part).items() if key not in known and key not in place}
        now = dict(zip(part, workers, strict=True))
        assert [now[key] for key in part] == workers
        assert all(now[key] == place.get(key, now[key]) for key in now)
        place.update(now)
        if start == 0:
            rest = [key for key in known if key not in place]
            place.update(zip(rest, partitioner.route(rest).tolist(), strict=True))
            check_longest_first(known, place, plan)
        assert new
        check_longest_first(new, place, plan)


def test_hand_derived_decisions_for_keys_not_prepared():
    # Prepared: 1 with 10 and 2 with 4. The batch has 3 twice and 4 three times, so 4 comes first: it joins
    # 2 (10 | 7), and 3 follows (10 | 9).
    partitioner = OfflineGreedy(n_workers=2)
    partitioner.prepare(np.array([1, 2]), np.array([10, 4]))
    assert partitioner.route([3, 4, 3, 4, 4, 1, 2]).tolist() == [1, 1, 1, 1, 1, 0, 1]
    # A key of the next batch with one tuple goes to 9, not to 10; one more makes 10 | 10.
    assert partitioner.route([5]).tolist() == [1]


@pytest.mark.parametrize(
    ("fields", "field"), [({"n_workers": 0}, "n_workers"), ({"n_workers": 2, "seed": -1}, "seed")]
)
def test_bad_parameters(refused, fields, field):
    assert refused(OfflineGreedy, **fields).startswith(f"{field} = ")
