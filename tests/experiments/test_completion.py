"""Figures of completion times: what is drawn is what was measured, and nothing without a queue model."""

import numpy as np
import pytest

from dalton import make, make_workload, simulate
from dalton.experiments.completion import completion_over_time, completion_sweep, speed_ups, swept
from dalton.experiments.records import Record, grouped
from dalton.experiments.report import write_report

NAMES = ("round_robin", "osg", "full_knowledge")
FAST = {"period": 50, "tolerance": 0.3}


def run(name, label="100 %", n=3, seed=0, provisioned=100.0, queue=True, called=None, **params):
    stream = make_workload(
        "zipf", n_tuples=3_000, n_keys=90, seed=seed, cost_mean=0.01, cost_spread=0.9, cost_seeded=True
    )
    result = simulate(
        make(name, n_workers=n, seed=seed, **(FAST if name == "osg" else {}), **params),
        stream,
        window={"size": 300, "slide": 300},
        queue={"over_provisioning": provisioned} if queue else None,
        show_progress=False,
    )
    return Record.of(result, partitioner=called or name, workload=label, seed=seed, shifts=(1_500,))


@pytest.fixture(scope="module")
def by_workload():
    return [
        run(name, f"{p:g} %", seed=seed, provisioned=p)
        for p in (95.0, 100.0, 110.0)
        for name in NAMES
        for seed in (0, 1)
    ]


def lines(axes, count):
    return [np.asarray(line.get_ydata(), float) for line in axes.lines[:count]]


def test_completion_times_along_the_stream(by_workload):
    records = [record for record in by_workload if record.workload == "100 %"]
    figure = completion_over_time(records)
    (axes,) = figure.axes
    first = {record.partitioner: record for record in records if record.seed == 0}
    drawn = lines(axes, 3)
    for record in first.values():
        assert any(np.array_equal(line, record.slides["completion_mean"]) for line in drawn)
    assert axes.lines[3].get_xdata()[0] == 1_500
    assert axes.get_ylabel() == "completion time (s)"
    assert {text.get_text() for text in axes.texts} == set(NAMES)


def test_against_the_workload(by_workload):
    left, right = completion_sweep(by_workload).axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["95 %", "100 %", "110 %"]
    groups = grouped(by_workload)
    names = list(next(iter(groups.values())))
    for name, mean, ratio in zip(names, lines(left, 3), lines(right, 3), strict=True):
        for at, runs in enumerate(groups.values()):
            own = [record.summary["completion_mean"] for record in runs[name]]
            base = [record.summary["completion_mean"] for record in runs["round_robin"]]
            assert mean[at] == pytest.approx(np.mean(own))
            assert ratio[at] == pytest.approx(np.mean(np.array(base) / own))
    assert set(speed_ups(next(iter(groups.values())), "round_robin")) == {1.0}


def test_against_workers_and_partitioners(by_workload):
    sizes = [run(name, n=n) for n in (2, 4) for name in NAMES]
    assert list(swept(sizes).points) == ["2", "4"]
    errors = [run("round_robin")] + [run("osg", called=str(e), error=e) for e in (1.0, 0.2, 0.05)]
    assert list(swept(errors).points) == ["1.0", "0.2", "0.05"]
    figure = completion_sweep(errors)
    assert figure.axes[0].get_xlabel() == "partitioner"
    # Both vary, or nothing does: there is no one axis.
    assert completion_sweep([*by_workload, *sizes]) is None
    assert completion_sweep([run(name) for name in NAMES]) is None


def test_without_round_robin_there_is_no_speed_up(by_workload):
    (axes,) = completion_sweep([r for r in by_workload if r.partitioner != "round_robin"]).axes
    assert axes.get_ylabel() == "mean completion time (s)"


def test_without_a_queue_model_there_is_nothing_to_draw():
    records = [run("osg", label, queue=False) for label in "ab"]
    assert completion_over_time(records[:1]) is None
    assert completion_sweep(records) is None


def test_the_report_has_both(by_workload, tmp_path):
    names = [path.name for path in write_report(tmp_path / "it.html", by_workload, title="it", command="it")]
    assert "completion.png" in names
    assert "95-n3-completion.png" in names
