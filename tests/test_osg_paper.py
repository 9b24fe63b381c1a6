"""Facts that the OSG paper reports (Section 5.2), on fewer streams than its 100, and with stated margins."""

import functools

import numpy as np
import pytest

from dalton.envs.servers import Servers
from dalton.envs.workloads import make_workload
from dalton.experiments import make

STREAMS = 12
NAMES = ("round_robin", "osg", "full_knowledge")


@functools.cache
def stream(seed, exponent=1.0, m=100_000):
    """N = 4096 keys; costs of 1, 2, ..., 64 ms given to them at random (Section 5.1)."""
    workload = make_workload(
        "zipf",
        n_tuples=m,
        n_keys=4096,
        exponent=exponent,
        seed=seed,
        cost_mean=0.0325,
        cost_spread=31.5 / 32.5,
        cost_levels=64,
        cost_seeded=True,
    )
    chunk = next(workload.chunks(m))
    return chunk.keys, chunk.costs


def spent(name, seed, *, k=5, provisioned=100.0, exponent=1.0, **params):
    """Completion times, and the makespan."""
    keys, costs = stream(seed, exponent)
    times = np.arange(len(keys)) * costs.mean() / k * provisioned / 100
    workers = make(name, n_workers=k, seed=seed, **params).route(keys, times, costs)
    servers = Servers(n_workers=k)
    return servers.serve(workers, times, costs), servers.ended


def speed_ups(name="osg", streams=STREAMS, **setting):
    """Lambda (Section 5.1) of every stream; parameters of the partitioner are its own."""
    own = {key: setting.pop(key) for key in ("error", "count_idle") if key in setting}
    return np.array(
        [
            spent("round_robin", seed, **setting)[0].mean() / spent(name, seed, **setting, **own)[0].mean()
            for seed in range(streams)
        ]
    )


def test_zipf_1_on_5_workers():
    """Paper: 1.2 on average; here at least 1.1. Full knowledge is far above, and better on every stream."""
    osg, best = speed_ups(), speed_ups("full_knowledge")
    assert osg.mean() > 1.1
    assert best.mean() > 2.0
    assert (best > osg).all()


def test_skew_helps():
    """Paper: on average 4 % at Zipf 0.5, 20 % at 1.0, more beyond; here from -5 to 15 % at 0.5."""
    gains = {z: speed_ups(exponent=z, streams=6).mean() for z in (0.5, 1.0, 2.0)}
    assert gains[0.5] < gains[1.0] < gains[2.0]
    assert 0.95 < gains[0.5] < 1.15


def test_over_provisioning():
    """Paper: about 1 if heavily undersized, a maximum of 1.29, 1.06 at 115 %; full knowledge 3.6 at 101 %."""
    gains = {p: speed_ups(provisioned=p) for p in (95.0, 102.0, 115.0)}
    assert abs(gains[95.0].mean() - 1) < 0.01
    assert 1.15 < gains[102.0].mean() < 1.45
    assert 1.02 < gains[115.0].mean() < gains[102.0].mean()
    assert (gains[115.0] > 1).all()
    assert 3.0 < speed_ups("full_knowledge", provisioned=101.0).mean() < 4.5


def test_sums_of_execution_times_mislead_where_workers_are_idle():
    """Why replies count idle time: without, OSG is worse than round robin in an oversized system."""
    assert speed_ups(provisioned=105.0).mean() > 1.1
    assert speed_ups(provisioned=105.0, count_idle=False).mean() < 0.95


def test_fewer_gains_with_many_workers():
    """Paper: the most at k = 5, 1.06 at k = 20; here half of the gain at most."""
    few, many = speed_ups().mean(), speed_ups(k=20).mean()
    assert 1.0 < many < 1 + 0.5 * (few - 1)


def test_precision():
    """Paper: large epsilon do not help, and smaller are better; here at 1, 0.09 and 0.001."""
    gains = [speed_ups(error=error).mean() for error in (1.0, 0.09, 0.001)]
    assert gains[0] < 1.05
    assert gains[0] + 0.05 < gains[1] < gains[2] - 0.1


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_throughput_is_the_same_for_all(exponent):
    """Paper Fig. 5; here the time until the last tuple is done differs by less than 1 %."""
    for seed in range(3):
        ends = [spent(name, seed, exponent=exponent)[1] for name in NAMES]
        assert max(ends) < 1.01 * min(ends)


def test_it_recovers_after_the_workers_change():
    """Paper Fig. 11: m = 150 000, execution times change at 75 000; here all is well again by 110 000."""
    m, change = 150_000, 75_000
    before = np.array([1.05, 1.025, 1.0, 0.975, 0.95])
    after = np.array([0.90, 0.95, 1.0, 1.05, 1.10])
    for seed in range(2):
        keys, costs = stream(seed, m=m)
        times = np.arange(m) * costs.mean() / (1 / before).sum()
        schedule = [(times[change], worker, 1 / factor) for worker, factor in enumerate(after)]
        late = {}
        for name in ("round_robin", "osg"):
            partitioner = make(name, n_workers=5, seed=seed)
            partitioner.employ(1 / before, schedule)
            workers = partitioner.route(keys, times, costs)
            late[name] = Servers(n_workers=5, capacity=1 / before, schedule=schedule).serve(
                workers, times, costs
            )
            if name == "osg":
                shares = np.bincount(workers[110_000:]) / 40_000
        # The share of a worker follows its speed, though nobody told the scheduler: to 0.5 points of 20.
        np.testing.assert_allclose(shares, (1 / after) / (1 / after).sum(), atol=0.005)
        assert late["osg"][110_000:].mean() < 0.5 * late["round_robin"][110_000:].mean()
        assert late["osg"][110_000:].std() < 0.25 * late["round_robin"][110_000:].std()
