"""Applications on the workers: exact where they should be, by hand where they approximate, PKG's claims."""

import itertools

import numpy as np
import pytest

from dalton.envs.applications import (
    APPLICATIONS,
    THRESHOLDS,
    ApplicationMeter,
    make_application,
    tuple_values,
)
from dalton.envs.cells import Cells
from dalton.envs.correlation_clustering import CorrelationClustering, greedy, vote, weight
from dalton.envs.decision_tree import DecisionTree, add_point, below
from dalton.envs.draws import unit
from dalton.envs.errors import ConfigError
from dalton.envs.heavy_hitters import HeavyHitters
from dalton.envs.word_count import NaiveBayes, WordCount
from dalton.envs.workloads import make_workload
from dalton.experiments import make

SCHEMES = ("kg", "pkg", "sg", "dalton_share")


def stream(length, seed=0, n_keys=300, exponent=1.0):
    workload = make_workload("zipf", n_tuples=length, n_keys=n_keys, exponent=exponent, seed=seed)
    keys = next(workload.chunks(length)).keys
    return keys, tuple_values(keys, 0)


def fed(application, keys, workers, values, size=1_234):
    """The application and its reference after the tuples, in batches."""
    single = application.single()
    for at in range(0, len(keys), size):
        part = slice(at, at + size)
        application.observe(keys[part], workers[part], values[part])
        single.observe(keys[part], np.zeros(len(keys[part]), np.int32), values[part])
    return application, single


def test_cells_are_numbered_by_first_appearance():
    cells = Cells(3, 2)
    rows = cells.rows(np.array([7, 7, -5, 7]), np.array([2, 2, 0, 2], np.int32), np.array([1, 0, 1, 1]))
    assert rows.tolist() == [0, 1, 2, 0]
    assert cells.keys.tolist() == [7, -5]
    assert cells.codes.tolist() == [0, 0, 1]
    assert cells.workers.tolist() == [2, 2, 0]
    assert cells.labels.tolist() == [1, 0, 1]
    for bad in ({"workers": [3]}, {"labels": [2]}):
        given = {"workers": [0], "labels": [0]} | bad
        with pytest.raises(ConfigError, match="expected a whole number from 0 to"):
            cells.rows(np.array([1]), np.array(given["workers"], np.int32), np.array(given["labels"]))


def test_values_depend_on_key_and_position_alone():
    keys = np.arange(5_000) % 7
    values = tuple_values(keys, 10)
    np.testing.assert_array_equal(values[100:], tuple_values(keys[100:], 110))
    assert set(np.floor(values).tolist()) == {0.0, 1.0}
    fractions = values - np.floor(values)
    # 5000 uniform numbers: the mean is within 4 standard deviations of 1/2.
    assert abs(fractions.mean() - 0.5) < 4 / np.sqrt(12 * 5_000)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_counts_are_exact_and_memory_is_the_pairs(scheme):
    keys, values = stream(20_000)
    workers = make(scheme, n_workers=8).route(keys)
    words, single = fed(WordCount(n_workers=8), keys, workers, values)
    known, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(words.answer().keys, known)
    np.testing.assert_array_equal(words.answer().counts[:, 0], counts)
    assert words.error(single) == 0.0
    pairs = {*zip(keys.tolist(), workers.tolist(), strict=True)}
    assert words.memory.tolist() == [sum(w == i for _, w in pairs) for i in range(8)]
    assert words.merged == len(pairs)
    assert words.work.tolist() == np.bincount(workers, minlength=8).tolist()
    assert single.memory.tolist() == [len(known)]

    bayes, single = fed(NaiveBayes(n_workers=8), keys, workers, values)
    labels = values.astype(int)
    for row, key in enumerate(known[:20]):
        wanted = np.bincount(labels[keys == key], minlength=2)
        assert bayes.answer().counts[row].tolist() == wanted.tolist()
    assert bayes.error(single) == 0.0
    assert bayes.merged == len({*zip(keys.tolist(), workers.tolist(), labels.tolist(), strict=True)})


