"""What a run leaves in MLflow, and the store itself: made once, found again, and never in the way."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pandas as pd
import pytest
import yaml

import dalton
from dalton.envs.errors import ConfigError
from dalton.experiments import tracking
from dalton.experiments.execute import LOAD, execute, new_folder, read_record, write_record
from dalton.experiments.records import Record
from dalton.experiments.settings import Cluster, Job, Runtime, Tracking
from dalton.experiments.tracking import Store, thinned

ROOT = Path(tracking.__file__).resolve().parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


def job(**changed):
    given = {
        "partitioner": "kg",
        "params": {},
        "workload": {"name": "zipf", "n_tuples": 4_000, "n_keys": 100},
        "cluster": Cluster(n_workers=3, window={"size": 1000, "slide": 100}),
        "runtime": Runtime(),
        "seed": 5,
        "partitioner_label": "kg",
        "workload_label": "zipf",
    }
    return Job(**{**given, **changed})


def series(values, seen=None):
    values = np.asarray(values, float)
    table = pd.DataFrame({"seen": np.arange(1, len(values) + 1) if seen is None else seen, "x": values})
    return Record("kg", "zipf", 2, 0, {}, table, np.zeros((len(values), 2), np.int64))


@pytest.fixture
def store(mlflow, tmp_path, monkeypatch, made):
    """A store in the working directory: a copy, for MLflow takes long to make one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(made)
    return Store(Tracking(experiment="mine"))


@pytest.fixture(scope="module")
def made(mlflow, tmp_path_factory):
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    Store(Tracking(uri=f"sqlite:///{file}"))
    return file.read_bytes()


def test_a_sweep_from_one_line_is_one_parent_with_a_child_per_combination(sweep):
    place, done = sweep
    assert done.code == 0
    assert "Traceback" not in done.err
    assert "tracking stopped" not in done.err
    parent, children = place.family()
    assert parent.info.status == "FINISHED"
    assert [run.info.status for run in children] == ["FINISHED"] * 18
    combinations = {
        (run.data.params["partitioner.name"], run.data.params["workload.exponent"], run.data.params["seed"])
        for run in children
    }
    assert combinations == {
        (p, z, s) for p in ("kg", "pkg", "dalton") for z in ("0.5", "1.0", "1.5") for s in "01"
    }


def test_parameters_are_flat(sweep):
    place, _ = sweep
    run = next(run for run in place.family()[1] if run.data.tags["partitioner"] == "dalton")
    params = run.data.params
    assert params["cluster.window.size"] == params["partitioner.window.size"] == "20000"
    assert params["cluster.window.slide"] == params["partitioner.window.slide"] == "2000"
    assert params["cluster.n_workers"] == "4"
    assert params["workload.name"] == "zipf"
    assert params["workload.n_keys"] == "1000"
    assert params["runtime.view"] == "global"
    assert params["partitioner.epsilon"] == "0.1"
    assert not any("{" in value for value in params.values())


def test_metrics_are_the_summary_and_series_are_short(sweep, mlflow):
    place, _ = sweep
    client = mlflow.MlflowClient(place.uri)
    run = place.family()[1][0]
    record = read_record(place.artifacts(run))
    single = {name: value for name, value in run.data.metrics.items() if not name.startswith("slide/")}
    finite = {name: value for name, value in record.summary.items() if np.isfinite(value)}
    assert single == finite
    assert {"max_over_mean", "replication", "throughput", "ns_per_tuple", "regret_load"} <= set(single)
    names = {name for name in run.data.metrics if name.startswith("slide/")}
    assert names == {f"slide/{name}" for name in tracking.SERIES}
    for name in names:
        points = client.get_metric_history(run.info.run_id, name)
        steps = [point.step for point in points]
        assert steps == sorted(record.slides["seen"]), "few slides are all recorded"
        np.testing.assert_array_equal([p.value for p in points], record.slides[name.removeprefix("slide/")])


def test_tags_say_what_ran_and_with_what(sweep):
    place, _ = sweep
    parent, children = place.family()
    git = ["git", "-C", str(ROOT)]
    commits = subprocess.check_output([*git, "rev-list", "-n", "50", "HEAD"], text=True).split()
    for run in (parent, *children):
        tags = run.data.tags
        assert tags["mlflow.source.git.commit"] in commits
        assert tags["git.dirty"] in ("true", "false")
        assert tags["version.dalton"] == dalton.__version__
        assert tags["version.numpy"] == np.__version__
        assert tags["version.numba"] == numba.__version__
        assert tags["version.python"] == ".".join(map(str, sys.version_info[:3]))
    for run in children:
        tags, params = run.data.tags, run.data.params
        assert tags["partitioner"] == params["partitioner.name"]
        assert tags["workload"].startswith("zipf n_keys=1000")
        assert tags["n_workers"] == params["cluster.n_workers"] == "4"
        assert tags["seed"] == params["seed"]
        assert "paper" not in tags
    assert parent.data.tags["kind"] == "sweep"
    assert len({run.data.tags["dalton.identity"] for run in children}) == 18


