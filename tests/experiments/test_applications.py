"""Applications and the measure of load as settings of a run, of a comparison and of one of its entries."""

import math

import pytest

from dalton.envs.errors import ConfigError
from dalton.experiments.execute import execute, read_record, write_record
from dalton.experiments.plots import across, memory_plane, work_over_time
from dalton.experiments.records import ANSWER_METRICS, summarise
from dalton.experiments.settings import Job, cluster_of, grid, runtime_of

ZIPF = {"name": "zipf", "n_tuples": 6_000, "n_keys": 500, "cost_mean": 0.001, "cost_spread": 0.8}
WINDOW = {"size": 2_000, "slide": 1_000}


def job(partitioner="pkg", application=None, queue=None, **more):
    return Job(
        partitioner=partitioner,
        params={},
        workload=ZIPF,
        cluster=cluster_of({"n_workers": 4, "window": WINDOW, "queue": queue}),
        runtime=runtime_of({}),
        seed=0,
        partitioner_label=more.pop("label", partitioner),
        workload_label=more.pop("stream", "zipf"),
        application=application,
    )


def config(**more):
    return {
        "partitioners": ["pkg"],
        "workloads": [ZIPF],
        "workers": [4],
        "seed": 0,
        "seeds": 1,
        "cluster": {"n_workers": 4, "window": WINDOW},
        "runtime": {},
        "application": None,
        "paper": None,
        **more,
    }


def test_a_run_without_an_application_is_the_same_as_before():
    plain = job()
    assert "application" not in plain.flat()
    record = execute(plain, show_progress=False)
    assert not set(ANSWER_METRICS) & set(record.summary)
    assert "answer_work" not in record.slides
    assert not set(ANSWER_METRICS) & set(summarise([record]))
    assert work_over_time([record]) is None
    assert memory_plane([record]) is None
    assert job(application={"name": "word_count"}).identity != plain.identity


def test_answers_are_measured_written_and_read(tmp_path):
    one = job(application={"name": "heavy_hitters", "capacity": 20, "every": 2})
    record = execute(one, show_progress=False)
    assert 0 < record.summary["answer_error"] < 0.1
    assert record.summary["answer_memory"] == 4 * 20
    assert len(record.slides) == 6
    # Two slides are one period.
    assert record.slides["answer_error"].iloc[0] == record.slides["answer_error"].iloc[1]
    assert set(ANSWER_METRICS) < set(summarise([record]))
    write_record(tmp_path, one, record)
    assert read_record(tmp_path).summary["answer_error"] == record.summary["answer_error"]
    assert work_over_time([record]) is not None


def test_counters_that_are_sent_delay_the_tuples():
    words = {"name": "word_count", "every": 1}
    queue = {"over_provisioning": 120.0}
    free = execute(job("sg", words, queue), show_progress=False)
    busy = execute(job("sg", words, queue | {"flush": 0.001}), show_progress=False)
    less = execute(job("kg", words, queue | {"flush": 0.001}), show_progress=False)
    assert busy.summary["makespan"] > free.summary["makespan"]
    assert busy.summary["completion_mean"] > free.summary["completion_mean"]
    assert busy.summary["unfinished"] == free.summary["unfinished"] == 0
    assert busy.summary["answer_memory"] > less.summary["answer_memory"]
    figure = memory_plane([busy])
    assert figure is not None
    (axes,) = figure.axes
    assert "per worker" in axes.get_xlabel()
    streams = [execute(job("sg", None, queue, stream=name), show_progress=False) for name in ("a", "b", "c")]
    (axes,) = across(streams, "completion_rate").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b", "c"]


def test_an_entry_has_its_own_measure_and_application():
    entries = [
        "dalton",
        {"name": "dalton", "label": "by time", "measure": "time"},
        {"name": "pkg", "application": {"name": "word_count", "every": 1}, "label": "words"},
    ]
    jobs = grid(config(partitioners=entries, application="naive_bayes"))
    assert [one.runtime.measure for one in jobs] == ["tuples", "time", "tuples"]
    assert [one.application["name"] for one in jobs] == ["naive_bayes", "naive_bayes", "word_count"]
    assert len({one.identity for one in jobs}) == 3
    blind, aware, _ = (execute(one, show_progress=False) for one in jobs)
    assert not math.isnan(aware.summary["answer_error"])
    assert blind.summary["answer_error"] == aware.summary["answer_error"] == 0.0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"application": "wordcount"},
            "application.name = 'wordcount': unknown (did you mean 'word_count'?)",
        ),
        ({"application": {"name": "word_count", "every": 0}}, "application.every = 0: expected"),
        ({"partitioners": [{"name": "pkg", "measure": "work"}]}, "runtime.measure = 'work': unknown"),
    ],
)
def test_mistakes_are_found_before_anything_runs(more, message):
    with pytest.raises(ConfigError) as caught:
        grid(config(**more))
    assert str(caught.value).startswith(message)
