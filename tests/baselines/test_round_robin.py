"""Round robin: tuple t to worker t mod n."""

import pytest

from dalton.baselines.round_robin import RoundRobin
from dalton.envs.servers import Servers


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_hand_derived_decisions(seed):
    partitioner = RoundRobin(n_workers=3, seed=seed)
    assert partitioner.route([7, 7, 8, 9]).tolist() == [0, 1, 2, 0]
    assert partitioner.route([7]).tolist() == [1]
    partitioner.reset(seed=seed + 1)
    assert partitioner.route([7, 7]).tolist() == [0, 1]


def test_the_example_of_the_paper_takes_29_seconds():
    """OSG Section 2: a, b, a a second apart on two workers, a takes 10 s and b 1 s."""
    times, costs = [0.0, 1.0, 2.0], [10.0, 1.0, 10.0]
    workers = RoundRobin(n_workers=2).route([0, 1, 0], times, costs)
    spent = Servers(n_workers=2).serve(workers, times, costs)
    assert spent.tolist() == [10.0, 1.0, 18.0]
    assert spent.sum() == 29.0


def test_bad_parameters(refused):
    assert refused(RoundRobin, n_workers=-3).startswith("n_workers = ")
