"""The queue model from a configuration: a record, its table, its series, and one clear line for a mistake."""

import numpy as np
import pytest

from dalton.envs.errors import ConfigError
from dalton.experiments import tracking
from dalton.experiments.comparison import tables
from dalton.experiments.execute import execute, new_folder, read_record, write_record
from dalton.experiments.records import QUEUE_METRICS, summarise
from dalton.experiments.settings import Cluster, Job, Runtime, Tracking, cluster_of, runtime_of

COSTLY = {"name": "zipf", "n_tuples": 6_000, "n_keys": 200, "cost_mean": 0.01, "cost_spread": 0.9}
WINDOW = {"size": 1000, "slide": 200}


def job(queue, measure="tuples"):
    return Job(
        partitioner="pkg",
        params={},
        workload=COSTLY,
        cluster=Cluster(n_workers=3, window=WINDOW, capacity=[1.0, 1.0, 2.0], queue=queue),
        runtime=Runtime(measure=measure),
        seed=0,
        partitioner_label="pkg",
        workload_label="costly",
    )


@pytest.fixture(scope="module")
def record():
    schedule = [{"worker": 0, "capacity": 0.5, "at_tuple": 3_000}]
    return execute(job({"over_provisioning": 110.0, "schedule": schedule}), show_progress=False)


def test_a_record_holds_what_the_queues_did(record, tmp_path):
    assert record.summary["completion_mean"] > 0
    assert record.summary["completion_p50"] <= record.summary["completion_p99"]
    assert (record.slides["completed"] >= 0).all()
    with new_folder(tmp_path / "result") as draft:
        write_record(draft, job({"over_provisioning": 110.0}), record)
    again = read_record(tmp_path / "result")
    np.testing.assert_equal(again.summary, record.summary)  # a NaN is equal to a NaN
    np.testing.assert_array_equal(again.slides["queue"], record.slides["queue"])


def test_load_in_time_is_a_setting_of_the_runtime():
    capacity = np.array([1.0, 1.0, 2.0])
    by_tuples, by_time = (execute(job(None, measure), show_progress=False) for measure in ("tuples", "time"))
    spread = [(one.loads[-1] / capacity).std() for one in (by_tuples, by_time)]
    assert spread[1] < spread[0]


def test_tables_have_completion_times_where_there_are_any(record):
    plain = execute(job(None), show_progress=False)
    assert not set(summarise([plain])) & set(QUEUE_METRICS)
    assert set(summarise([record])) > set(QUEUE_METRICS)
    label = QUEUE_METRICS["completion_mean"].label
    for one, there in [(plain, False), (record, True)]:
        (table,) = tables([one])
        assert (label in [column.header for column in table.columns]) == there


def test_series_of_the_queues_are_recorded(record, mlflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result").mkdir()
    store = tracking.Store(Tracking(experiment="queues"))
    run = store.start("it", tags={})
    store.log_record(run, record, tmp_path / "result")
    for name in tracking.QUEUE_SERIES:
        points = store.client.get_metric_history(run, f"slide/{name}")
        np.testing.assert_allclose([point.value for point in points], record.slides[name])
    metrics = store.client.get_run(run).data.metrics
    assert metrics["completion_p99"] == record.summary["completion_p99"]


@pytest.mark.parametrize(
    ("check", "given", "message"),
    [
        (cluster_of, {"queue": {"rate": -1}}, "queue.rate = -1: expected a number > 0"),
        (cluster_of, {"queue": {"pace": 1}}, "queue = {'pace': 1}: expected the fields rate"),
        (runtime_of, {"measure": "seconds"}, "runtime.measure = 'seconds': unknown"),
    ],
)
def test_mistakes_are_one_clear_line(check, given, message):
    base = {"n_workers": 3, "window": WINDOW} if check is cluster_of else {}
    with pytest.raises(ConfigError) as caught:
        check({**base, **given})
    assert str(caught.value).startswith(message)
