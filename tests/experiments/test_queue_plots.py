"""The figure of queues over time: what is drawn is what was measured."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from dalton.experiments.execute import execute, new_folder, read_record, write_record
from dalton.experiments.plots import png
from dalton.experiments.queue_plots import PANELS, POINTS, queues_over_time
from dalton.experiments.report import write_report
from dalton.experiments.settings import Cluster, Job, Runtime

SCHEDULE = [
    {"capacity": {"strong": 2, "times": 3}, "at_tuple": 3_000},
    {"worker": 0, "capacity": 0.5, "at": 4.0},
]


def record(name, seed=0, slide=200, queue=True, schedule=SCHEDULE):
    job = Job(
        partitioner=name,
        params={},
        workload={"name": "zipf", "n_tuples": 6_000, "n_keys": 200},
        cluster=Cluster(
            n_workers=4,
            window={"size": 5 * slide, "slide": slide},
            capacity={"strong": 1, "times": 2},
            queue={"rate": 1_000.0, "service": 0.0032, "schedule": schedule} if queue else None,
        ),
        runtime=Runtime(),
        seed=seed,
        partitioner_label=name,
        workload_label="zipf",
    )
    return job, execute(job, show_progress=False)


@pytest.fixture(scope="module")
def records():
    return [record(name, seed)[1] for name in ("kg", "sg", "cg") for seed in range(2)]


def test_lines_are_means_over_seeds_of_what_was_measured(records):
    figure = queues_over_time(records)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == len(PANELS)
    wanted = {
        "spread": lambda slides: slides["offered_max"] - slides["offered_min"],
        "longest": lambda slides: slides["queue_max"],
        "mean": lambda slides: slides["completion_mean"],
    }
    for axes, (word, of) in zip(figure.axes, wanted.items(), strict=True):
        assert axes.get_ylabel().startswith(word)
        drawn = {line.get_label(): line for line in axes.get_lines() if line.get_label()[0] != "_"}
        assert set(drawn) == {"kg", "sg", "cg"}
        for name, line in drawn.items():
            same = [of(one.slides).to_numpy() for one in records if one.partitioner == name]
            assert line.get_ydata() == pytest.approx(np.mean(same, axis=0))
            assert line.get_xdata() == pytest.approx(np.arange(200, 6_001, 200))
    assert "tuples" in figure.axes[-1].get_xlabel()
    assert png(figure) == png(queues_over_time(records))


def test_changes_of_capacity_are_dashed_at_their_tuples(records):
    assert records[0].changes == (3_000, pytest.approx(4_000, abs=1))
    for axes in queues_over_time(records).axes:
        marks = sorted(line.get_xdata()[0] for line in axes.get_lines() if line.get_label()[0] == "_")
        assert marks == pytest.approx([3_000, 4_000], abs=1)
    _, steady = record("sg", schedule=[])
    assert steady.changes == ()
    assert "dashed" not in " ".join(text.get_text() for text in queues_over_time([steady]).texts)


def test_many_slides_are_averaged():
    _, fine = record("sg", slide=10)
    (line,) = (line for line in queues_over_time([fine]).axes[1].get_lines() if line.get_label() == "sg")
    assert len(line.get_xdata()) == POINTS < len(fine.slides)
    assert np.mean(line.get_ydata()) == pytest.approx(fine.slides["queue_max"].mean(), rel=0.02)


def test_without_a_queue_model_there_is_no_figure(tmp_path, records):
    _, plain = record("sg", queue=False)
    assert queues_over_time([plain]) is None
    assert plain.changes == ()
    without = write_report(tmp_path / "a.html", [plain], title="t", command="c")
    with_it = write_report(tmp_path / "b" / "b.html", records, title="t", command="c")
    assert not any("queues" in path.name for path in without)
    assert any("queues" in path.name for path in with_it)
    assert "spread of utilisation" in (tmp_path / "b" / "b.html").read_text(encoding="utf-8")


def test_a_record_keeps_its_changes(tmp_path):
    job, one = record("cg")
    with new_folder(tmp_path / "result") as draft:
        write_record(draft, job, one)
    again = read_record(tmp_path / "result")
    assert again.changes == one.changes
    assert math.isclose(again.summary["offered_spread"], one.summary["offered_spread"])