def test_lost_tuples_are_an_error():
    keys, values = stream(1_000)
    words, single = fed(WordCount(n_workers=2), keys, np.zeros(1_000, np.int32), values)
    single.observe(keys[:1], np.zeros(1, np.int32), values[:1])
    assert words.error(single) == pytest.approx(1 / 1_001)
    single.observe(np.array([10**9]), np.zeros(1, np.int32), values[:1])
    assert words.error(single) == 1.0


def test_naive_bayes_by_hand():
    # Word 1: three times class 0, once class 1; word 2: twice class 1. On two workers.
    keys, labels = np.array([1, 1, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 1])
    bayes = NaiveBayes(n_workers=2)
    bayes.observe(keys, np.array([0, 1, 0, 1, 0, 1], np.int32), labels + 0.5)
    assert bayes.answer().counts.tolist() == [[3, 1], [0, 2]]
    # P(1 | 0) = 4/6 and P(1 | 1) = 2/6; P(2 | 0) = 1/6 and P(2 | 1) = 3/6; equal priors.
    assert bayes.predict(np.array([1])) == 0
    assert bayes.predict(np.array([2])) == 1
    assert bayes.predict(np.array([1, 2])) == 1  # 4/36 against 6/36
    assert bayes.predict(np.array([1, 1, 1, 2])) == 0  # 64/1296 against 24/1296
    assert bayes.predict(np.array([99])) == 0


def test_memory_of_pkg_is_at_most_twice_that_of_key_grouping():
    keys, values = stream(50_000)
    memory = {}
    for scheme in ("kg", "pkg", "sg"):
        workers = make(scheme, n_workers=16).route(keys)
        memory[scheme] = fed(WordCount(n_workers=16), keys, workers, values)[0].memory.sum()
    # 300, 600 and 4800 is the most there can be (PKG Section 3.1).
    assert memory["kg"] == 300
    assert memory["kg"] < memory["pkg"] <= 600
    assert memory["sg"] > 5 * memory["kg"]


def test_heavy_hitters_are_exact_while_summaries_have_room():
    keys, values = stream(10_000)
    for scheme in SCHEMES:
        workers = make(scheme, n_workers=4).route(keys)
        heavy, single = fed(HeavyHitters(n_workers=4, capacity=300), keys, workers, values)
        assert heavy.error(single) == 0.0
        known, counts = np.unique(keys, return_counts=True)
        np.testing.assert_array_equal(heavy.estimate(known), counts)
        assert heavy.estimate(np.array([10**9])).tolist() == [0]
        assert not heavy.answer().errors.any()


def hitters(scheme, n, seed, capacity=200):
    """Of the 100 most frequent keys: mean error over m, and the summaries that a key went to."""
    keys, values = stream(200_000, seed, n_keys=50_000, exponent=0.9)
    workers = make(scheme, n_workers=n, seed=seed).route(keys)
    heavy, single = fed(HeavyHitters(n_workers=n, capacity=capacity), keys, workers, values, 1 << 15)
    known, counts = single.answer()
    top = known[np.argsort(-counts[:, 0], kind="stable")[:100]]
    held = [len(set(workers[keys == key].tolist())) for key in top]
    bounds = np.bincount(workers, minlength=n) / capacity
    found = dict(zip(*heavy.answer()[:2], strict=True))
    for key, count in zip(known, counts[:, 0], strict=True):
        went = np.unique(workers[keys == key]) if key in top else None
        if went is not None:
            # PKG Section 4.2: the sum of the errors of the summaries that the key went to.
            assert abs(found.get(key, 0) - count) <= bounds[went].sum()
    return heavy.error(single), max(held)


def test_the_error_of_heavy_hitters_is_that_of_two_summaries_with_pkg_and_of_all_with_shuffle():
    errors = {}
    for scheme, n in itertools.product(("kg", "pkg", "sg"), (4, 16)):
        measured = [hitters(scheme, n, seed) for seed in range(5)]
        errors[scheme, n] = np.array([error for error, _ in measured])
        most = {"kg": 1, "pkg": 2, "sg": n}[scheme]
        assert max(held for _, held in measured) == most
    # Mean errors in millionths of m. kg: 43, 0; pkg: 286, 4; sg: 675, 337. The bounds on those of sg are
    # n / 2 times those of pkg: 2 and 8.
    assert (errors["sg", 4] > 1.5 * errors["pkg", 4]).all()
    assert (errors["sg", 16] > 8 * errors["pkg", 16]).all()
    # More workers: two summaries of 1/4 of the tuples each, against 16 such ones instead of 4.
    assert errors["pkg", 16].mean() < errors["pkg", 4].mean() / 4
    assert errors["sg", 16].mean() > errors["sg", 4].mean() / 4


