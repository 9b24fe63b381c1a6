"""The simulator against plain Python: every column, every view, for every way to cut the stream."""

import math
import tracemalloc
from collections import Counter, defaultdict
from statistics import median

import numpy as np
import pytest

from dalton.baselines.pkg import PartialKeyGrouping
from dalton.envs.cluster import Cluster
from dalton.envs.contract import Partitioner
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import member, worker_of
from dalton.envs.simulate import Result, Slide, simulate
from dalton.envs.window import Window
from dalton.envs.workloads import Workload, make_workload
from dalton.experiments import make

INT64 = np.iinfo(np.int64)


class Recorded(Workload):
    """A stream given as arrays."""

    name = "recorded"

    def __init__(self, *, keys, times=None, n_sources=1, source_by="shuffle"):
        arrivals = "count" if times is None else "constant"
        super().__init__(n_tuples=len(keys), arrivals=arrivals, n_sources=n_sources, source_by=source_by)
        self.keys, self.times = np.asarray(keys, np.int64), times

    def _keys(self, lo, hi):
        return self.keys[lo:hi]

    def _times(self, lo, hi, clock):
        return None if self.times is None else self.times[lo:hi], clock


def columns(workload):
    """Keys, times and sources of a whole stream."""
    chunk = next(workload.chunks(workload.n_tuples))
    return chunk.keys, chunk.times, chunk.sources


