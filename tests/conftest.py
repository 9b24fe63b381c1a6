"""What tests of several packages share: refusals, and the keys of a skewed stream."""

import numpy as np
import pytest

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
