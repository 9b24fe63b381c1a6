"""A job gives the same record every time, and its folder is the old one or the new one, never a part."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from dalton.envs.simulate import simulate
from dalton.envs.workloads import make_workload
from dalton.experiments.execute import TIMES, execute, new_folder, read_record, shifts_of, write_record
from dalton.experiments.settings import Cluster, Job, Runtime

SWAP = {"name": "swap", "n_tuples": 6_000, "n_keys": 200, "exponent": 1.2, "every": 2_000}


def job(partitioner="pkg", *, seed=1, runtime=None, **cluster):
    window = {"size": 1000, "slide": 200}
    return Job(
        partitioner=partitioner,
        params={},
        workload=SWAP,
        cluster=Cluster(**{"n_workers": 3, "window": window, **cluster}),
        runtime=runtime or Runtime(),
        seed=seed,
        partitioner_label="mine",
        workload_label="drift",
    )


def steady(summary):
    return {name: value for name, value in summary.items() if not name.startswith(TIMES)}


@pytest.fixture(scope="module")
def record():
    return execute(job(), show_progress=False)


def test_a_record_is_what_the_simulator_measured(record):
    partitioner, workload = job().build()
    result = simulate(partitioner, workload, window=job().cluster.window, n_reducers=16)
    for name, value in steady(result.summary()).items():
        assert record.summary[name] == value or np.isnan(value), name
    np.testing.assert_array_equal(record.loads, result.loads)
    assert (record.partitioner, record.workload, record.n_workers, record.seed) == ("mine", "drift", 3, 1)
    assert record.shifts == (2_000, 4_000)


def test_throughput_is_measured_per_slide_and_in_all(record):
    assert record.summary["throughput"] > 0
    assert (record.slides["throughput"] > 0).all()
    assert record.summary["seconds"] > 0


def test_the_same_job_gives_the_same_record_but_for_times(record):
    again = execute(job(), show_progress=False)
    np.testing.assert_equal(steady(again.summary), steady(record.summary))
    assert len(steady(record.summary)) > 10
    columns = [name for name in record.slides if not name.startswith(TIMES)]
    pd.testing.assert_frame_equal(again.slides[columns], record.slides[columns])


def test_another_seed_gives_another_record(record):
    assert not np.array_equal(execute(job(seed=2), show_progress=False).loads, record.loads)


def test_settings_of_cluster_and_runtime_matter(record):
    base = record.summary
    dear = execute(job(merge_ns=1e6, forwarding=False), show_progress=False).summary
    assert dear["limit_reducers"] < base["limit_reducers"]
    few = execute(job(n_reducers=1), show_progress=False).summary
    assert few["aggregation_cost"] > base["aggregation_cost"]
    compared = execute(job(runtime=Runtime(compare_global=True)), show_progress=False).summary
    assert steady(compared)["max_over_mean"] == base["max_over_mean"]


def test_only_partitioners_that_know_what_is_split_forward():
    def limit(name, forwarding):
        return execute(job(name, forwarding=forwarding), show_progress=False).summary["limit_reducers"]

    assert limit("kg", True) > limit("kg", False), "of key grouping no key is split"
    assert limit("pkg", True) == limit("pkg", False)


def test_a_record_survives_its_folder(record, tmp_path):
    write_record(tmp_path, job(), record)
    again = read_record(tmp_path)
    pd.testing.assert_frame_equal(again.slides, record.slides)
    np.testing.assert_array_equal(again.loads, record.loads)
    assert again.loads.dtype == record.loads.dtype
    np.testing.assert_equal(again.summary, record.summary)
    for name in ("partitioner", "workload", "n_workers", "seed", "shifts"):
        assert getattr(again, name) == getattr(record, name)


def test_the_files_are_readable_without_the_project(record, tmp_path):
    write_record(tmp_path, job(), record)
    settings = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert settings["workload"] == SWAP
    assert settings["identity"] == job().identity
    assert json.loads((tmp_path / "summary.json").read_text())["summary"]["tuples"] == 6_000
    table = pd.read_parquet(tmp_path / "slides.parquet")
    assert list(table.columns[-3:]) == ["load_0", "load_1", "load_2"]
    assert len(table) == 30


def test_shifts_are_where_the_distribution_changes():
    assert shifts_of(make_workload(SWAP)) == (2_000, 4_000)
    assert shifts_of(make_workload("zipf")) == ()


def test_a_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "result"
    with new_folder(target) as draft:
        (draft / "a").write_text("1")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert [path.name for path in target.parent.iterdir()] == ["result"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_the_old_one(tmp_path, error):
    target = tmp_path / "result"
    with new_folder(target) as draft:
        (draft / "old").write_text("1")

    def fail():
        with new_folder(target) as draft:
            (draft / "new").write_text("2")
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert [path.name for path in target.iterdir()] == ["old"]
    with new_folder(target) as draft:
        (draft / "new").write_text("2")
    assert [path.name for path in target.iterdir()] == ["new"]
