"""What tests of several packages share: refusals, the keys of a skewed stream, untrained policies."""

import itertools

import numpy as np
import pytest

from dalton.agents.network import Policy
from dalton.envs.errors import ConfigError


@pytest.fixture
def refused():
    """The one line with which a call is refused."""

    def call(make, *args, **kwargs) -> str:
        with pytest.raises(ConfigError) as caught:
            make(*args, **kwargs)
        text = str(caught.value)
        assert text.strip()
        assert len(text.splitlines()) == 1
        return text

    return call


@pytest.fixture
def zipf():
    """Keys of a Zipf stream: rank r of ``n_keys`` has a share proportional to r^-s; ids are spread out."""

    def make(length, n_keys=300, s=1.2, seed=0):
        rng = np.random.default_rng(seed)
        shares = np.arange(1, n_keys + 1) ** -float(s)
        ids = rng.integers(-(2**62), 2**62, n_keys)
        return ids[rng.choice(n_keys, length, p=shares / shares.sum())]

    return make


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """The folder of a policy with random weights."""
    root = tmp_path_factory.mktemp("policies")

    def write(kind="stream", n=8, hidden=(16, 16), seed=0, **params):
        folder = root / "-".join(str(part) for part in (kind, n, *hidden, seed, *params.values()))
        if not folder.exists():
            folder.mkdir()
            params = {"hot_factor": 1.0, "n_rows": n if kind == "batch" else 0, **params}
            width, last = Policy(kind=kind, n_workers=n, layers=[], **params).widths
            sizes, rng = [width, *hidden, last], np.random.default_rng(seed)
            layers = [
                (rng.normal(0, a**-0.5, (a, b)).astype(np.float32), rng.normal(0, 0.1, b).astype(np.float32))
                for a, b in itertools.pairwise(sizes)
            ]
            Policy(kind=kind, n_workers=n, layers=layers, **params).save(folder)
        return str(folder)

    return write