def test_a_histogram_by_hand():
    # The example of Ben-Haim and Tom-Tov, Appendix A: five bins, then 2 and 1... in the order of the paper.
    centres, counts, size = np.zeros(6), np.zeros(6), 0
    for x in (23, 19, 10, 16, 36, 2, 9):
        size = add_point(centres, counts, size, float(x), 1.0)
    assert size == 5
    assert centres[:5].tolist() == [2.0, 9.5, 17.5, 23.0, 36.0]
    assert counts[:5].tolist() == [1.0, 2.0, 2.0, 1.0, 1.0]
    for x in (32, 30, 45):
        size = add_point(centres, counts, size, float(x), 1.0)
    np.testing.assert_allclose(centres[:5], [2.0, 9.5, 19 + 1 / 3, 32 + 2 / 3, 45.0])
    assert counts[:5].tolist() == [1.0, 2.0, 3.0, 3.0, 1.0]
    # 3.28 tuples up to 15, as the paper has it.
    assert below(centres, counts, size, 15.0) == pytest.approx(3.275, abs=0.005)
    assert below(centres, counts, size, 1.0) == 0.0
    assert below(centres, counts, size, 50.0) == 10.0


def test_histograms_are_exact_while_there_are_bins_enough():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 5, 3_000)
    values = rng.integers(0, 2, 3_000) + rng.integers(0, 8, 3_000) / 8
    for scheme in SCHEMES:
        workers = make(scheme, n_workers=4).route(keys)
        tree, single = fed(DecisionTree(n_workers=4, bins=8), keys, workers, values)
        assert tree.error(single) == pytest.approx(0.0, abs=1e-12)
        mine = tree.answer()
        np.testing.assert_array_equal(mine.keys, np.arange(5))
        for key, label in itertools.product(range(5), range(2)):
            assert mine.tuples[key, label] == np.sum((keys == key) & (values.astype(int) == label))


def test_merged_histograms_are_close_to_a_single_one_and_find_the_split():
    keys, values = stream(60_000, n_keys=10)
    for scheme, parts in (("kg", 1), ("pkg", 2), ("sg", 16)):
        workers = make(scheme, n_workers=16).route(keys)
        tree, single = fed(DecisionTree(n_workers=16, bins=32), keys, workers, values)
        # Mean distance of the ranks, measured: 0, 0.001, 0.002.
        assert tree.error(single) <= (0.0 if parts == 1 else 0.01)
        assert tree.merged <= 2 * 10 * parts
        answer = tree.answer()
        # Half of the distance between two points, and as much for what is drawn.
        thresholds = np.array([unit(THRESHOLDS, key) for key in answer.keys])
        inside = (thresholds > 0.1) & (thresholds < 0.9)
        assert inside.sum() >= 5
        assert (np.abs(answer.splits() - thresholds)[inside] < 0.05).all()
    assert tree.memory.sum() > 8 * single.memory.sum()


def test_vote_and_greedy_by_hand():
    # Two entities: below and above 1/2; nothing is compared wrongly.
    assert weight(0.1, 0.4, 2, 0.0) == 1
    assert weight(0.1, 0.6, 2, 0.0) == -1
    assert weight(0.1, 0.6, 2, 1.0) == 1
    items, out, votes = np.array([0.1, 0.7, 0.2, 0.9, 0.3]), np.zeros(5, np.int64), np.zeros(5, np.int64)
    assert vote(items, 2, 0.0, votes, out) == 2
    assert out.tolist() == [0, 1, 0, 1, 0]
    clusters = np.array([0, 1, 2, 3, 2])
    greedy(items, clusters, 2, 0.0, np.zeros((4, 4), np.int64), np.zeros(4, np.int64))
    assert clusters.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_clusters_without_noise_are_the_entities(scheme):
    keys, values = stream(4_000, n_keys=50, exponent=1.3)
    workers = make(scheme, n_workers=6).route(keys)
    found, single = fed(CorrelationClustering(n_workers=6, noise=0.0), keys, workers, values)
    assert found.error(single) == 0.0
    _, clusters = found.answer()
    entities = ((values % 1) * 4).astype(int)
    for key in np.unique(keys):
        own = keys == key
        assert len({*zip(entities[own], clusters[own], strict=True)}) == len(set(entities[own]))
        assert len(set(clusters[own])) == len(set(entities[own]))


