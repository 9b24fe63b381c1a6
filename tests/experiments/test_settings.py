"""Settings become jobs, and what is not allowed is found before anything runs; the YAML files agree."""

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import yaml

from dalton.envs.errors import ConfigError
from dalton.envs.workloads import WORKLOADS, make_workload
from dalton.experiments.registry import options, partitioner_config
from dalton.experiments.settings import (
    Cluster,
    Job,
    Runtime,
    Tracking,
    cluster_of,
    grid,
    runtime_of,
    single,
    tracking_of,
    workload_label,
)
from dalton.experiments.throughput import Costs

WINDOW = {"size": 1000, "slide": 100}
ZIPF = {"name": "zipf", "n_tuples": 2000, "n_keys": 50}


def job(**changed):
    given = {
        "partitioner": "pkg",
        "params": {"d": 2},
        "workload": ZIPF,
        "cluster": Cluster(n_workers=4, window=WINDOW),
        "runtime": Runtime(),
        "seed": 0,
        "partitioner_label": "pkg",
        "workload_label": "zipf",
    }
    return Job(**{**given, **changed})


def config(**changed):
    given = {
        "partitioner": {"_target_": "x", "d": 2, "window": None},
        "workload": ZIPF,
        "cluster": {"n_workers": 4, "window": WINDOW},
        "runtime": {"name": "simulator"},
        "partitioners": ["kg", "pkg"],
        "workloads": None,
        "workers": None,
        "seed": 3,
        "seeds": 2,
        "paper": None,
    }
    return {**given, **changed}


def content(group, name):
    return yaml.safe_load((files("dalton.conf") / group / f"{name}.yaml").read_text(encoding="utf-8"))


def test_every_workload_has_a_file():
    assert options("workload") == sorted(WORKLOADS)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workloads_file_has_the_parameters_and_defaults_of_its_class(name):
    given = content("workload", name)
    parameters = WORKLOADS[name].parameters()
    assert given.pop("name") == name
    assert set(given) == set(parameters) - {"seed"}, "the seed is that of the run"
    for field, parameter in parameters.items():
        if field != "seed" and parameter.default is not parameter.empty:
            assert (given[field], type(given[field])) == (parameter.default, type(parameter.default)), field


def test_the_clusters_file_has_the_costs_of_the_model():
    given = content("cluster", "default")
    assert (given["combine_ns"], given["merge_ns"]) == (Costs().combine_ns, Costs().merge_ns)
    assert cluster_of(given) == Cluster(
        n_workers=16, window={"size": 200_000, "slide": 20_000, "by": "count"}
    )


def test_the_other_files_have_the_defaults_of_their_classes():
    assert runtime_of(content("runtime", "simulator")) == Runtime()
    assert tracking_of(content("tracking", "mlflow")) == Tracking()
    assert tracking_of(content("tracking", "none")) == replace(Tracking(), enabled=False)


DECISIVE = {
    "partitioner": "kg",
    "params": {"d": 3},
    "workload": {**ZIPF, "n_keys": 51},
    "cluster": Cluster(n_workers=5, window=WINDOW),
    "runtime": Runtime(view="local"),
    "seed": 1,
}


@pytest.mark.parametrize("field", DECISIVE)
def test_the_identity_depends_on_what_decides_the_outcome(field):
    assert job(**{field: DECISIVE[field]}).identity != job().identity


@pytest.mark.parametrize("field", ["partitioner_label", "workload_label", "paper"])
def test_the_identity_does_not_depend_on_what_it_is_called(field):
    assert job(**{field: "something else"}).identity == job().identity
    assert job().identity == job(params=dict(reversed(job().params.items()))).identity


def test_settings_are_flattened_with_dots():
    flat = job(cluster=Cluster(n_workers=4, window=WINDOW, capacity=[1.0, 2.0, 1.0, 1.0])).flat()
    assert flat["partitioner.name"] == "pkg"
    assert flat["partitioner.d"] == 2
    assert flat["cluster.window.size"] == 1000
    assert flat["cluster.capacity"] == [1.0, 2.0, 1.0, 1.0]
    assert flat["runtime.view"] == "global"
    assert flat["workload.n_keys"] == 50
    assert flat["seed"] == 0
    assert not any(isinstance(value, dict) for value in flat.values())


