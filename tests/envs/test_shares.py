import numpy as np
import pytest

from dalton.envs.shares import share
from dalton.envs.workloads import make_workload

MULTI = {"name": "multi", "sources": ["uniform", {"name": "zipf", "exponent": 1.5}, "uniform"]}


@pytest.mark.parametrize("arrivals", ["count", "constant", "poisson"])
@pytest.mark.parametrize(
    "spec", [MULTI, {"name": "zipf", "n_sources": 3, "source_by": "key"}, {"name": "zipf", "n_sources": 3}]
)
@pytest.mark.parametrize("chunk_size", [7, 1_000])
def test_the_shares_make_up_the_stream(spec, arrivals, chunk_size):
    workload = make_workload(spec, n_tuples=1_003, seed=5, arrivals=arrivals)
    whole = next(workload.chunks(1_003))
    for source in range(3):
        parts = list(share(workload, source, chunk_size, start=10))
        places, keys = (np.concatenate([part[i] for part in parts]) for i in range(2))
        own = np.flatnonzero(whole.sources == source)
        own = own[own >= 10]
        np.testing.assert_array_equal(places, own)
        np.testing.assert_array_equal(keys, whole.keys[own])
        if arrivals != "count":
            np.testing.assert_array_equal(np.concatenate([p.times for p in parts]), whole.times[own])
