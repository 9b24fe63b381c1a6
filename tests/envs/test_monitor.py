"""Workers that watch how busy they are: utilisation by definition, slots, gaps, failures."""

import numpy as np
import pytest

from dalton.envs.contract import Partitioner
from dalton.envs.monitor import Monitor
from dalton.envs.servers import Servers
from dalton.envs.simulate import simulate
from dalton.envs.window import Window
from dalton.envs.workloads import Chunk, make_workload
from dalton.experiments.registry import make


def chunk_of(times, workers, costs):
    return Chunk(0, np.array(workers, np.int64), np.array(times), np.array(costs), None)


def drive(monitor, chunk):
    """What is reported, with the number of tuples sent before; keys are the workers."""
    told, sent = [], 0

    def send(part):
        nonlocal sent
        sent += len(part.keys)
        return part.keys.astype(np.int32)

    workers = monitor.drive(chunk, send, lambda share: told.append((sent, share.tolist())))
    assert workers.tolist() == chunk.keys.tolist()
    return told


def test_utilisation_is_work_sent_over_work_that_could_be_done():
    servers = Servers(n_workers=2, capacity=[1.0, 4.0])
    monitor = Monitor(10.0, servers)
    # Slots count from the first tuple: [5, 15), [15, 25), ...
    chunk = chunk_of([5.0, 6.0, 14.9, 15.0, 24.0, 25.0], [0, 1, 0, 1, 1, 0], [3.0, 8.0, 9.0, 20.0, 20.0, 1.0])
    assert drive(monitor, chunk) == [(3, [1.2, 0.2]), (5, [0.0, 1.0])]


def test_of_slots_without_tuples_the_last_is_reported():
    monitor = Monitor(1.0, Servers(n_workers=1))
    assert drive(monitor, chunk_of([0.0, 7.5, 8.0], [0, 0, 0], [0.5] * 3)) == [(1, [0.0]), (2, [0.5])]


def test_capacities_that_change_within_a_slot_count_by_time_and_none_is_nan():
    servers = Servers(n_workers=1, schedule=[(5.0, 0, 0.5), (10.0, 0, 0.0), (20.0, 0, 2.0)])
    monitor = Monitor(10.0, servers)
    told = drive(monitor, chunk_of([0.0, 10.0, 20.0, 30.0], [0] * 4, [3.0] * 4))
    assert [at for at, _ in told] == [1, 2, 3]
    np.testing.assert_array_equal([share for _, (share,) in told], [3.0 / 7.5, np.nan, 3.0 / 20.0])


class Listening(Partitioner):
    """Round robin that notes what it is told."""

    def __init__(self, *, n_workers, seed=0, slot=2.0):
        super().__init__(n_workers=n_workers, seed=seed)
        self.slot = slot
        self.reset()

    def _reset(self):
        self.told, self.sent = [], 0

    def _route(self, keys, times, costs, out):
        out[:] = (self.sent + np.arange(len(keys))) % self.n_workers
        self.sent += len(keys)

    def report(self, utilisation):
        self.told.append((self.sent, *np.asarray(utilisation).tolist()))


@pytest.mark.parametrize("chunk_size", [64, 1_000])
def test_the_simulator_reports_where_there_is_a_queue_model(chunk_size):
    stream = make_workload("zipf", n_tuples=1_000, n_keys=50)
    given = {"window": Window(300, 100), "capacity": [1.0, 3.0], "chunk_size": chunk_size}
    silent, told = Listening(n_workers=2), Listening(n_workers=2)
    simulate(silent, stream, **given)
    assert silent.told == []
    simulate(told, stream, queue={"rate": 100.0, "service": 0.01}, **given)
    # 200 tuples of 10 ms in every slot of 2 s, half of them to each worker.
    assert told.told == [(at, 0.5, pytest.approx(0.5 / 3)) for at in range(200, 1_000, 200)]
    simulate(silent, stream, queue={"rate": 100.0}, **given)
    assert len(silent.told) == 4


def test_every_source_hears_the_workers_and_not_only_itself():
    stream = make_workload("zipf", n_tuples=1_000, n_keys=50, n_sources=4)
    first = Listening(n_workers=2)
    simulate(first, stream, window=Window(300, 100), view="local", queue={"rate": 100.0, "service": 0.01})
    assert len(first.told) == 4
    for sent, *measured in first.told:
        assert sum(measured) == pytest.approx(1.0)
        assert sent < 300, "of its own tuples"


def test_decisions_do_not_depend_on_the_chunks():
    stream = make_workload("zipf", n_tuples=20_000, n_keys=500, n_sources=2, cost_mean=0.01, cost_spread=0.7)
    results = [
        simulate(
            make("cg", n_workers=5, slot=1.0),
            stream,
            window=Window(5_000, 1_000),
            view="local",
            capacity={"strong": 2, "times": 4},
            queue={"over_provisioning": 125.0},
            compare_global=True,
            chunk_size=size,
        )
        for size in (333, 1 << 18)
    ]
    assert results[0].loads.tolist() == results[1].loads.tolist()
    assert results[0].column("disagreement").tolist() == results[1].column("disagreement").tolist()
    assert results[0].loads[-1, 0] > 1.5 * results[0].loads[0, 0], "the strong have been given more"