def test_the_environment_names_the_commit_and_whether_it_was_changed():
    git = ["git", "-C", str(ROOT)]
    tags = tracking.environment_tags()
    assert tags["mlflow.source.git.commit"] in subprocess.check_output(
        [*git, "log", "-5", "--format=%H"], text=True
    )
    assert tags["git.dirty"] in ("true", "false")


def test_an_experiment_of_a_paper_is_tagged_with_it(ablation):
    place, done = ablation
    assert done.code == 0, done.err
    parent, children = place.family()
    assert len(children) == 9
    assert {run.data.tags["paper"] for run in (parent, *children)} == {"Dalton Fig. 11"}
    assert parent.info.run_name == "What each part of Dalton brings"
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}


def test_artefacts_are_settings_summary_slides_and_figures(sweep):
    place, _ = sweep
    on_disk = {(record.partitioner, record.workload, record.seed): record for record in place.results()}
    assert len(on_disk) == 18
    for run in place.family()[1]:
        folder = place.artifacts(run)
        names = {path.name for path in folder.iterdir()}
        assert names == {"config.yaml", "slides.parquet", "summary.json", "balance.png", "loads.png"}
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert config["identity"] == run.data.tags["dalton.identity"]
        assert config["cluster"]["window"] == {"size": 20_000, "slide": 2_000, "by": "count"}
        record = read_record(folder)
        same = on_disk[record.partitioner, record.workload, record.seed]
        pd.testing.assert_frame_equal(record.slides, same.slides)
        table = pd.read_parquet(folder / "slides.parquet")
        assert len(table) == 15
        np.testing.assert_array_equal(table[[f"{LOAD}{w}" for w in range(4)]], record.loads)
        np.testing.assert_array_equal(record.loads.sum(axis=1)[10:], 20_000)
        assert json.loads((folder / "summary.json").read_text())["summary"]["tuples"] == 30_000
        assert all((folder / name).read_bytes().startswith(PNG) for name in ("balance.png", "loads.png"))


class Counted(Store):
    """A store that remembers what it asked of MLflow."""

    def call(self, function, *args, **kwargs):
        self.calls = [*getattr(self, "calls", []), function.__name__]
        return super().call(function, *args, **kwargs)


def test_all_points_go_in_one_batch(store, tmp_path):
    one = job(workload={"name": "zipf", "n_tuples": 30_000, "n_keys": 100})
    record = execute(one, show_progress=False)
    assert len(record.slides) == 300
    with new_folder(tmp_path / "result") as draft:
        write_record(draft, one, record)
    counted = Counted(Tracking(experiment="mine"))
    run = counted.start("it", tags={})
    counted.calls = []
    counted.log_record(run, record, tmp_path / "result")
    assert counted.calls == ["log_batch", "log_artifacts"]
    for name in tracking.SERIES:
        points = store.client.get_metric_history(run, f"slide/{name}")
        assert len(points) == tracking.POINTS
        np.testing.assert_allclose(
            [point.value for point in points],
            record.slides[name].to_numpy().reshape(tracking.POINTS, -1).mean(axis=1),
        )


def test_a_series_is_thinned_to_means():
    assert thinned(series([1, 2, 4]), "x") == [(1, 1.0), (2, 2.0), (3, 4.0)]
    n = tracking.POINTS
    assert n <= 100
    points = thinned(series(range(3 * n)), "x")
    assert len(points) == n
    assert points[0] == (3, 1.0), "the mean of 0, 1 and 2, at the last of them"
    assert points[-1] == (3 * n, 3 * n - 2)
    assert len(thinned(series(range(3 * n + 1)), "x")) == n


def test_a_series_leaves_out_what_is_no_number():
    assert thinned(series([1, np.inf, np.nan, 4]), "x") == [(1, 1.0), (4, 4.0)]
    assert thinned(series([]), "x") == []


def test_a_new_store_is_made_in_the_working_directory(store, tmp_path):
    assert store.uri == f"sqlite:///{tmp_path}/mlflow.db"
    run = store.start("it", tags={"a": "b"})
    store.log_text(run, "content", "note.txt")
    assert store.lost is None
    (note,) = tmp_path.glob("mlruns/**/note.txt")
    assert note.read_text() == "content"
    assert store.where == "dalton ui"
    other = Store(Tracking(uri=f"sqlite:///{tmp_path}/sub.db"))
    assert other.where == f"dalton ui --uri sqlite:///{tmp_path}/sub.db"


