"""A comparison: paired streams, its table by hand, and what is left on disk and in MLflow."""

import math

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from dalton.experiments.comparison import best_online, processes_of, tables
from dalton.experiments.execute import TIMES, read_record
from dalton.experiments.records import Record
from dalton.experiments.settings import Cluster, Job, Runtime

PAIR = ("compare", "partitioners=[kg,pkg,dalton]", "seeds=2")


def record(partitioner, seed, load, pairs, throughput=2e6, n=4, bound=1.25):
    """A record whose least possible load is ``bound`` and whose fewest pairs are 1."""
    slides = pd.DataFrame(
        {
            "max_over_mean": [load],
            "regret_load": [load / bound - 1],
            "replication": [pairs],
            "regret_pairs": [pairs - 1],
        }
    )
    summary = {"max_over_mean": load, "replication": pairs, "throughput": throughput}
    return Record(partitioner, "zipf", n, seed, summary, slides, np.zeros((1, n), np.int64))


def text_of(table):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


def cells(table):
    columns = [list(column.cells) for column in table.columns]
    return {row[0]: list(row[1:]) for row in zip(*columns, strict=True)}


SOME = [
    record("kg", 0, 2.0, 1.0, 1e6),
    record("kg", 1, 3.0, 1.0, 3e6),
    record("pkg", 0, 1.5, 1.75),
    record("pkg", 1, 1.5, 1.25),
    record("oracle", 0, 1.25, 1.0, 9e6),
    record("oracle", 1, 1.25, 1.0, 9e6),
]


def test_a_table_has_means_and_intervals():
    (table,) = tables(SOME)
    rows = cells(table)
    # Student's t for two seeds is 12.706, so that half of the interval is 12.706 · |a - b| / 2.
    assert rows["kg"][0] == "2.500 ± 6.353"
    assert rows["pkg"][1] == "1.500 ± 3.177"
    assert rows["kg"][2] == "[bold]2.00[/] ± 12.71" or rows["kg"][2] == "[bold]2.00 ± 12.71[/]"
    assert [column.header for column in table.columns] == [
        "partitioner",
        "max/mean load",
        "pairs per key",
        "M tuples/s",
    ], "nothing was measured of the others"
    assert table.title == "zipf, 4 workers, 2 seeds (mean ± 95 % interval)"


def test_the_best_that_can_be_used_is_bold():
    (table,) = tables(SOME)
    rows = cells(table)
    bold = {(name, at) for name, row in rows.items() for at, text in enumerate(row) if "[bold]" in text}
    assert ("pkg", 0) in bold, "least load, but for the oracle"
    assert ("kg", 0) not in bold
    assert ("kg", 1) in bold, "fewest pairs"
    assert ("pkg", 1) not in bold
    assert {("kg", 2), ("pkg", 2)} <= bold, "both have 2 M tuples/s"
    assert ("oracle", 2) not in bold, "knows the future"


def test_the_last_row_is_the_bound():
    (table,) = tables(SOME)
    assert list(cells(table))[-1] == "bound"
    assert cells(table)["bound"] == ["1.250", "1.000", ""]
    assert "bound" in text_of(table)


def test_there_is_a_table_per_workload_and_number_of_workers_and_no_interval_of_one_seed():
    first, second = tables([record("kg", 0, 2.0, 1.0, n=8), record("kg", 0, 2.5, 1.0, n=2)])
    assert first.title == "zipf, 2 workers, 1 seed (mean ± 95 % interval)"
    assert second.title.startswith("zipf, 8 workers")
    assert cells(first)["kg"][0] == "[bold]2.500[/]"


def job(name, label=None):
    return Job(name, {}, {}, Cluster(4, {}), Runtime(), 0, partitioner_label=label or name)


def test_the_best_online_has_the_most_throughput_of_those_that_see_the_load():
    jobs = [job(name) for name in ("kg", "pkg", "dagreedy", "off_greedy")]
    rates = {"kg": 9e6, "pkg": 3e6, "dagreedy": 4e6, "off_greedy": 9e6}
    records = [record(name, 0, 1.5, 1.0, rate) for name, rate in rates.items()]
    assert best_online(jobs, records).partitioner == "dagreedy", "kg is blind, off_greedy looks ahead"
    assert best_online(jobs[:1], records[:1]) is None
    unknown = [record("pkg", 0, 1.5, 1.0, math.nan)]
    assert best_online(jobs, unknown) is None