def test_the_runs_seed_is_that_of_the_stream_and_of_the_partitioner():
    partitioner, workload = job(seed=7).build()
    assert (partitioner.params["seed"], workload.seed) == (7, 7)
    _, workload = job(seed=7, workload={**ZIPF, "seed": 2}).build()
    assert workload.seed == 2, "unless the stream has its own"


def test_a_single_job_is_that_of_the_groups():
    made = single(config(), "pkg")
    assert (made.partitioner, made.params, made.seed) == ("pkg", {"d": 2, "window": None}, 3)
    assert made.title == "pkg · zipf n_keys=50 · n=4 · seed 3"


def test_a_grid_is_every_combination_on_the_same_streams():
    jobs = grid(config(workloads=["zipf", {"name": "uniform", "label": "flat"}], workers=[2, 4]))
    kinds = [(j.workload_label, j.cluster.n_workers, j.seed, j.partitioner) for j in jobs]
    assert kinds == [
        (w, n, s, p) for w in ("zipf", "flat") for n in (2, 4) for s in (3, 4) for p in ("kg", "pkg")
    ]
    streams = {}
    for one in jobs:
        _, workload = one.build()
        keys = next(workload.chunks(stop=1000)).keys
        first = streams.setdefault((one.workload_label, one.seed), keys)
        np.testing.assert_array_equal(keys, first, err_msg=one.title)
    assert len({keys.tobytes() for keys in streams.values()}) == 4, "other seeds and workloads are others"


def test_without_workloads_and_workers_a_grid_has_those_of_the_groups():
    assert {(j.workload["n_keys"], j.cluster.n_workers) for j in grid(config())} == {(50, 4)}


def test_a_partitioner_with_a_window_gets_that_of_the_cluster():
    jobs = grid(
        config(partitioners=["pkg", "dalton", {"name": "dalton", "window": {"size": 20, "slide": 2}}])
    )
    assert partitioner_config("dalton")[1]["window"] is not None
    windows = {
        j.partitioner_label.partition(" ")[0] + str(len(j.partitioner_label)): j.params["window"]
        for j in jobs
    }
    assert list(windows.values()) == [None, WINDOW, {"size": 20, "slide": 2}]


def test_an_entry_may_have_a_label_parameters_and_settings_of_the_cluster():
    entries = [{"name": "pkg", "label": "five", "d": 5}, {"name": "pkg", "d": 3, "forwarding": False}]
    five, three = grid(config(partitioners=entries, seeds=1))
    assert (five.partitioner_label, five.params["d"], five.cluster.forwarding) == ("five", 5, True)
    assert three.partitioner_label == "pkg d=3 forwarding=False"
    assert (three.params["d"], three.cluster.forwarding) == (3, False)
    assert "forwarding" not in three.params


def test_a_workload_may_have_an_over_provisioning_of_its_own():
    streams = [{**ZIPF, "label": f"{p} %", "over_provisioning": p} for p in (95.0, 105.0)]
    given = config(partitioners=["pkg"], workloads=streams, seeds=1)
    with pytest.raises(ConfigError, match=r"^workloads.over_provisioning = 95.0: expected a cluster.queue$"):
        grid(given)
    given["cluster"]["queue"] = {"over_provisioning": 100.0, "service": 0.5}
    jobs = grid(given)
    assert [job.cluster.queue["over_provisioning"] for job in jobs] == [95.0, 105.0]
    assert {job.cluster.queue["service"] for job in jobs} == {0.5}
    assert all("over_provisioning" not in job.workload for job in jobs)


def test_hash_seeds_give_the_same_stream_to_several_seeds():
    jobs = grid(config(partitioners=["pkg"], workloads=[ZIPF], seed=7, seeds=2, hash_seeds=3))
    assert [(job.seed, job.workload["seed"]) for job in jobs] == [
        (7, 7),
        (8, 7),
        (9, 7),
        (10, 8),
        (11, 8),
        (12, 8),
    ]
    keys = [np.concatenate([chunk.keys for chunk in job.build()[1].chunks()]) for job in jobs]
    np.testing.assert_array_equal(keys[0], keys[2])
    assert (keys[0] != keys[3]).any()
    assert [job.build()[0].seed for job in jobs] == [7, 8, 9, 10, 11, 12]
    with pytest.raises(ConfigError, match=r"^hash_seeds = 0: expected a whole number >= 1$"):
        grid(config(partitioners=["pkg"], workloads=[ZIPF], hash_seeds=0))