FIRST = """
import sys
from mlflow.store.tracking import sqlalchemy_store
from dalton.experiments.settings import Tracking
from dalton.experiments.tracking import Store
print("ready", flush=True)
sys.stdin.readline()
print(Store(Tracking(uri=sys.argv[1])).experiment_id)
"""


def test_processes_that_all_come_first_make_one_store(tmp_path):
    command = [sys.executable, "-c", FIRST, f"sqlite:///{tmp_path}/mlflow.db"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = [subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) for _ in range(3)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 3
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1


def test_an_experiment_that_was_deleted_is_restored(store):
    store.client.delete_experiment(store.experiment_id)
    again = Store(Tracking(experiment="mine"))
    assert again.experiment_id == store.experiment_id
    assert again.start("it", tags={}) is not None


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_store_that_is_gone_is_lost_for_good_and_no_error(store, tmp_path, made, replaced):
    run = store.start("it", tags={})
    file = tmp_path / "mlflow.db"
    file.rename(tmp_path / "elsewhere.db")
    if replaced:
        file.write_bytes(made)
    assert store.start("next", tags={}) is None
    assert "mlflow.db is gone" in store.lost
    store.end(run, tracking.FINISHED)
    store.log_metrics(run, {"x": 1.0})
    assert store.children(run) == []
    assert file.exists() == replaced


@pytest.mark.parametrize("connected", [False, True], ids=["deleted", "and an empty one made"])
def test_a_store_that_goes_in_the_midst_of_a_call_is_gone(store, tmp_path, connected):
    file = tmp_path / "mlflow.db"

    def broken():
        file.unlink()
        if connected:
            file.touch()
        raise RuntimeError("attempt to write a readonly database")

    assert store.call(broken) is None
    assert store.lost == f"{file} is gone"
    assert not file.exists()


def test_a_store_that_should_exist_is_not_made(mlflow, tmp_path, refused):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert "mlflow.db is gone" in refused(Store, Tracking(uri=uri), new=False)
    assert list(tmp_path.iterdir()) == []


def test_the_first_failure_is_kept(store):
    def broken(text):
        raise ValueError(f"{text}\nmore")

    assert store.call(broken, "first") is None
    assert store.call(broken, "second") is None
    assert store.lost == "first"


def test_a_parent_ends_its_running_children_unless_it_finished(store):
    for status, expected in {"KILLED": "KILLED", "FAILED": "FAILED", "FINISHED": "RUNNING"}.items():
        parent = store.begin_parent("sweep", "mark", resume=False, tags={})
        done, running = (store.start(name, tags={}, parent=parent) for name in "ab")
        store.end(done, "FINISHED")
        store.end_parent(parent, status)
        assert store.client.get_run(parent).info.status == status
        assert store.client.get_run(running).info.status == expected
        assert store.client.get_run(done).info.status == "FINISHED"


def test_resuming_takes_up_the_latest_parent_and_drops_what_did_not_finish(store):
    old = store.begin_parent("sweep", "mark", resume=False, tags={})
    parent = store.begin_parent("sweep", "mark", resume=True, tags={})
    assert parent == old
    done, killed = (store.start(name, tags={tracking.IDENTITY: name}, parent=parent) for name in "ab")
    store.end(done, "FINISHED")
    store.end_parent(parent, "KILLED")
    assert killed in {run.info.run_id for run in store.children(parent)}
    assert store.begin_parent("sweep", "mark", resume=True, tags={}) == parent
    assert store.client.get_run(parent).info.status == "RUNNING"
    assert store.finished(parent) == {"a": done}
    assert [run.info.run_id for run in store.children(parent)] == [done]
    assert store.begin_parent("sweep", "other", resume=True, tags={}) != parent
    assert store.begin_parent("sweep", "mark", resume=False, tags={}) != parent


def test_what_an_interrupted_process_began_is_killed(store):
    begun, ended = store.start("a", tags={}), store.start("b", tags={})
    store.end(ended, "FINISHED")
    tracking.kill_open()
    assert store.client.get_run(begun).info.status == "KILLED"
    assert store.client.get_run(ended).info.status == "FINISHED"


def test_an_interruption_waits_for_the_end_of_a_call(store):
    finished = []

    def slow():
        signal.raise_signal(signal.SIGINT)
        finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        store.call(slow)
    assert finished == [True]
    assert store.lost is None


def test_no_server_and_no_folder_are_the_users_mistakes(mlflow, tmp_path):
    with pytest.raises(ConfigError, match=r"^tracking.uri = http://127.0.0.1:9: no tracking server answers"):
        Store(Tracking(uri="http://127.0.0.1:9"))
    (tmp_path / "file").write_text("")
    for folder in ("file", "none"):
        with pytest.raises(ConfigError, match="expected a folder that can be written to"):
            Store(Tracking(uri=f"sqlite:///{tmp_path}/{folder}/mlflow.db"))