def skewed_keys(length, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.concatenate([[INT64.min, INT64.max, -1, 0], rng.integers(INT64.min, INT64.max, 60)])
    shares = 1.0 / np.arange(1, len(ids) + 1)
    return rng.choice(ids, length, p=shares / shares.sum())


def times_with_gaps(length, seed=0):
    """Times on a grid of eighths: ties, tuples on slide edges, and gaps of up to many windows."""
    rng = np.random.default_rng(seed)
    waits = rng.integers(0, 3, length) / 8.0
    waits[rng.choice(length, 6, replace=False)] += [1.0, 2.5, 3.0, 4.0, 9.75, 300.0]
    return np.cumsum(waits) - 2.0


def slide_numbers(length, times, window):
    clock = range(length) if times is None or window.by == "count" else times.tolist()
    return [math.floor(now / window.slide) for now in clock]


def mean(values):
    return sum(values) / len(values)


def above_mean(values):
    return max(values) - mean(values)


def by_definition(keys, slides, workers, n, window, n_reducers=1, capacity=None, others=None):
    """Every column but ns_per_tuple, from lists and counters."""
    keys, workers = keys.tolist(), workers.tolist()
    strengths = [1.0] * n if capacity is None else list(capacity)
    relative = [c / mean(strengths) for c in strengths]
    reducer_hash = member(0, 65535)
    rows, loads = [], []
    for slide in sorted(set(slides)):
        seen = [i for i, s in enumerate(slides) if s <= slide]
        inside = [i for i in seen if slide - slides[i] < window.n_slides]
        own = [i for i in seen if slides[i] == slide]
        load = [0] * n
        for i in inside:
            load[workers[i]] += 1
        total = [0] * n
        for i in seen:
            total[workers[i]] += 1
        counts = Counter(keys[i] for i in inside)
        pairs = {(keys[i], workers[i]) for i in inside}
        on_worker = Counter(worker for _, worker in pairs)
        copies = Counter(key for key, _ in pairs)
        reducer = {key: worker_of(np.int64(key), reducer_hash, n_reducers) for key in copies}
        at_reducer = Counter(reducer[key] for key, _ in pairs)
        split_at_reducer = Counter(reducer[key] for key, _ in pairs if copies[key] > 1)
        least = -(-len(inside) // n)
        fewest = sum(-(-c // least) for c in counts.values())
        shares = [100 * x / sum(load) for x in load]
        rows.append(
            {
                "slide": slide,
                "tuples": len(own),
                "seen": len(seen),
                "imbalance": above_mean(load),
                "imbalance_total": above_mean(total),
                "imbalance_capacity": above_mean([x / c for x, c in zip(load, relative, strict=True)]),
                "max_over_mean": max(load) / mean(load),
                "std_dev": math.sqrt(mean([(s - mean(shares)) ** 2 for s in shares])),
                "keys": len(counts),
                "pairs": len(pairs),
                "pairs_max": max(on_worker.values()),
                "replication": len(pairs) / len(counts),
                "aggregation_cost": max(at_reducer.values()),
                "aggregation_split": max(split_at_reducer.values(), default=0),
                "regret_load": (max(load) - least) / least,
                "regret_pairs": (len(pairs) - fewest) / fewest,
                "disagreement": math.nan
                if others is None
                else sum(workers[i] != others[i] for i in own) / len(own),
            }
        )
        loads.append(load)
    return rows, loads


def measured(result):
    return [
        {name: value for name, value in row._asdict().items() if name != "ns_per_tuple"}
        for row in result.slides
    ]


def assert_as_defined(result, rows, loads):
    assert len(result.slides) == len(rows)
    for got, wanted in zip(measured(result), rows, strict=True):
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True)
    assert result.loads.tolist() == loads


COUNT = [Window(50, 50), Window(200, 50), Window(13, 13), Window(52, 13)]
TIME = [Window(2.0, 2.0, "time"), Window(2.0, 0.5, "time")]


@pytest.mark.parametrize("n_reducers", [1, 3])
@pytest.mark.parametrize("window", [*COUNT, *TIME], ids=str)
@pytest.mark.parametrize("name", ["pkg", "sg"])
def test_every_column_by_definition(name, window, n_reducers):
    keys, capacity = skewed_keys(700), [1.0, 2.0, 0.5, 4.0, 1.0]
    times = times_with_gaps(700) if window.by == "time" else None
    result = simulate(
        make(name, n_workers=5),
        Recorded(keys=keys, times=times),
        window=window,
        n_reducers=n_reducers,
        capacity=capacity,
        chunk_size=64,
    )
    workers = make(name, n_workers=5).route(keys, times)
    slides = slide_numbers(700, times, window)
    rows, loads = by_definition(keys, slides, workers, 5, window, n_reducers, capacity)
    assert_as_defined(result, rows, loads)
    assert result.total.tolist() == np.bincount(workers, minlength=5).tolist()
    assert result.settings["capacity"] == capacity
    assert result.loads.dtype == result.total.dtype == np.int64
    assert all(row.ns_per_tuple > 0 for row in result.slides)
    if window.by == "time":
        assert max(np.diff(sorted(set(slides)))) > window.n_slides, "the stream should have a long gap"


def test_equal_capacities_are_the_default():
    stream = make_workload("zipf", n_tuples=500, n_keys=20)
    result = simulate(make("kg", n_workers=4), stream, window=Window(100, 50))
    np.testing.assert_allclose(result.column("imbalance_capacity"), result.column("imbalance"))


def test_a_count_window_ignores_the_times_of_the_stream():
    keys, window = skewed_keys(300), Window(40, 20)
    timed = simulate(make("pkg", n_workers=3), Recorded(keys=keys, times=times_with_gaps(300)), window=window)
    untimed = simulate(make("pkg", n_workers=3), Recorded(keys=keys), window=window)
    assert measured(timed)[0].keys() == measured(untimed)[0].keys()
    np.testing.assert_equal(measured(timed), measured(untimed))


@pytest.mark.parametrize(("rate", "slide"), [(10.0, 0.1), (10.0, 0.3), (1000.0, 0.001), (7.0, 0.7)])
def test_slides_are_those_of_the_workers_where_division_rounds(rate, slide):
    # 0.5 // 0.1 is 4, but 0.5 / 0.1 is 5, and the workers' windows divide.
    stream = make_workload("uniform", n_tuples=300, n_keys=7, arrivals="constant", rate=rate)
    keys, times, _ = columns(stream)
    window = Window(2 * slide, slide, "time")
    result = simulate(make("pkg", n_workers=3), stream, window=window)
    slides = slide_numbers(300, times, window)
    workers = make("pkg", n_workers=3).route(keys, times)
    assert_as_defined(result, *by_definition(keys, slides, workers, 3, window))


def test_a_mapping_is_a_window_and_the_result_says_what_was_run():
    stream = make_workload("zipf", n_tuples=100, n_keys=10)
    result = simulate(make("pkg", n_workers=3), stream, window={"size": 40, "slide": 20})
    assert result.settings["window"] == Window(40, 20)
    assert result.settings["view"] == "global"
    assert result.settings["n_reducers"] == 1
    assert result.settings["capacity"] is None
    assert result.partitioner == "PartialKeyGrouping(n_workers=3, seed=0, d=2, window=None)"
    assert len(result.slides) == 5


def test_the_result_names_the_workload_with_its_parameters():
    # "The call that makes the workload": the same for the same stream, and another for another.
    def shown(**params):
        stream = make_workload("zipf", n_tuples=100, **params)
        return simulate(make("kg", n_workers=2), stream).workload

    assert shown(n_keys=10) == shown(n_keys=10)
    assert shown(n_keys=10) != shown(n_keys=11)
    assert "n_keys=10" in shown(n_keys=10)
    assert "Zipf" in shown(n_keys=10)


STREAM = {"n_tuples": 2_500, "n_keys": 200, "exponent": 1.1, "n_sources": 3, "seed": 4}


@pytest.mark.parametrize("by", ["count", "time"])
@pytest.mark.parametrize("view", ["global", "local", "probing"])
@pytest.mark.parametrize("name", ["pkg", "oracle", "prompt", "off_greedy"])
def test_the_chunk_size_changes_nothing(name, view, by):
    stream = make_workload("zipf", arrivals="poisson", rate=100.0, **STREAM)
    window = Window(400, 100) if by == "count" else Window(4.0, 1.0, "time")
    probe_every = {"count": 130, "time": 1.3}[by] if view == "probing" else None

    def run(chunk_size):
        result = simulate(
            make(name, n_workers=5),
            stream,
            window=window,
            view=view,
            probe_every=probe_every,
            compare_global=True,
            chunk_size=chunk_size,
        )
        return measured(result), result.loads, result.total

    whole = run(STREAM["n_tuples"])
    assert len(whole[0]) >= 20
    for chunk_size in (1, 7, 1000):
        np.testing.assert_equal(run(chunk_size), whole)


@pytest.mark.parametrize("name", ["oracle", "prompt"])
def test_batch_lookahead_is_handed_whole_slides(name):
    stream = make_workload("zipf", n_tuples=1_050, n_keys=50)
    keys, _, _ = columns(stream)
    result = simulate(make(name, n_workers=4), stream, window=Window(300, 100), chunk_size=64)
    again = make(name, n_workers=4)
    workers = np.concatenate([again.route(keys[i : i + 100]) for i in range(0, 1_050, 100)])
    rows, loads = by_definition(
        keys, slide_numbers(1_050, None, Window(300, 100)), workers, 4, Window(300, 100)
    )
    assert_as_defined(result, rows, loads)


def test_stream_lookahead_is_handed_the_counts_of_the_whole_stream():
    # Key 9 comes last and is the most frequent: only who knows that gives it a worker of its own.
    keys = np.array([1, 2, 3, 4] * 5 + [9] * 20)
    result = simulate(make("off_greedy", n_workers=2), Recorded(keys=keys), window=Window(10, 10))
    assert sorted(result.total.tolist()) == [20, 20]
    assert result.slides[-1].pairs == 1
    blind = make("on_greedy", n_workers=2)
    assert sorted(simulate(blind, Recorded(keys=keys)).total.tolist()) == [10, 30]


def routed_by(partitioners, keys, times, sources):
    """Every tuple routed alone by its source's partitioner."""
    out = np.empty(len(keys), np.int32)
    for i, source in enumerate(sources):
        at = None if times is None else times[i : i + 1]
        out[i] = partitioners[source].route(keys[i : i + 1], at)[0]
    return out


@pytest.mark.parametrize("source_by", ["shuffle", "key"])
@pytest.mark.parametrize("window", [Window(200, 50), Window(2.0, 0.5, "time")], ids=str)
@pytest.mark.parametrize("name", ["pkg", "dagreedy", "cam"])
def test_local_view_is_a_partitioner_of_its_own_per_source(name, window, source_by):
    params = {"n_workers": 4, "window": window}
    keys = skewed_keys(600)
    stream = Recorded(keys=keys, times=times_with_gaps(600), n_sources=3, source_by=source_by)
    _, times, sources = columns(stream)
    result = simulate(make(name, **params), stream, window=window, view="local", chunk_size=100)
    workers = routed_by([make(name, **params) for _ in range(3)], keys, times, sources)
    slides = slide_numbers(600, times, window)
    assert_as_defined(result, *by_definition(keys, slides, workers, 4, window))


@pytest.mark.parametrize("window", [Window(200, 50), Window(2.0, 0.5, "time")], ids=str)
def test_global_view_is_one_partitioner_that_sees_every_tuple(window):
    keys, times = skewed_keys(600), times_with_gaps(600)
    stream = Recorded(keys=keys, times=times, n_sources=3)
    result = simulate(make("pkg", n_workers=4), stream, window=window, chunk_size=100)
    workers = make("pkg", n_workers=4).route(keys, times)
    slides = slide_numbers(600, times, window)
    assert_as_defined(result, *by_definition(keys, slides, workers, 4, window))


def test_the_views_differ_where_sources_are_many():
    stream = make_workload("zipf", n_tuples=4_000, n_keys=300, n_sources=7)
    totals = {
        view: simulate(make("pkg", n_workers=5), stream, view=view, probe_every=probe).total.tolist()
        for view, probe in (("global", None), ("local", None), ("probing", 50))
    }
    assert totals["global"] != totals["local"] != totals["probing"] != totals["global"]


def test_the_first_source_goes_on_from_the_state_of_the_given_partitioner():
    used, twin = make("pkg", n_workers=3), make("pkg", n_workers=3)
    for p in (used, twin):
        p.route(np.zeros(30, np.int64))
    stream = make_workload("zipf", n_tuples=400, n_keys=10, n_sources=2)
    keys, times, sources = columns(stream)
    result = simulate(used, stream, window=Window(100, 100), view="local")
    workers = routed_by([twin, make("pkg", n_workers=3)], keys, times, sources)
    assert result.total.tolist() == np.bincount(workers, minlength=3).tolist()
    np.testing.assert_array_equal(used.loads.load, twin.loads.load)


class Recorder(PartialKeyGrouping):
    """PKG that writes down its probes; all made from its parameters share the list."""

    def __init__(self, *, n_workers, seed=0, log):
        self.log = log
        super().__init__(n_workers=n_workers, seed=seed)

    def probe(self, truth, total):
        self.log.append((self, total.copy(), truth.load.copy()))
        super().probe(truth, total)


@pytest.mark.parametrize("probe_every", [1, 70, 100, 37, 1_000])
@pytest.mark.parametrize("chunk_size", [33, 1_000])
def test_probes_come_at_the_multiples_of_the_interval_in_tuples(probe_every, chunk_size):
    stream, log = make_workload("zipf", n_tuples=1_000, n_keys=40, n_sources=3), []
    first = Recorder(n_workers=4, log=log)
    simulate(
        first,
        stream,
        window=Window(200, 100),
        view="probing",
        probe_every=probe_every,
        chunk_size=chunk_size,
    )
    multiples = sorted({math.ceil(i * probe_every) for i in range(1, 1_001)})
    wanted = [at for at in multiples if at < 1_000]
    by_source = defaultdict(list)
    for source, total, _ in log:
        by_source[id(source)].append(int(total.sum()))
    assert list(by_source.values()) == ([wanted] * 3 if wanted else [])
    assert not wanted or id(first) in by_source


class BatchRecorder(Recorder):
    lookahead = "batch"


@pytest.mark.parametrize("chunk_size", [33, 1_000])
def test_batch_lookahead_is_probed_before_the_slides_that_hold_a_multiple(chunk_size):
    stream, log = make_workload("zipf", n_tuples=1_000, n_keys=40), []
    view = {"view": "probing", "probe_every": 150}
    partitioner = BatchRecorder(n_workers=4, log=log)
    simulate(partitioner, stream, window=Window(100, 100), chunk_size=chunk_size, **view)
    # 150 lies in the slide from 100 on, 450 in that from 400, 750 in that from 700.
    assert [int(total.sum()) for _, total, _ in log] == [100, 300, 400, 600, 700, 900]


@pytest.mark.parametrize("probe_every", [1, 3, 8])
def test_probes_do_not_depend_on_the_chunk_size(probe_every):
    stream = make_workload("zipf", n_tuples=500, n_keys=40)

    def positions(chunk_size):
        log, view = [], {"view": "probing", "probe_every": probe_every}
        simulate(Recorder(n_workers=4, log=log), stream, chunk_size=chunk_size, **view)
        return [int(total.sum()) for _, total, _ in log]

    whole = positions(500)
    assert len(whole) >= 500 // max(1, probe_every) - 1
    assert positions(1) == positions(7) == whole


def test_probes_come_with_the_first_tuple_after_a_multiple_of_the_interval_in_seconds():
    times, log = times_with_gaps(400), []
    stream = Recorded(keys=skewed_keys(400), times=times, n_sources=2)
    window = Window(2.0, 0.5, "time")
    simulate(Recorder(n_workers=4, log=log), stream, window=window, view="probing", probe_every=0.75)
    ticks = [math.floor(now / 0.75) for now in times.tolist()]
    wanted = [i for i in range(1, 400) if ticks[i] != ticks[i - 1]]
    assert max(np.diff(ticks)) > 3, "the stream should have a gap of several intervals"
    positions = [int(total.sum()) for _, total, _ in log]
    assert positions == [at for at in wanted for _ in range(2)]


@pytest.mark.parametrize("view", ["global", "local"])
def test_only_the_probing_view_probes_even_where_times_pass_zero(view):
    log = []
    stream = Recorded(keys=[1, 2, 3, 4], times=np.array([-1.5, -0.5, 0.5, 1.5]), n_sources=2)
    simulate(Recorder(n_workers=4, log=log), stream, window=Window(1.0, 1.0, "time"), view=view)
    assert log == []


@pytest.mark.parametrize("interval", [0.1, 0.3, 0.7])
def test_probes_in_seconds_where_division_rounds(interval):
    stream, log = make_workload("uniform", n_tuples=300, n_keys=7, arrivals="constant", rate=10.0), []
    _, times, _ = columns(stream)
    window = Window(8.0, 8.0, "time")
    simulate(Recorder(n_workers=2, log=log), stream, window=window, view="probing", probe_every=interval)
    ticks = [math.floor(now / interval) for now in times.tolist()]
    wanted = [i for i in range(1, 300) if ticks[i] != ticks[i - 1]]
    assert [int(total.sum()) for _, total, _ in log] == wanted


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("window", [Window(120, 40), Window(3.0, 1.0, "time")], ids=str)
def test_probing_replaces_estimates_by_the_loads_of_the_cluster(window, windowed):
    params = {"n_workers": 4, "window": window if windowed else None}
    keys, times = skewed_keys(500), times_with_gaps(500)
    stream = Recorded(keys=keys, times=times, n_sources=3)
    _, _, sources = columns(stream)
    every = 25 if window.by == "count" else 2.0
    result = simulate(make("pkg", **params), stream, window=window, view="probing", probe_every=every)

    own, cluster = [make("pkg", **params) for _ in range(3)], Cluster(n_workers=4, window=window)
    clock = range(500) if window.by == "count" else times.tolist()
    ticks, workers = [math.floor(now / every) for now in clock], []
    for i in range(500):
        if i and ticks[i] != ticks[i - 1]:
            for p in own:
                p.probe(cluster.loads, cluster.total)
        workers.append(own[sources[i]].route(keys[i : i + 1], times[i : i + 1]))
        cluster.observe(keys[i : i + 1], workers[-1], times[i : i + 1] if window.by == "time" else None)
    slides = slide_numbers(500, times, window)
    assert_as_defined(result, *by_definition(keys, slides, np.concatenate(workers), 4, window))


def test_probed_loads_are_the_real_ones():
    stream, log = make_workload("zipf", n_tuples=900, n_keys=40, n_sources=3), []
    keys, _, sources = columns(stream)
    window = Window(200, 100)
    simulate(Recorder(n_workers=4, log=log), stream, window=window, view="probing", probe_every=130)
    # Replayed by hand: estimates are replaced by what the log says, and the log is what was then sent.
    estimates, workers = np.zeros((3, 4), np.int64), []
    probes = {int(total.sum()): (total, load) for _, total, load in log}
    assert sorted(probes) == [130, 260, 390, 520, 650, 780]
    two = [make("pkg", n_workers=4) for _ in range(3)]
    for i in range(900):
        if i in probes:
            total, load = probes[i]
            assert total.tolist() == np.bincount(workers, minlength=4).tolist()
            # The workers' window ends with the last tuple they got.
            low = ((i - 1) // 100 - 1) * 100
            assert load.tolist() == np.bincount(workers[max(0, low) :], minlength=4).tolist()
            estimates[:] = total
        p = two[sources[i]]
        p.loads.load[:] = estimates[sources[i]]
        worker = int(p.route(keys[i : i + 1])[0])
        estimates[sources[i], worker] += 1
        workers.append(worker)


@pytest.mark.parametrize("name", ["kg", "pkg", "sg"])
def test_disagreement_is_the_share_that_the_global_view_sends_elsewhere(name):
    stream = make_workload("zipf", n_tuples=1_230, n_keys=60, n_sources=4)
    keys, times, sources = columns(stream)
    window = Window(300, 100)
    result = simulate(make(name, n_workers=5), stream, window=window, view="local", compare_global=True)
    workers = routed_by([make(name, n_workers=5) for _ in range(4)], keys, times, sources)
    others = make(name, n_workers=5).route(keys)
    rows, loads = by_definition(
        keys, slide_numbers(1_230, None, window), workers, 5, window, others=others.tolist()
    )
    assert_as_defined(result, rows, loads)
    share = np.count_nonzero(workers != others) / 1_230
    assert result.summary()["disagreement"] == pytest.approx(share)
    assert (share == 0) == (name == "kg")


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 4, 13])
def test_oracle_has_the_least_load_and_almost_the_fewest_pairs(n, exponent):
    stream = make_workload("zipf", n_tuples=2_050, n_keys=100, exponent=exponent)
    keys, _, _ = columns(stream)
    result = simulate(make("oracle", n_workers=n), stream, window=Window(100, 100))
    assert len(result.slides) == 21
    for i, row in enumerate(result.slides):
        counts = Counter(keys[100 * i : 100 * (i + 1)].tolist())
        least = -(-sum(counts.values()) // n)
        bound = sum(-(-c // least) for c in counts.values())
        assert row.regret_load == 0.0
        assert result.loads[i].max() == least
        assert bound <= row.pairs <= bound + n - 1
        assert row.regret_pairs == pytest.approx((row.pairs - bound) / bound)


def test_nobody_beats_the_bounds():
    stream = make_workload("zipf", n_tuples=3_000, n_keys=100, exponent=1.2)
    for name in ("kg", "sg", "pkg", "oracle", "prompt"):
        result = simulate(make(name, n_workers=7), stream, window=Window(600, 200))
        assert result.column("regret_load").min() >= 0.0
        # Fewer pairs than the bound are possible above the least load only.
        at_least_load = result.column("regret_load") == 0.0
        assert (result.column("regret_pairs")[at_least_load] >= 0.0).all()


def test_summary_from_columns():
    stream = make_workload("zipf", n_tuples=1_030, n_keys=60, n_sources=2)
    result = simulate(
        make("pkg", n_workers=5), stream, window=Window(200, 100), view="local", compare_global=True
    )
    rows = [row._asdict() for row in result.slides]
    summary = result.summary()
    means = [
        "imbalance",
        "imbalance_capacity",
        "max_over_mean",
        "std_dev",
        "keys",
        "pairs",
        "pairs_max",
        "replication",
        "aggregation_cost",
        "aggregation_split",
        "regret_load",
        "regret_pairs",
    ]
    wanted = {name: mean([row[name] for row in rows]) for name in means}
    wanted["tuples"] = 1_030
    wanted["imbalance_fraction"] = mean([row["imbalance_total"] for row in rows]) / 1_030
    wanted["max_over_mean_worst"] = max(row["max_over_mean"] for row in rows)
    wanted["max_over_mean_total"] = result.total.max() / (1_030 / 5)
    wanted["disagreement"] = sum(row["tuples"] * row["disagreement"] for row in rows) / 1_030
    wanted["ns_per_tuple"] = median([row["ns_per_tuple"] for row in rows])
    assert summary == pytest.approx(wanted)
    assert all(type(value) is float for value in summary.values())


def test_summary_has_no_disagreement_if_it_was_not_measured():
    stream = make_workload("zipf", n_tuples=300, n_keys=60)
    result = simulate(make("pkg", n_workers=5), stream, window=Window(100, 100))
    assert math.isnan(result.summary()["disagreement"])
    assert np.isnan(result.column("disagreement")).all()


def test_summary_of_no_slides():
    empty = Result("p", "w", [], np.empty((0, 2), np.int64), np.zeros(2, np.int64))
    summary = empty.summary()
    assert summary["tuples"] == 0.0
    assert summary["max_over_mean_worst"] == summary["max_over_mean_total"] == 1.0
    assert math.isnan(summary["imbalance"])


def test_to_pandas_has_a_row_per_slide_and_a_column_per_metric():
    stream = make_workload("zipf", n_tuples=1_030, n_keys=60)
    result = simulate(make("pkg", n_workers=5), stream, window=Window(200, 100))
    frame = result.to_pandas()
    assert frame.shape == (11, len(Slide._fields))
    assert list(frame.columns) == list(Slide._fields)
    assert frame["seen"].tolist() == [*range(100, 1_001, 100), 1_030]
    assert frame["tuples"].tolist() == [100] * 10 + [30]
    for name in Slide._fields:
        np.testing.assert_array_equal(frame[name].to_numpy(np.float64), result.column(name))
    assert result.column("pairs").dtype == np.float64


NAN = math.nan
BAD = {
    "no window": ({"window": None}, "^window = None: "),
    "window of wrong fields": ({"window": {"length": 5}}, "^window = .*expected the field size"),
    "slide not in size": ({"window": {"size": 10, "slide": 3}}, "^window.size = 10: .*window.slide = 3"),
    "view": ({"view": "prob"}, "^view = 'prob': unknown .did you mean 'probing'.*global, local, probing"),
    "view near global": ({"view": "globl"}, "^view = 'globl': unknown .did you mean 'global'"),
    "view None": ({"view": None}, "^view = None: unknown"),
    "probing without interval": ({"view": "probing"}, "^probe_every = None: expected a number"),
    "interval without probing": ({"view": "local", "probe_every": 5}, "^probe_every = 5: .*none otherwise"),
    "interval zero": (
        {"view": "probing", "probe_every": 0},
        "^probe_every = 0: expected a whole number >= 1",
    ),
    "interval negative": (
        {"view": "probing", "probe_every": -2.5},
        "^probe_every = -2.5: expected a whole number >= 1",
    ),
    "interval NaN": (
        {"view": "probing", "probe_every": NAN},
        "^probe_every = nan: expected a whole number >= 1",
    ),
    "interval infinite": ({"view": "probing", "probe_every": math.inf}, "^probe_every = inf: expected"),
    "interval text": (
        {"view": "probing", "probe_every": "10"},
        "^probe_every = '10': expected a",
    ),
    "capacities too few": ({"capacity": [1.0, 2.0]}, r"^capacity = \[1.0, 2.0\]: expected 3 numbers > 0"),
    "capacities in a table": (
        {"capacity": np.ones((3, 1))},
        r"^capacity = array\(.*: expected 3",
    ),
    "capacity a number": ({"capacity": 2.0}, "^capacity .*expected 3 numbers > 0"),
    "capacity zero": ({"capacity": [1.0, 0.0, 1.0]}, "^capacity .*expected 3 numbers > 0"),
    "capacity negative": ({"capacity": [1.0, -1.0, 1.0]}, "^capacity .*expected 3 numbers > 0"),
    "capacity NaN": ({"capacity": [1.0, NAN, 1.0]}, "^capacity .*expected 3 numbers > 0"),
    "capacity infinite": ({"capacity": [1.0, math.inf, 1.0]}, "^capacity .*expected 3 numbers > 0"),
    "capacity text": ({"capacity": ["a", "b", "c"]}, "^capacity .*expected 3 numbers > 0"),
    "capacities ragged": ({"capacity": [[1.0], [1.0, 2.0], [1.0]]}, "^capacity .*expected 3 numbers > 0"),
    "no reducers": ({"n_reducers": 0}, "^n_reducers = 0: expected a whole number >= 1"),
    "chunk size": ({"chunk_size": 0}, "^chunk_size = 0: expected a whole number >= 1"),
    "time window without times": ({"window": Window(1.0, 1.0, "time")}, "^window.by = 'time': expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    given, message = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(make("pkg", n_workers=3), make_workload("uniform", n_tuples=50, n_keys=5), **given)
    assert len(str(caught.value).splitlines()) == 1


class EnoughError(Exception):
    pass


class Impatient(Partitioner):
    """Stops the simulation after some tuples."""

    def __init__(self, *, n_workers, seed=0, patience=1_000):
        super().__init__(n_workers=n_workers, seed=seed)
        self.patience = patience
        self.reset()

    def _reset(self):
        self.routed = 0

    def _route(self, keys, times, costs, out):
        if self.routed >= self.patience:
            raise EnoughError
        self.routed += len(keys)
        out[:] = keys % self.n_workers


def peak_of_first_slides(n_tuples):
    stream = make_workload("zipf", n_tuples=n_tuples, n_keys=1_000, arrivals="constant", n_sources=2)
    partitioner = Impatient(n_workers=4, patience=30_000)
    tracemalloc.start()
    try:
        with pytest.raises(EnoughError):
            simulate(partitioner, stream, window=Window(10_000, 1_000), chunk_size=5_000)
        return tracemalloc.get_traced_memory()[1], partitioner.routed
    finally:
        tracemalloc.stop()


def test_memory_does_not_depend_on_the_length_of_the_stream():
    peak_of_first_slides(40_000)  # whatever is made once
    short, routed = peak_of_first_slides(40_000)
    assert routed == 30_000
    billions, routed = peak_of_first_slides(10_000_000_000)
    assert routed == 30_000
    # Not even a byte per hundred thousand tuples.
    assert billions <= short + 100_000


def test_a_stream_of_a_billion_tuples_starts_as_a_short_one_does():
    first, long = (make_workload("zipf", n_tuples=n, n_keys=1_000, seed=3) for n in (20_000, 1_000_000_000))
    short_chunks, long_chunks = first.chunks(8_192), long.chunks(8_192)
    for _ in range(2):
        np.testing.assert_array_equal(next(short_chunks).keys, next(long_chunks).keys)
    last = next(long.chunks(10, start=999_999_995))
    assert last.start == 999_999_995
    assert len(last.keys) == 5