def test_a_workload_is_called_by_what_is_not_default():
    assert workload_label({"name": "zipf"}) == "zipf"
    assert workload_label({"name": "zipf", "exponent": 1.5, "n_tuples": 5, "seed": 3}) == "zipf exponent=1.5"
    assert workload_label({"name": "zipf", "n_keys": make_workload("zipf").n_keys}) == "zipf"


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - {"trace", "multi"}))
def test_a_workload_of_its_file_is_called_by_its_name(name):
    assert workload_label(content("workload", name)) == name


def test_a_trace_is_called_by_its_file(tmp_path):
    np.savez(tmp_path / "clicks.npz", key=np.arange(5))
    given = {**content("workload", "trace"), "path": str(tmp_path / "clicks.npz")}
    assert workload_label(given) == "trace clicks.npz"


WRONG = {
    "no list": ({"partitioners": "kg"}, "partitioners = 'kg': expected a list of names"),
    "no names": ({"partitioners": []}, "partitioners = []: expected a list of names"),
    "nameless": ({"partitioners": [{"d": 2}]}, "expected a name or a mapping with a name"),
    "number as name": ({"partitioners": [3]}, "partitioners = 3: expected a name or a mapping with a name"),
    "twice": ({"partitioners": ["kg", "kg"]}, "appears twice; expected a label for each"),
    "same label": (
        {"partitioners": [{"name": "kg", "label": "a"}, {"name": "pkg", "label": "a"}]},
        "appears twice",
    ),
    "unknown": ({"partitioners": ["kgg"]}, "partitioner = 'kgg': unknown (did you mean 'kg'?)"),
    "unknown parameter": ({"partitioners": [{"name": "pkg", "e": 1}]}, "parameter of pkg = 'e': unknown"),
    "value of a parameter": ({"partitioners": [{"name": "pkg", "d": 0}]}, "d = 0: expected"),
    "unknown workload": ({"workloads": ["zpf"]}, "workload = 'zpf': unknown (did you mean 'zipf'?)"),
    "value of a workload": ({"workload": {**ZIPF, "exponent": 9}}, "exponent = 9: expected a number"),
    "one number of workers": ({"workers": 4}, "workers = 4: expected a list of whole numbers"),
    "no workers": ({"workers": [0]}, "workers = 0: expected a whole number >= 1"),
    "half a seed": ({"seeds": 1.5}, "seeds = 1.5: expected a whole number >= 1"),
    "negative seed": ({"seed": -1}, "seed = -1: expected a whole number >= 0"),
    "no window": ({"cluster": {"n_workers": 4, "window": None}}, "cluster.window = null"),
    "unknown view": (
        {"runtime": {"view": "lokal"}},
        "runtime.view = 'lokal': unknown (did you mean 'local'?)",
    ),
    "flag": ({"runtime": {"compare_global": 1}}, "runtime.compare_global = 1: expected true or false"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_grid_that_is_not_allowed_is_refused_before_it_runs(case, refused):
    changed, message = WRONG[case]
    assert message in refused(grid, config(**changed))


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_workers", 0), ("n_reducers", 0), ("n_partitioners", "two"), ("combine_ns", -1), ("merge_ns", None)],
)
def test_a_clusters_numbers_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"^cluster.{field} = "):
        cluster_of({"n_workers": 4, "window": WINDOW, field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("uri", ""), ("uri", 3), ("experiment", None), ("enabled", "yes")]
)
def test_trackings_values_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"^tracking.{field} = .*: expected (a text|true or false)$"):
        tracking_of({field: value})


def test_a_misspelt_key_of_a_group_is_refused(refused):
    assert "key of cluster = 'n_worker': unknown (did you mean 'n_workers'?)" in refused(
        cluster_of, {"n_worker": 4, "window": WINDOW}
    )
