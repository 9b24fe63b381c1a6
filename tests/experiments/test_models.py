"""Policies as MLflow models, and the command that makes them."""

import re

import numpy as np
import pandas as pd
import pytest

from dalton.agents.export import Policy
from dalton.experiments.models import load_policy

ARGUMENTS = ("export", "partitioner=dalton_share", "workload.exponent=1.5")


@pytest.fixture(scope="module")
def exported(once, small):
    """A registered model, from one line."""
    return once(
        "exported", *ARGUMENTS, *small, "--output", "p.dalton", "--model", "clicks", "--alias", "champion"
    )


def test_the_file_and_the_line_to_use_are_shown(exported):
    place, done = exported
    assert done.code == 0, done.err
    policy = Policy.load(place.folder / "p.dalton")
    assert f"p.dalton: 4 workers, {len(policy.split)} hot keys" in done.out
    assert policy.version in done.out
    assert "Model: models:/clicks@champion" in done.out
    assert 'split_aggregate(df, "key", {"n": "count(*)"}, "p.dalton")' in done.out
    assert "Warning" not in done.err


def test_the_model_is_found_by_path_run_and_name(exported):
    place, _ = exported
    (run,) = place.runs()
    assert run.info.status == "FINISHED"
    assert run.data.params["workload.exponent"] == "1.5"
    version = Policy.load(place.folder / "p.dalton").version
    assert run.data.tags["policy.version"] == version
    for source in ("models:/clicks@champion", "models:/clicks/1", f"runs:/{run.info.run_id}/policy"):
        assert load_policy(source, tracking_uri=place.uri).version == version
    assert load_policy(place.folder / "p.dalton").version == version


def test_the_model_predicts_workers(exported, mlflow):
    place, _ = exported
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(place.uri)
    try:
        model = mlflow.pyfunc.load_model("models:/clicks@champion")
    finally:
        mlflow.set_tracking_uri(before)
    keys = np.array([0, 0, 0, 1, 2, 0])
    policy = Policy.load(place.folder / "p.dalton")
    for _ in range(2):
        found = model.predict(pd.DataFrame({"key": keys}))
        assert found["worker"].tolist() == policy.partitioner().route(keys).tolist()
    assert model.metadata.signature.inputs.input_names() == ["key"]
    assert model.input_example["key"].tolist()[:1] == list(policy.split)[:1]


def test_a_finished_run_is_trained_again(exported, small):
    place, _ = exported
    done = place.here("run", *ARGUMENTS[1:], *small)
    assert done.code == 0, done.err
    (run,) = [run for run in place.runs() if run.data.tags.get("kind") != "export"]
    done = place.here("export", "--run", run.info.run_id, "--output", "again.dalton", "--model", "clicks")
    assert done.code == 0, done.err
    assert "Model: models:/clicks/2" in done.out
    versions = {Policy.load(place.folder / name).version for name in ("p.dalton", "again.dalton")}
    assert len(versions) == 1


def test_without_tracking_there_is_only_the_file(place, small):
    done = place.here(*ARGUMENTS, *small, "tracking=none")
    assert (done.code, done.err) == (0, "")
    assert [path.name for path in place.folder.iterdir()] == ["policy.dalton"]
    assert not re.search("Model:", done.out)


WRONG = {
    "nothing to learn": ("partitioner=pkg", "partitioner = pkg: learns nothing"),
    "no store": ("tracking=none --model m", "tracking = none: expected a store to register a model in"),
    "alias of nothing": ("--alias a", "alias = a: expected a model to give it to"),
    "no such run": ("--run abc", "run = abc: expected a finished run"),
    "misspelt key": ("workload.exponet=2", "key of workload = 'exponet': unknown (did you mean 'exponent'?)"),
    "unknown partitioner": ("partitioner=daltn", "partitioner = 'daltn': unknown (did you mean 'dalton'?)"),
    "no trace": ("workload=trace workload.path=none.csv", "none.csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_and_exit_code_2(case, place, small):
    command, message = WRONG[case]
    sizes = () if "trace" in command else small
    done = place.here("export", *sizes, *command.split())
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert message in done.err
    assert not (place.folder / "policy.dalton").exists()


def test_addresses_that_lead_nowhere(exported, refused):
    place, _ = exported
    text = refused(load_policy, "models:/visits@champion", place.uri)
    assert text.startswith("policy = models:/visits@champion: not found in sqlite:///")
