"""Runs of cooperating partitioners through the same door as all others."""

import pytest

from dalton.envs.simulate import simulate
from dalton.experiments.execute import execute, read_record, write_record
from dalton.experiments.round_plots import convergence, rounds_over_time
from dalton.experiments.settings import Cluster, Cooperative, Job, OnRay, Runtime, runtime_of

WINDOW = {"size": 4_000, "slide": 400}
STREAM = {"name": "multi", "sources": ["uniform", {"name": "zipf", "exponent": 1.5}], "n_tuples": 12_000}


def job(runtime, partitioner="dalton", workload=STREAM, **params):
    if partitioner.startswith("dalton"):
        params = {"window": WINDOW, "statistics": "hybrid", **params}
    cluster = Cluster(n_workers=8, window=WINDOW)
    return Job(partitioner, params, workload, cluster, runtime, 1, partitioner, "two sources")


@pytest.fixture(scope="module")
def record():
    return execute(job(Cooperative()), show_progress=False)


def test_a_record_has_slides_and_rounds(record):
    assert record.summary["tuples"] == 12_000
    assert len(record.slides) == 30
    assert len(record.rounds) == record.summary["rounds"] == 29
    assert record.summary["rounds_silent"] == 0
    assert record.summary["partitioners"] == 2
    assert record.summary["forwarding"] == pytest.approx(29 / 30)  # nothing tells of the last slide


def test_a_record_is_written_with_its_rounds(record, tmp_path):
    write_record(tmp_path, job(Cooperative()), record)
    again = read_record(tmp_path)
    assert again.rounds.equals(record.rounds)


def test_without_sync_there_is_no_forwarding():
    alone = execute(job(Cooperative(sync=False)), show_progress=False)
    assert (len(alone.rounds), alone.summary["forwarding"]) == (0, 0.0)
    assert (alone.slides["aggregation_split"] == alone.slides["aggregation_cost"]).all()


def test_one_source_is_the_simulator():
    stream = {"name": "zipf", "exponent": 1.5, "n_tuples": 12_000}
    one = execute(job(Cooperative(), workload=stream, statistics="exact"), show_progress=False)
    partitioner, workload = job(Runtime(), workload=stream, statistics="exact").build()
    wanted = simulate(partitioner, workload, window=WINDOW, show_progress=False)
    assert one.loads.tolist() == wanted.loads.tolist()


def test_figures_need_rounds(record):
    assert rounds_over_time([record]) is not None
    assert convergence([record]) is not None
    simulated = execute(job(Runtime()), show_progress=False)
    assert rounds_over_time([simulated]) is None
    assert convergence([simulated]) is None


@pytest.mark.parametrize("runtime", [Cooperative(), OnRay()], ids=["cooperative", "ray"])
def test_others_are_refused_with_what_is_allowed(refused, runtime):
    text = refused(job(runtime, "pkg").build)
    assert text.startswith(f"partitioner = pkg: runtime={runtime.name} needs one that cooperates, ")
    assert "dalton or dalton_share" in text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "spark"}, "runtime.name = 'spark': unknown"),
        ({"name": "cooperative", "delai": 1}, "key of runtime = 'delai': unknown (did you mean 'delay'?)"),
        ({"name": "cooperative", "sync": 1}, "runtime.sync = 1: expected true or false"),
        ({"name": "ray", "address": 5}, "runtime.address = 5: expected a text"),
        ({"name": "ray", "num_cpus": 0}, "runtime.num_cpus = 0: expected a whole number >= 1"),
    ],
)
def test_a_mistake_in_the_runtime_is_one_line(refused, given, text):
    assert refused(runtime_of, given).startswith(text)


def test_what_the_members_do_not_allow_is_found_before_the_run(refused):
    assert refused(job(Cooperative(delay=-1)).build) == "delay = -1: expected a whole number >= 0"
    assert refused(job(OnRay(batch=0)).build) == "batch = 0: expected a whole number >= 1"
    assert refused(job(Cooperative(), statistics="sketch").build).startswith("statistics = 'sketch'")
