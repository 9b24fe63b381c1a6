"""Routing with a policy is stepping its environment with it."""

import numpy as np
import pytest

from dalton.agents.network import choose, forward, network, read_policy
from dalton.agents.rllib_policy import RLlibBatchPolicy, RLlibPolicy
from dalton.envs.micro_batch import MicroBatchPartitionEnv
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments.registry import make

ZIPF = {"name": "zipf", "n_tuples": 9_000, "n_keys": 3_000, "exponent": 1.3}
TIMED = {**ZIPF, "arrivals": "poisson", "rate": 100.0}


def stream_of(spec, seed):
    """The stream of an environment's first episode after ``reset(seed=seed)``."""
    workload = make_workload(spec, seed=int(np.random.default_rng(seed).integers(2**31)))
    return next(workload.chunks(workload.n_tuples))


def flat(observation):
    return np.concatenate([observation[name].ravel() for name in sorted(observation)])


CASES = {
    "only hot": (ZIPF, Window(2_000, 200), {}),
    "all": (ZIPF, Window(2_000, 200), {"only_hot": False}),
    "low threshold": (ZIPF, Window(4_000, 1_000), {"hot_factor": 10.0}),
    "coarse loads": (ZIPF, Window(2_000, 200), {"quantum": 16}),
    "in time": (TIMED, Window(20.0, 5.0, "time"), {}),
    "many keys": ({**ZIPF, "n_keys": 10**6, "exponent": 0.9}, Window(8_000, 500), {"hot_factor": 20.0}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [4, 8])
def test_routing_is_stepping_the_environment(case, n, untrained):
    spec, window, params = CASES[case]
    params = {"hot_factor": 1.0, "only_hot": True, "quantum": 1, **params}
    folder = untrained("stream", n, **params)
    env = StreamPartitionEnv(workload=spec, n_workers=n, window=window, hash_seed=5, **params)
    net = network(read_policy(folder).layers)
    seen, info = env.reset(seed=3)
    expected, keys = [], []
    while True:
        net.values[0, : 2 * n + 2] = flat(seen)
        expected.append(choose(net))
        keys.append(info["key"])
        seen, _, _, over, info = env.step(expected[-1])
        if over:
            break
    stream = stream_of(spec, 3)
    partitioner = RLlibPolicy(n_workers=n, seed=5, window=window, checkpoint=folder)
    routed = partitioner.route(stream.keys, stream.times)
    assert partitioner.loads.load.tolist() == env.copies.state.ring[0, 0, :n].tolist()
    if not params["only_hot"]:
        assert routed.tolist() == expected
    else:
        at = decided_at(stream, window, n, params["hot_factor"])
        assert 0 < len(at) < len(routed)
        assert stream.keys[at].tolist() == keys
        assert routed[at].tolist() == expected
        cold = np.setdiff1d(np.arange(len(routed)), at)
        hashed = make("kg", n_workers=n, seed=5).route(stream.keys)
        assert routed[cold].tolist() == hashed[cold].tolist()
    assert len(set(expected)) > 1, "a policy that always says the same proves little"


def decided_at(stream, window, n, factor):
    """The tuples whose keys are hot, by the definition (counts of slides and their threshold)."""
    clock = np.arange(len(stream.keys)) if window.by == "count" else stream.times
    slides = np.floor(clock / window.slide).astype(int)
    until, counts, found = {}, {}, []
    before, least = int(window.slide) if window.by == "count" else 0, np.inf
    size = 0
    for i, (key, slide) in enumerate(zip(stream.keys.tolist(), slides.tolist(), strict=True)):
        if i == 0 or slide != slides[i - 1]:
            tuples = before if i == 0 else size
            known = tuples > 0 and (i == 0 or slide == slides[i - 1] + 1)
            least = np.ceil(tuples / (factor * n)) if known else np.inf
            counts, size = {}, 0
        size += 1
        counts[key] = counts.get(key, 0) + 1
        if counts[key] >= least:
            until[key] = slide + 1
        if until.get(key, -1) >= slide:
            found.append(i)
    return np.array(found)


@pytest.mark.parametrize("n", [2, 8])
def test_routing_batches_is_stepping_their_environment(n, untrained):
    folder = untrained("batch", n)
    env = MicroBatchPartitionEnv(workload=ZIPF, n_workers=n, batch_size=500, window_batches=4, hash_seed=5)
    net, h = network(read_policy(folder).layers), env.shape[0]
    seen, _ = env.reset(seed=3)
    partitioner = RLlibBatchPolicy(n_workers=n, seed=5, window=Window(2_000, 500), checkpoint=folder)
    keys = stream_of(ZIPF, 3).keys
    for low in range(0, len(keys), 500):
        x = flat(seen)
        net.values[0, : len(x)] = x
        means = net.values[forward(net), : h * n].reshape(h, n).copy()
        # RLlib's way from a Gaussian's mean to a box: [-1, 1] to [0, 1], clipped.
        seen, _, _, _, _ = env.step(np.clip((means + 1) / 2, 0, 1))
        routed = partitioner.route(keys[low : low + 500])
        load = env.batches.cluster.loads.load
        assert partitioner.batches.cluster.loads.load.tolist() == load.tolist()
        assert np.bincount(routed, minlength=n).sum() == 500
    assert partitioner.batches.cluster.pairs.tolist() == env.batches.cluster.pairs.tolist()


def test_probing_replaces_the_load_and_its_sum(untrained):
    spec = {**ZIPF, "n_sources": 2}
    for kind, cls in (("stream", RLlibPolicy), ("batch", RLlibBatchPolicy)):
        keys = stream_of(spec, 0).keys
        window = Window(2_000, 500)
        whole, part = (cls(n_workers=4, window=window, checkpoint=untrained(kind, 4)) for _ in range(2))
        for low in range(0, 4_000, 500):
            whole.route(keys[low : low + 500])
            part.route(keys[low : low + 500 : 2])
        truth = whole.loads if kind == "stream" else whole.batches.cluster.loads
        mine = part.loads if kind == "stream" else part.batches.cluster.loads
        assert mine.load.tolist() != truth.load.tolist()
        part.probe(truth, truth.load)
        assert mine.load.tolist() == truth.load.tolist()
        if kind == "stream":
            assert part.state.ring[0, 0, 4] == truth.load.sum()
            assert part.state.ring[0, 1:, 4].tolist() == part.state.ring[0, 1:, :4].sum(axis=1).tolist()


@pytest.mark.parametrize("cls", [RLlibPolicy, RLlibBatchPolicy])
def test_a_window_is_needed(cls, untrained, refused):
    kind = "stream" if cls is RLlibPolicy else "batch"
    assert refused(cls, n_workers=4, window=None, checkpoint=untrained(kind, 4)).startswith("window = None: ")
