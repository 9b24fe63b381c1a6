"""``dalton train`` as a user runs it, what it records, and the experiment that trains before it compares."""

import subprocess
import sys

import numpy as np
import pytest

from dalton.agents.network import read_policy
from dalton.experiments.cli import main

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

STREAM = ("workload.n_tuples=20000", "workload.n_keys=1000", "workload.exponent=1.5")
SMALL = (
    "cluster.n_workers=4",
    "cluster.window.size=2000",
    "cluster.window.slide=200",
    "algorithm.steps=256",
    "algorithm.batch=128",
    "training.copies=8",
    "training.checkpoint_every=2",
)


@pytest.fixture(scope="session")
def trained(once):
    """A training of three iterations."""
    return once("trained", "train", "training.iterations=3", *SMALL, *STREAM)


def test_a_training_is_recorded_and_kept(trained):
    place, done = trained
    assert done.code == 0, done.err
    (run,) = place.runs()
    assert run.info.status == "FINISHED"
    assert run.data.tags["kind"] == "training"
    assert run.data.tags["algorithm"] == "ppo"
    assert run.data.params["algorithm.steps"] == "256"
    assert run.data.params["training.iterations"] == "3"
    from mlflow.tracking import MlflowClient

    history = MlflowClient(place.uri).get_metric_history(run.info.run_id, "reward")
    assert [point.step for point in history] == [1, 2, 3]
    assert all(-1 <= point.value <= 1 for point in history)
    (folder,) = place.folder.glob("outputs/*/*/policy")
    policy = read_policy(folder)
    assert policy.n_workers == 4
    assert policy.origin["iterations"] == 3
    stored = place.artifacts(run) / "policy"
    assert (stored / "policy.npz").read_bytes() == (folder / "policy.npz").read_bytes()
    assert (folder / "rllib").is_dir()
    assert not list(folder.parent.glob(".policy*")), "no drafts are left behind"
    assert f"partitioner.checkpoint={folder}" in done.out


def test_a_trained_policy_is_a_partitioner_in_a_comparison(trained, place):
    (folder,) = trained[0].folder.glob("outputs/*/*/policy")
    entry = f"{{name: rllib, label: PPO, checkpoint: '{folder}'}}"
    window = ("cluster.window.size=20000", "cluster.window.slide=2000")
    stream = ("workload.n_tuples=30000", "workload.n_keys=1000")
    base = (
        "compare",
        f"partitioners=[kg,pkg,{entry}]",
        "seeds=1",
        "jobs=1",
        "tracking=none",
        *window,
        *stream,
    )
    done = place.here(*base, "cluster.n_workers=4")
    assert done.code == 0, done.err
    assert {record.partitioner for record in place.results()} == {"kg", "pkg", "PPO"}
    refused = place.here(*base, "cluster.n_workers=8")
    assert refused.code == 2
    assert refused.err.splitlines()[-1] == f"Error: n_workers = 8: expected 4, which {folder} was trained for"


MISTAKES = {
    "algorithm=dqm": "algorithm = 'dqm': unknown (did you mean 'dqn'?); known: dqn, ppo",
    "training.iteration=3": "key of training = 'iteration': unknown (did you mean 'iterations'?)",
    "environment.p1=3": "p1 = 3: expected a number from 0 to 1",
    "algorithm=dqn environment=batch": "algorithm = 'dqn': expected environment stream",
    "training.start=nowhere": "training.start = 'nowhere': expected the folder of a trained policy",
    "search.trials=0": "search.trials = 0: expected a whole number >= 1",
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line(case, place):
    done = place.here("train", *case.split(), "tracking=none")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith(f"Error: {MISTAKES[case]}")
    assert "Traceback" not in done.err


HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in MISSING else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def python(code, folder, missing):
    """Run a program for which modules are not there."""
    command = [sys.executable, "-c", f"MISSING = {missing}{HIDE}{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("missing", "command"), [("ray", "train"), ("torch", "train"), ("ray", "run experiment=deep_vs_bandit")]
)
def test_without_the_extra_it_says_which(missing, command, tmp_path):
    arguments = [*command.split(), "tracking=none"]
    code = f"from dalton.experiments.cli import main\nmain.main(args={arguments})"
    done = python(code, tmp_path, [missing])
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"Error: {missing} is not installed: pip install dalton[deep]"


def test_routing_with_a_policy_needs_neither_ray_nor_torch(untrained, tmp_path):
    code = (
        "import numpy as np\n"
        "from dalton import make\n"
        f"p = make('rllib', n_workers=8, checkpoint={untrained('stream', 8)!r})\n"
        "print(len(p.route(np.arange(100) % 5)))"
    )
    done = python(code, tmp_path, ["ray", "torch"])
    assert (done.returncode, done.stdout.strip()) == (0, "100"), done.stderr


def test_the_experiment_trains_once_and_compares(place):
    arguments = ("run", "experiment=deep_vs_bandit", "testing=true", "tracking=none", "jobs=1")
    first = place.process(*arguments, timeout=300)
    assert first.code == 0, first.err
    policies = sorted(path.name.split("-")[0] for path in place.folder.glob("outputs/policies/*"))
    assert policies == ["dqn", "ppo"]
    records = place.results()
    names = {record.partitioner for record in records}
    assert names == {"random", "pkg", "dagreedy", "dalton", "PPO", "DQN"}
    assert all(np.isfinite(record.summary["throughput"]) for record in records)
    again = place.process(*arguments, timeout=300)
    assert again.code == 0, again.err
    assert "training ppo" in first.err
    assert "training" not in again.err


def test_a_search_with_tune_is_a_parent_with_trials(place):
    done = place.process("train", "search.trials=2", "training.iterations=1", *SMALL, *STREAM, timeout=300)
    assert done.code == 0, done.err
    parent, children = place.family()
    assert parent.data.tags["kind"] == "search"
    assert sorted(run.info.run_name for run in children) == ["trial 0", "trial 1"]
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    # After one iteration rewards are those of untrained policies: several may be the best.
    most = max(run.data.metrics["reward"] for run in children)
    assert parent.data.metrics["reward"] == most
    best = [run.data.params["gamma"] for run in children if run.data.metrics["reward"] == most]
    assert parent.data.params["best.gamma"] in best
    (folder,) = place.folder.glob("outputs/*/*/policy")
    assert read_policy(folder).n_workers == 4
    assert "Best of 2 trials" in done.out


def test_the_benchmark_of_policies_shows_time_per_decision(untrained, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(args=["bench", "--policies", untrained("stream", 8), "--repeat", "1"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "ns per decision" in shown
    for name in ("pkg", "dagreedy", "dalton", "rllib"):
        assert name in shown
