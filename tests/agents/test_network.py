"""The file of a policy and the forward pass of its network."""

import itertools
import json
import pickle

import numpy as np
import pytest

from dalton.agents.network import ARRAYS, HEADER, Policy, choose, forward, load_policy, network, read_policy


def test_a_network_by_hand():
    first = np.array([[1.0, -1.0], [2.0, 0.5]], np.float32), np.array([0.5, 0.0], np.float32)
    last = np.array([[1.0, 0.0, -1.0], [3.0, 1.0, 0.0]], np.float32), np.array([0.0, 0.25, 9.0], np.float32)
    net = network([first, last])
    net.values[0, :2] = 1.0, 2.0
    # Hidden: 1 + 4 + 0.5 = 5.5, and -1 + 1 + 0 = 0, which is not below 0. Output: 5.5, 0.25, 3.5.
    assert net.values[forward(net), :3].tolist() == [5.5, 0.25, 3.5]
    net.values[0, :2] = -1.0, 0.0
    # Hidden: max(0, -0.5) = 0, and 1. Output: 3, 1.25, 9.
    assert net.values[forward(net), :3].tolist() == [3.0, 1.25, 9.0]
    net.values[0, :2] = -1.0, 0.0
    assert choose(net) == 2


def test_a_tie_takes_the_first():
    net = network([(np.zeros((1, 4), np.float32), np.array([0, 2, 2, 1], np.float32))])
    assert choose(net) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_forward_pass_is_that_of_matrices(seed):
    rng = np.random.default_rng(seed)
    sizes = [18, 64, 33, 8]
    layers = [
        (rng.normal(size=(a, b)).astype(np.float32), rng.normal(size=b).astype(np.float32))
        for a, b in itertools.pairwise(sizes)
    ]
    net = network(layers)
    x = np.where(rng.random(18) < 0.5, 0, rng.normal(size=18)).astype(np.float32)
    net.values[0, :18] = x
    expected = x.astype(float)
    for i, (weights, bias) in enumerate(layers):
        expected = expected @ weights + bias
        if i < len(layers) - 1:
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(net.values[forward(net), :8], expected, rtol=1e-4, atol=1e-3)


def test_a_policy_is_read_as_it_was_written(untrained):
    folder = untrained("stream", 5, hidden=(7,), hot_factor=3.5, only_hot=False, quantum=4)
    policy = read_policy(folder)
    assert (policy.kind, policy.n_workers, policy.hot_factor) == ("stream", 5, 3.5)
    assert (policy.only_hot, policy.quantum, policy.n_rows) == (False, 4, 0)
    assert [weights.shape for weights, _ in policy.layers] == [(12, 7), (7, 5)]
    assert load_policy(folder, "stream", 5).layers[0][0].tolist() == policy.layers[0][0].tolist()


def changed(**values):
    def change(folder):
        header = json.loads((folder / HEADER).read_text())
        (folder / HEADER).write_text(json.dumps({**header, **values}))

    return change


def arrays(change):
    def rewrite(folder):
        with np.load(folder / ARRAYS) as stored:
            kept = dict(stored)
        change(kept)
        np.savez(folder / ARRAYS, **kept)

    return rewrite


def pickled(folder):
    with open(folder / ARRAYS, "wb") as file:
        np.savez(file, w0=np.array([print], object), b0=np.zeros(1))


DAMAGE = {
    "no header": (
        lambda folder: (folder / HEADER).unlink(),
        "expected the folder of a policy; policy.json is missing",
    ),
    "no arrays": (lambda folder: (folder / ARRAYS).unlink(), "policy.npz is missing"),
    "no JSON": (lambda folder: (folder / HEADER).write_text("{"), "the policy is damaged"),
    "not a mapping": (lambda folder: (folder / HEADER).write_text("[1]"), "the policy is damaged"),
    "not an archive": (lambda folder: (folder / ARRAYS).write_bytes(b"rubbish"), "the policy is damaged"),
    "empty": (lambda folder: (folder / ARRAYS).write_bytes(b""), "the policy is damaged"),
    "cut off": (
        lambda folder: (folder / ARRAYS).write_bytes((folder / ARRAYS).read_bytes()[:200]),
        "the policy is damaged",
    ),
    "a pickle": (lambda folder: (folder / ARRAYS).write_bytes(pickle.dumps(1)), "the policy is damaged"),
    "pickled arrays": (pickled, "the policy is damaged"),
    "another format": (changed(format=2), "format = 2: expected 1"),
    "another kind": (changed(kind="tree"), "kind = 'tree': unknown"),
    "a layer too many": (changed(layers=9), "the policy is damaged"),
    "other workers": (changed(n_workers=7), "expected 16 inputs"),
    "a layer lost": (arrays(lambda kept: kept.pop("b1")), "the policy is damaged"),
    "double numbers": (arrays(lambda kept: kept.update(w0=kept["w0"].astype(float))), "expected float32"),
    "not finite": (arrays(lambda kept: kept["w1"].fill(np.nan)), "not finite"),
    "outputs": (
        arrays(lambda kept: kept.update(w2=kept["w2"][:, :3], b2=kept["b2"][:3])),
        "3 outputs: expected 8",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_policy_is_refused_in_one_line(case, untrained, tmp_path, refused):
    damage, message = DAMAGE[case]
    read_policy(untrained("stream", 8)).save(tmp_path)
    read_policy(tmp_path)
    damage(tmp_path)
    text = refused(read_policy, tmp_path)
    assert text.startswith(f"checkpoint = '{tmp_path}': ")
    assert message in text


@pytest.mark.parametrize("given", [None, "", 3, "no/such/folder"])
def test_no_policy_is_refused_in_one_line(given, refused):
    assert refused(read_policy, given).startswith(f"checkpoint = {given!r}: expected the folder of a policy")


def test_a_policy_for_something_else_is_refused(untrained, refused):
    stream, batch = untrained("stream", 8), untrained("batch", 8)
    assert refused(load_policy, stream, "stream", 16) == (
        f"n_workers = 16: expected 8, which {stream} was trained for"
    )
    assert refused(load_policy, stream, "batch", 8).endswith("this one is for partitioner=rllib")
    assert refused(load_policy, batch, "stream", 8).endswith("this one is for partitioner=rllib_batch")


def test_the_widths_are_those_of_the_spaces():
    assert Policy(kind="stream", n_workers=3, hot_factor=1.0, layers=[]).widths == (8, 3)
    assert Policy(kind="batch", n_workers=3, hot_factor=1.0, layers=[], n_rows=4).widths == (12 + 4 + 6, 12)
