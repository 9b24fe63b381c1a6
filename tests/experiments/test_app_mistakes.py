"""A user's mistake is one line and exit code 2, and leaves nothing behind that looks like a run."""

import pytest

# What is typed, and what the line says of it.
WRONG = {
    "unknown experiment": (
        "run experiment=quickstrt",
        "experiment = 'quickstrt': unknown (did you mean 'quickstart'?)",
    ),
    "unknown partitioner": (
        "run partitioner=dagredy",
        "partitioner = 'dagredy': unknown (did you mean 'dagreedy'?)",
    ),
    "unknown workload": ("run workload=zpf", "workload = 'zpf': unknown (did you mean 'zipf'?)"),
    "unknown cluster": ("run cluster=big", "cluster = 'big': unknown; known: default"),
    "unknown in a comparison": (
        "compare partitioners=[kg,pkgg]",
        "partitioner = 'pkgg': unknown (did you mean 'pkg'?)",
    ),
    "unknown in a sweep": ("run -m partitioner=kg,kgg", "partitioner = 'kgg': unknown (did you mean 'kg'?)"),
    "misspelt key": ("run seeed=1", "key = 'seeed': unknown (did you mean 'seed'?)"),
    "misspelt nested key": (
        "run workload.exponnt=1",
        "key of workload = 'exponnt': unknown (did you mean 'exponent'?)",
    ),
    "key of another workload": (
        "run workload=uniform workload.exponent=1",
        "key of workload = 'exponent': unknown",
    ),
    "key of another partitioner": (
        "run partitioner=kg partitioner.epsilon=1",
        "key of partitioner = 'epsilon'",
    ),
    "new key": ("run +foo=1", "key = 'foo': unknown; known: "),
    "new nested key": ("run +cluster.foo=1", "key of cluster = 'foo': unknown; known: "),
    "new key of a workload": ("run +workload.foo=1", "parameter of workload zipf = 'foo': unknown"),
    "new key of a partitioner": ("run +partitioner.foo=1", "parameter of dalton = 'foo': unknown"),
    "new key of tracking": ("run +tracking.foo=1", "key of tracking = 'foo': unknown"),
    "new key of the runtime": ("run +runtime.foo=1", "key of runtime = 'foo': unknown"),
    "text for a number": ("run workload.exponent=steep", "exponent = 'steep': expected a number from 0 to 3"),
    "text for a seed": ("run seed=abc", "seed = 'abc': expected a whole number >= 0"),
    "half a worker": ("run cluster.n_workers=1.5", "cluster.n_workers = 1.5: expected a whole number >= 1"),
    "number for a switch": ("run cluster.forwarding=3", "cluster.forwarding = 3: expected true or false"),
    "number for a list": ("compare partitioners=3", "partitioners = 3: expected a list of names"),
    "list for a mapping": ("run cluster.window=[1]", "window"),
    "no window": ("run cluster.window=null", "cluster.window = null: expected size and slide"),
    "two values": ("run seed=1 seed=2", "seed: expected one value, got '1' and '2'"),
    "two choices": (
        "run partitioner=kg partitioner=pkg",
        "partitioner: expected one value, got 'kg' and 'pkg'",
    ),
    "value and new value": ("run seed=1 ++seed=2", "seed: expected one value, got '1' and '2'"),
    "trace without path": ("run workload=trace", "workload.path"),
    "trace that is not there": ("run workload=trace workload.path=none.csv", "none.csv: no such file"),
    "resume without sweep": ("run resume=true", "resume = true: expected a sweep (-m) or a comparison"),
    "resume without tracking": ("compare resume=true tracking=none", "resume = true: expected tracking"),
    "resume of a sweep without tracking": (
        "run -m seed=0,1 resume=true tracking=none",
        "resume = true: expected",
    ),
    "no processes": ("compare jobs=0", "jobs = 0: expected a whole number >= 1"),
    "no seeds": ("compare seeds=0", "seeds = 0: expected a whole number >= 1"),
    "twice the same": ("compare partitioners=[kg,kg]", "appears twice; expected a label for each"),
    "no server": (
        "run tracking.uri=http://127.0.0.1:9",
        "tracking.uri = http://127.0.0.1:9: no tracking server answers",
    ),
    "no server for a comparison": ("compare tracking.uri=http://127.0.0.1:9", "no tracking server answers"),
    "no server for a sweep": (
        "run -m seed=0,1 tracking.uri=http://127.0.0.1:9",
        "no tracking server answers",
    ),
    "store below a file": (
        "run tracking.uri=sqlite:///{file}/x.db",
        "expected a folder that can be written to",
    ),
    "folder below a file": ("run hydra.run.dir={file}/x", "{file}/x: Not a directory"),
    "folder of a comparison below a file": ("compare hydra.run.dir={file}/x", "{file}/x: Not a directory"),
    "folder of a sweep below a file": ("run -m seed=0,1 hydra.sweep.dir={file}/x", "{file}/x"),
    "unreadable value": ("run seed=[1", "[1"),
    "no equals sign": ("run seed", "Error parsing override 'seed'"),
    "no trials": ("tune search.trials=0", "search.trials = 0: expected a whole number >= 1"),
    "unknown searched parameter": (
        "tune +search.space.epsilo={{low:0,high:1}}",
        "key of search.space = 'epsilo': unknown (did you mean 'epsilon'?)",
    ),
    "empty range": (
        "tune search.space.p1={{low:1,high:0}}",
        "search.space.p1.high = 0: expected a number > 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_and_leaves_nothing(case, place):
    file = place.folder / "file"
    file.write_text("")
    command, message = (text.format(file=file) for text in WRONG[case])
    done = place.here(*command.split())
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("Error: ")
    assert len(done.err.splitlines()) == 1
    assert message.replace("{{", "{") in done.err
    assert "Traceback" not in done.err
    if (place.folder / "mlflow.db").exists():
        assert "RUNNING" not in {run.info.status for run in place.runs()}
    assert place.results() == []
    assert not list(place.folder.glob("outputs/**/*result*")), "nor a draft of it"
    written = {path.suffix for path in place.folder.glob("outputs/**/*") if path.is_file()}
    assert written <= {".yaml"}, "the settings at most"
