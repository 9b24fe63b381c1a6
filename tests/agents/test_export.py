"""Policies: how an agent spread its keys, the file, and agents that go on from it."""

import hashlib
import io
import json
import pickle

import numpy as np
import pytest

from dalton.agents.export import HEADER, MAGIC, VERSION, Policy
from dalton.agents.member import Member
from dalton.baselines.pkg import PartialKeyGrouping
from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments import make

AGENTS = ("dalton", "dalton_share", "dalton_batch")
WINDOW = Window(20_000, 2_000)


def trained(name, n_workers=8, seed=3, n_tuples=40_000, exponent=1.5, window=WINDOW):
    agent = make(name, n_workers=n_workers, seed=seed, window=window)
    keys = stream(n_tuples, exponent)
    for low in range(0, len(keys), 5_000):
        agent.route(keys[low : low + 5_000])
    return agent


def stream(n_tuples, exponent=1.5, seed=1):
    workload = make_workload("zipf", n_tuples=n_tuples, n_keys=5_000, exponent=exponent, seed=seed)
    return np.concatenate([chunk.keys for chunk in workload.chunks()])


def test_the_spread_is_that_of_the_tuples(monkeypatch):
    # Two slides of 4 in a window of 8, n = 2, one key: hot from its second tuple on (4 / 2 = 2), and every
    # tuple from there on is counted where it went, those of the slide before by 2/3.
    agent = make("dalton", n_workers=2, window={"size": 8, "slide": 4}, epsilon=1.0, seed=5)
    workers = agent.route(np.zeros(8, np.int64))
    counts = np.zeros(2)
    for position, worker in enumerate(workers):
        counts[worker] += 0 if position < 1 else 2 / 3 if position < 4 else 1
    split = Policy.of(agent, sliver=0).split
    assert list(split) == [0]
    np.testing.assert_allclose([split[0][w] for w in range(2)], counts / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("name", AGENTS)
def test_only_hot_keys_are_split_and_the_hottest_is(name):
    agent = trained(name)
    policy = Policy.of(agent)
    keys, counts = np.unique(stream(40_000), return_counts=True)
    hottest = int(keys[counts.argmax()])
    assert len(policy.split[hottest]) > 1
    hot = set(agent.qtable.keys[agent.qtable.until >= agent.span[0]].tolist())
    assert set(policy.split) <= hot


@pytest.mark.parametrize("name", AGENTS)
def test_frozen_balances_as_well_as_learning(name):
    # On more of the same stream; hashing leaves the busiest of 8 workers with 3 times the mean.
    agent = trained(name, n_tuples=100_000)
    more = stream(300_000)[100_000:]

    def imbalance(p):
        return np.bincount(p.route(more), minlength=8).max() / (len(more) / 8)

    frozen, hashed = imbalance(Policy.of(agent).partitioner()), imbalance(make("kg", n_workers=8, seed=3))
    assert hashed > 3
    assert frozen < imbalance(agent) + 0.1
    assert frozen < 1.3


@pytest.mark.parametrize("sliver", [0.0, 0.05, 0.2])
def test_slivers_are_left_out(sliver):
    agent = trained("dalton_share")
    pairs = sum(len(row) for row in Policy.of(agent, sliver=sliver).split.values())
    everything = sum(len(row) for row in Policy.of(agent, sliver=0).split.values())
    assert (pairs < everything) == (sliver > 0)
    for row in Policy.of(agent, sliver=sliver).split.values():
        assert sum(row.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("window", [WINDOW, Window(20.0, 2.0, "time")], ids=["count", "time"])
def test_saved_and_loaded_goes_on_identically(name, window, tmp_path):
    agent = make(name, n_workers=8, seed=3, window=window)
    keys = stream(60_000)
    times = np.arange(len(keys)) / 1000
    agent.route(keys[:40_000], times[:40_000])
    path = Policy.of(agent).save(tmp_path / "new" / "p.dalton")
    again = Policy.load(path).agent()
    assert again.params == agent.params
    np.testing.assert_array_equal(
        again.route(keys[40_000:], times[40_000:]), agent.route(keys[40_000:], times[40_000:])
    )
    assert Policy.of(again).version == Policy.of(agent).version


def test_a_cooperating_member_is_kept_too(tmp_path):
    member = Member(member=2, n_workers=8, window=WINDOW)
    member.route(stream(10_000))
    member.dsync, member.round = 4, 7
    again = Policy.load(Policy.of(member).save(tmp_path / "p")).agent()
    assert isinstance(again, Member)
    assert (again.member, again.dsync, again.round, again.begun) == (2, 4, 7, True)


def test_an_agent_is_not_changed_by_its_policy_or_by_another_of_it():
    agent = trained("dalton")
    policy = Policy.of(agent)
    copy = pickle.loads(pickle.dumps(agent))
    first = policy.agent().route(stream(5_000, seed=2))
    np.testing.assert_array_equal(policy.agent().route(stream(5_000, seed=2)), first)
    np.testing.assert_array_equal(agent.route(stream(5_000, seed=2)), first)
    np.testing.assert_array_equal(copy.route(stream(5_000, seed=2)), first)


def test_tasks_draw_other_numbers():
    policy = Policy.of(trained("dalton"))
    keys = stream(20_000, seed=2)
    zero, one = policy.agent().route(keys), policy.agent(task=1).route(keys)
    assert (zero != one).any()
    np.testing.assert_array_equal(one, policy.agent(task=1).route(keys))


def test_files_of_equal_policies_are_equal(tmp_path):
    policy = Policy.of(trained("dalton"))
    first, second = (policy.save(tmp_path / name).read_bytes() for name in "ab")
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert b"pickle" not in first


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return Policy.of(trained("dalton")).save(tmp_path_factory.mktemp("policy") / "p.dalton").read_bytes()


def test_any_flipped_byte_is_noticed(raw, tmp_path, refused):
    rng = np.random.default_rng(0)
    for at in [*range(HEADER.size), *rng.integers(HEADER.size, len(raw), 40).tolist()]:
        bad = bytearray(raw)
        bad[at] ^= 0x41
        (tmp_path / "p").write_bytes(bad)
        assert f"policy = {tmp_path / 'p'}: " in refused(Policy.load, tmp_path / "p")


def test_any_truncation_is_noticed(raw, tmp_path, refused):
    for length in (0, 3, HEADER.size - 1, HEADER.size, HEADER.size + 10, len(raw) // 2, len(raw) - 1):
        (tmp_path / "p").write_bytes(raw[:length])
        text = refused(Policy.load, tmp_path / "p")
        assert "not a policy" in text if length < HEADER.size else "damaged" in text


def test_other_versions_and_other_files(raw, tmp_path, refused):
    path = tmp_path / "p"
    path.write_bytes(HEADER.pack(MAGIC, VERSION + 1, b"") + raw[HEADER.size :])
    assert f"has version {VERSION + 1}; expected version {VERSION}" in refused(Policy.load, path)
    path.write_text("key,value\n1,2\n" * 10)
    assert "not a policy; expected a file of `dalton export`" in refused(Policy.load, path)
    assert "No such file" in refused(Policy.load, tmp_path / "none")


FORGED = {
    "a worker that is not there": (lambda a, m: a["split.worker"].fill(99), "worker = 99: expected"),
    "another class": (lambda a, m: m.update(kind="eval"), "kind = 'eval': expected one of"),
    "an unknown parameter": (lambda a, m: m["params"].update(epsilons=1), "malformed"),
    "a parameter out of range": (
        lambda a, m: m["params"].update(epsilon=7),
        "epsilon = 7: expected a number",
    ),
    "an array missing": (lambda a, m: a.pop("state.qtable.q"), "state: expected the arrays of Dalton"),
    "an array of another type": (
        lambda a, m: a.update({"state.qtable.q": a["state.qtable.q"].astype(np.float32)}),
        "state of qtable.q: has type float32 and shape (16, 8), expected float64",
    ),
    "a row too short": (
        lambda a, m: a.update({"state.qtable.q": a["state.qtable.q"][:, :2]}),
        "state of qtable.q",
    ),
    "fewer workers": (
        lambda a, m: a.update({"state.loads.load": a["state.loads.load"][:3]}),
        "state of loads.load: has type int64 and shape (3,), expected int64 and (8,)",
    ),
    "no description": (lambda a, m: m.clear(), "malformed"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_file_with_a_good_checksum_and_bad_content(case, raw, tmp_path, refused):
    change, message = FORGED[case]
    with np.load(io.BytesIO(raw[HEADER.size :])) as content:
        arrays = {name: content[name] for name in content.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    change(arrays, meta)
    out = io.BytesIO()
    np.savez(out, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    (tmp_path / "p").write_bytes(
        HEADER.pack(MAGIC, VERSION, hashlib.sha256(out.getvalue()).digest()) + out.getvalue()
    )
    assert message in refused(Policy.load, tmp_path / "p")


def test_another_number_of_workers(refused):
    policy = Policy.of(trained("dalton"))
    assert policy.check_workers(None) == policy.check_workers(8) == 8
    assert refused(policy.check_workers, 16) == "n_workers = 16: expected 8, as the policy was trained"


def test_only_learned_agents_have_a_policy(refused):
    text = refused(Policy.of, PartialKeyGrouping(n_workers=4))
    assert "agent = PartialKeyGrouping: expected one of dalton, dalton_batch, member" in text
