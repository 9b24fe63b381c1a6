"""A search: its objective by hand, a child run per trial, and taking it up again."""

import pytest
import yaml

from dalton.experiments.comparison import Outcome
from dalton.experiments.records import Record
from dalton.experiments.tune import Search

SPACE = {"epsilon": {"low": 0.01, "high": 0.5, "log": True}, "p1": {"low": 0.1, "high": 0.9}}
GIVEN = {"partitioner": "dalton_share", "trials": 3, "pairs_weight": 0.5, "space": SPACE}
STREAM = "{name: zipf, n_tuples: 30000, n_keys: 1000, exponent: 1.5}"
TUNE = ("tune", f"workloads=[{STREAM}]", "workers=[4]", "jobs=1")
WINDOW = ("cluster.window.size=20000", "cluster.window.slide=2000")


def outcome(load, pairs):
    record = Record("trial", "zipf", 4, 0, {"max_over_mean": load, "replication": pairs}, None, None)
    return Outcome(record, "", 0.0, 1.0)


def test_the_objective_is_load_and_the_price_of_pairs():
    metrics = Search(GIVEN).objective([outcome(1.0, 1.5), outcome(2.0, 2.5)])
    assert metrics == {
        "objective": 1.5 + 0.5 * (2.0 - 1.0),
        "max_over_mean": 1.5,
        "max_over_mean_worst_run": 2.0,
        "replication": 2.0,
    }


def test_a_trial_with_a_failed_run_has_no_objective(refused):
    failed = Outcome(None, "Traceback\nValueError: no\n", 0.0, 1.0)
    message = refused(Search(GIVEN).objective, [outcome(1.0, 1.0), failed])
    assert message == "a run of the trial failed: ValueError: no"


WRONG = {
    "misspelt": ({"trails": 3}, "key of search = 'trails': unknown (did you mean 'trials'?)"),
    "no trials": ({"trials": 0}, "search.trials = 0: expected a whole number >= 1"),
    "negative price": ({"pairs_weight": -1}, "search.pairs_weight = -1: expected a number >= 0"),
    "unknown partitioner": (
        {"partitioner": "dalten"},
        "partitioner = 'dalten': unknown (did you mean 'dalton'?)",
    ),
    "no space": ({"space": {}}, "search.space = {}: expected a range for each parameter"),
    "unknown parameter": ({"space": {"p2": {"low": 0, "high": 1}}}, "key of search.space = 'p2': unknown"),
    "no upper end": ({"space": {"p1": {"low": 0}}}, "search.space.p1.high = None: expected a number > 0"),
    "empty range": (
        {"space": {"p1": {"low": 1, "high": 1}}},
        "search.space.p1.high = 1: expected a number > 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_search_that_is_not_allowed_is_refused(case, refused):
    changed, message = WRONG[case]
    assert message in refused(Search, {**GIVEN, **changed})


@pytest.fixture(scope="session")
def tuned(once):
    """A search of three trials."""
    return once("tuned", *TUNE, *WINDOW, "search.trials=3")


def trials(children):
    return {run.info.run_name: run.data.params for run in children}


def test_a_search_is_one_parent_with_a_child_per_trial(tuned):
    place, done = tuned
    assert done.code == 0, done.err
    parent, children = place.family()
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["kind"] == "search"
    assert sorted(trials(children)) == ["trial 0", "trial 1", "trial 2"]
    for run in children:
        assert run.info.status == "FINISHED"
        metrics, params = run.data.metrics, run.data.params
        price = 0.5 * (metrics["replication"] - 1)
        assert metrics["objective"] == pytest.approx(metrics["max_over_mean"] + price)
        assert set(params) == {"epsilon", "gamma", "hot_factor", "p1"}
        assert 0.01 <= float(params["epsilon"]) <= 0.5
        assert 1.0 <= float(params["hot_factor"]) <= 50.0
    assert len({run.data.params["epsilon"] for run in children}) == 3


def test_the_best_is_written_recorded_and_told(tuned):
    place, done = tuned
    parent, children = place.family()
    best = min(children, key=lambda run: run.data.metrics["objective"])
    (path,) = place.folder.glob("outputs/*/*/best.yaml")
    found = yaml.safe_load(path.read_text())
    assert found.pop("partitioner") == "dalton_share"
    assert found.pop("objective") == parent.data.metrics["objective"] == best.data.metrics["objective"]
    assert found == {name: float(f"{float(value):.4g}") for name, value in best.data.params.items()}
    assert {name: float(parent.data.params[f"best.{name}"]) for name in found} == found
    assert (place.artifacts(parent) / "best.yaml").read_text() == path.read_text()
    assert "Best of 3 trials" in done.out
    assert f"Use it: dalton run partitioner=dalton_share epsilon={found['epsilon']:g}" in done.out.replace(
        "partitioner.", ""
    )


def test_the_same_seed_searches_the_same_and_a_search_goes_on_as_if_nothing_had_happened(tuned, place):
    whole, _ = tuned
    first = place.here(*TUNE, *WINDOW, "search.trials=2")
    assert first.code == 0, first.err
    before, kept = place.family()
    done = place.here(*TUNE, *WINDOW, "search.trials=3", "resume=true")
    assert done.code == 0, done.err
    assert "2 trials were done before" in done.err
    parent, children = place.family()
    assert parent.info.run_id == before.info.run_id
    assert {run.info.run_id for run in kept} < {run.info.run_id for run in children}
    assert len(children) == 3
    assert trials(children) == trials(whole.family()[1])
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}


def test_a_trial_that_fails_leaves_no_run_running(place):
    done = place.here(*TUNE, *WINDOW, "search.trials=3", "cluster.capacity=[1]")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("Error: a run of the trial failed: ")
    parent, children = place.family()
    assert {run.info.status for run in (parent, *children)} == {"FAILED"}
    assert not list(place.folder.glob("outputs/*/*/best.yaml"))
