import numpy as np
import pytest

from dalton.agents.cooperation import Cooperation
from dalton.agents.forwarding import Forwarding, recalled
from dalton.envs.cluster import Cluster
from dalton.envs.workloads import make_workload


def told(split, sent=(10, 10), taken=(12, 13)):
    one = Forwarding(2)
    for member in (0, 1):
        one.sent(member, 0, sent[member])
        one.received(member, 0, taken[member], None if split is None else np.array(split))
    return one.tables()


def test_a_table_that_comes_in_time_recalls_what_somebody_has_split():
    assert recalled(told([7]), end=10, deadline=20).tolist() == [7]
    assert recalled(told([]), end=10, deadline=20).tolist() == []


@pytest.mark.parametrize(
    "tables",
    [[], told(None), told([7], sent=(10, 9)), told([7], taken=(12, 21))],
    ids=["no table", "split keys unknown", "sent before the slide ended", "received too late"],
)
def test_without_a_table_by_then_nothing_is_forwarded(tables):
    assert recalled(tables, end=10, deadline=20) is None


def test_a_round_that_somebody_missed_is_no_table():
    one = Forwarding(2)
    one.sent(0, 0, 10)
    one.sent(1, 0, 10)
    one.received(0, 0, 12, np.array([7]))
    assert one.tables() == []


@pytest.mark.parametrize("delay", [0, 150])
def test_a_key_on_two_workers_is_never_forwarded(delay):
    sources = [{"name": "zipf", "exponent": 1.5}, {"name": "zipf", "exponent": 1.5, "shift": 500}]
    workload = make_workload("multi", sources=sources, n_tuples=24_000, seed=1)
    chunk = next(workload.chunks(24_000))
    window = {"size": 4_000, "slide": 400}
    one = Cooperation(n_partitioners=2, n_workers=8, window=window, delay=delay, step=50)
    workers = one.route(chunk.keys, chunk.sources)
    tables = one.forwarding.tables()
    cluster = Cluster(n_workers=8, window=window)
    wrong = on = repaired = 0
    for low in range(0, 23_600, 400):
        part = slice(low, low + 400)
        cluster.observe(chunk.keys[part], workers[part])
        kept = recalled(tables, low + 400, low + 800)
        if kept is None:
            continue
        on += 1
        for key in [*range(30), *range(500, 530)]:  # the most frequent of either source
            split = cluster.holders(key).sum() > 1
            repaired += split and key in kept
            wrong += split and key not in kept
    assert wrong == 0
    assert repaired > 50
    assert on >= 50


def test_a_reducer_that_is_slower_than_a_slide_turns_forwarding_off():
    workload = make_workload("multi", sources=["uniform", "uniform"], n_tuples=8_000)
    chunk = next(workload.chunks(8_000))
    one = Cooperation(n_partitioners=2, n_workers=8, window={"size": 4_000, "slide": 400}, work=900, step=50)
    one.route(chunk.keys, chunk.sources)
    tables = one.forwarding.tables()
    assert tables
    assert all(recalled(tables, end, end + 400) is None for end in range(400, 7_600, 400))