def test_the_best_online_goes_by_label_and_mean():
    jobs = [job("pkg", "two"), job("pkg", "five")]
    records = [record("two", 0, 1.5, 1.0, 5e6, n=4), record("two", 0, 1.5, 1.0, 1e6, n=8)]
    records += [record("five", 0, 1.5, 1.0, 4e6, n=n) for n in (4, 8)]
    assert best_online(jobs, records).partitioner_label == "five"


def test_processes_are_one_per_core_unless_said(refused):
    assert processes_of(None) >= 1
    assert processes_of(3) == 3
    assert refused(processes_of, 0) == "jobs = 0: expected a whole number >= 1"


@pytest.fixture(scope="session")
def compared(once, small):
    """A comparison on two processes."""
    return once("compared", *PAIR, "jobs=2", *small)


def steady(records):
    return {
        (r.partitioner, r.seed): {
            **{name: value for name, value in r.summary.items() if not name.startswith(TIMES)},
            "loads": r.loads,
        }
        for r in records
    }


def test_a_comparison_is_one_parent_with_a_child_per_run(compared):
    place, done = compared
    assert done.code == 0, done.err
    parent, children = place.family()
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["kind"] == "comparison"
    assert {(run.data.tags["partitioner"], run.data.tags["seed"]) for run in children} == {
        (name, seed) for name in ("kg", "pkg", "dalton") for seed in "01"
    }
    for run in children:
        assert run.info.status == "FINISHED"
        assert run.info.end_time >= run.info.start_time
        assert run.data.params["workload.n_tuples"] == "30000"
        assert run.data.metrics["tuples"] == 30_000
        found = read_record(place.artifacts(run))
        assert found.summary["max_over_mean"] == run.data.metrics["max_over_mean"]


def test_a_comparison_prints_its_table_and_writes_its_report(compared):
    place, done = compared
    for text in ("kg", "pkg", "dalton", "bound", "zipf n_keys=1000, 4 workers, 2 seeds", "±", "Runs:"):
        assert text in done.out
    assert "Best throughput of those that adapt online: " in done.out
    (report,) = place.folder.glob("outputs/*/*/report.html")
    page = report.read_text()
    assert "data:image/png;base64" in page
    assert "dalton compare partitioners=[kg,pkg,dalton] seeds=2" in page
    assert f"Report:       {report}" in done.out
    assert list((report.parent / "figures").glob("*.png"))
    parent, _ = place.family()
    kept = place.artifacts(parent)
    assert (kept / "report.html").read_text() == page
    figures = [{path.name for path in (folder / "figures").iterdir()} for folder in (kept, report.parent)]
    assert figures[0] == figures[1] != set()


def test_every_partitioner_saw_the_same_keys(compared):
    place, _ = compared
    distinct = {}
    for found in place.results():
        distinct.setdefault(found.seed, []).append(tuple(found.slides["keys"]))
    assert {seed: len(values) for seed, values in distinct.items()} == {0: 3, 1: 3}
    assert all(len(set(values)) == 1 for values in distinct.values())
    assert distinct[0][0] != distinct[1][0]


def test_the_outcome_depends_neither_on_processes_nor_on_the_time_of_day(compared, place, small):
    first, _ = compared
    done = place.here(*PAIR, "jobs=1", "tracking=none", *small)
    assert done.code == 0, done.err
    again, before = steady(place.results()), steady(first.results())
    assert len(again) == 6
    np.testing.assert_equal(again, before)
    assert not (place.folder / "mlflow.db").exists()


def test_a_run_that_fails_is_recorded_and_the_others_finish(place, small):
    wrong = ("workers=[2,3]", "cluster.capacity=[1,1]", *small[1:])
    done = place.here("compare", "partitioners=[kg,pkg]", "seeds=1", *wrong)
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("Error: 2 of the runs failed: see their traceback")
    assert "kg · zipf n_keys=1000 · n=3 · seed 0 failed: " in done.err
    parent, children = place.family()
    assert parent.info.status == "FAILED"
    statuses = {(run.data.tags["partitioner"], run.data.tags["n_workers"]): run for run in children}
    assert {key: run.info.status for key, run in statuses.items()} == {
        (name, n): "FINISHED" if n == "2" else "FAILED" for name in ("kg", "pkg") for n in "23"
    }
    for (_, n), run in statuses.items():
        names = {path.name for path in place.artifacts(run).iterdir()}
        assert ("traceback.txt" in names) == (n == "3")
    trace = place.artifacts(statuses["kg", "3"]) / "traceback.txt"
    assert "Traceback (most recent call last)" in trace.read_text()
    assert "capacity" in trace.read_text()
    assert len(place.results()) == 2
    assert "zipf n_keys=1000, 2 workers" in done.out, "what there is, is shown"