def test_the_work_of_clustering_is_quadratic_and_splitting_divides_it():
    keys, values = np.zeros(1_000, np.int64), tuple_values(np.zeros(1_000, np.int64), 0)
    found, single = fed(
        CorrelationClustering(n_workers=4), keys, np.arange(1_000, dtype=np.int32) % 4, values
    )
    assert single.work.tolist() == [1_000 * 999 // 2 + 1_000]
    assert found.work.tolist() == [250 * 249 // 2 + 250] * 4
    assert found.memory.tolist() == [250] * 4
    assert found.merged >= 4 * 4
    # A twentieth of the comparisons is wrong: few pairs are judged differently, measured 0.
    assert found.error(single) < 0.05


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_application_keeps_the_contract(name):
    application, every = make_application({"name": name, "every": 3}, 5)
    assert every == 3
    keys, values = stream(3_000, n_keys=40)
    workers = make("sg", n_workers=5).route(keys)
    given = keys.copy(), workers.copy(), values.copy()
    one, _ = fed(application, keys, workers, values, 700)
    other, single = fed(make_application(name, 5)[0], keys, workers, values, 3_000)
    for before, after in zip(given, (keys, workers, values), strict=True):
        np.testing.assert_array_equal(before, after)
    assert one.error(single) == other.error(single), "batches do not matter"
    np.testing.assert_array_equal(one.memory, other.memory)
    assert one.memory.shape == one.work.shape == (5,)
    assert one.merged == other.merged > 0
    one.reset()
    assert one.memory.sum() == one.work.sum() == one.merged == 0
    empty = one.single()
    assert one.error(empty) == 0.0
    # All on one worker is a single worker.
    alone, single = fed(make_application(name, 5)[0], keys, np.full(3_000, 2, np.int32), values)
    if name != "heavy_hitters":
        assert alone.error(single) == 0.0
        assert alone.memory.sum() == single.memory.sum()


def test_periods_end_with_slides_and_forget():
    meter = ApplicationMeter(WordCount(n_workers=2), every=2)
    keys, workers = np.array([1, 2, 2]), np.array([0, 1, 0], np.int32)
    for slide, start in ((0, 0), (0, 3), (1, 6), (2, 9), (5, 12)):
        meter.observe(slide, start, keys, workers)
    answers = meter.result()
    assert [period.slide for period in answers.periods] == [1, 2, 5]
    assert [period.tuples for period in answers.periods] == [9, 3, 3]
    assert [period.memory for period in answers.periods] == [3, 3, 3]
    assert answers.summary() == {
        "answer_error": 0.0,
        "answer_memory": 3.0,
        "answer_memory_max": 2.0,
        "answer_memory_ratio": 1.5,
        "answer_merged": 3.0,
        "answer_work": pytest.approx(4 / 3),
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wordcount", "application.name = 'wordcount': unknown (did you mean 'word_count'?); known: "),
        ({"every": 1}, "application = {'every': 1}: expected a name or a mapping with a name"),
        ({"name": "word_count", "every": 0}, "application.every = 0: expected "),
        ({"name": "word_count", "bins": 3}, "key of application = 'bins': unknown"),
        ({"name": "heavy_hitters", "capacity": 0}, "application.capacity = 0: expected "),
        ({"name": "decision_tree", "bins": 1}, "application.bins = 1: expected "),
        ({"name": "correlation_clustering", "noise": 2}, "application.noise = 2: expected "),
    ],
)
def test_mistakes_are_one_clear_line(spec, message):
    with pytest.raises(ConfigError) as caught:
        make_application(spec, 4)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
