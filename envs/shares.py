"""One source's part of a stream, made without the others' where that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import Keys, Times
from dalton.envs.sources import Multi
from dalton.envs.workloads import Workload


class Share(NamedTuple):
    """Tuples of one source; each array has shape ``(m,)``."""

    places: NDArray[np.int64]
    """Where they are in the whole stream."""
    keys: Keys
    times: Times | None


def share(
    workload: Workload, source: int, chunk_size: int, start: int = 0, stop: int | None = None
) -> Iterator[Share]:
    """Iterate over the tuples of ``source`` among ``[start, stop)``, out of ``chunk_size`` of all at a time.

    Of a workload with a distribution per source only the source's own keys are made; of the others all, and
    those of other sources are left out.
    """
    last = workload.n_tuples if stop is None else stop
    if isinstance(workload, Multi) and workload.arrivals != "poisson":
        for low in range(start, last, chunk_size):
            places, keys = workload.keys_of(source, low, min(low + chunk_size, last))
            yield Share(places, keys, None if workload.arrivals == "count" else places / workload.rate)
        return
    for chunk in workload.chunks(chunk_size, start, last):
        own = slice(None) if chunk.sources is None else np.flatnonzero(chunk.sources == source)
        places = np.arange(chunk.start, chunk.start + len(chunk.keys))[own]
        yield Share(places, chunk.keys[own], None if chunk.times is None else chunk.times[own])
