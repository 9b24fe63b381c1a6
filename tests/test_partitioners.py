"""Every registered partitioner keeps the contract, and is configured as it is written."""

import inspect

import pytest

from dalton.envs.checks import CHECKS
from dalton.envs.errors import ConfigError
from dalton.envs.window import Window
from dalton.experiments.registry import make, partitioner_config, partitioner_names

WINDOWED = [name for name in partitioner_names() if "window" in partitioner_config(name)[1]]
# Further settings of a class, and the name of the one with its defaults.
VARIANTS = {"dalton_share": "dalton"}


@pytest.fixture
def build(untrained):
    """Make a partitioner; one that needs a policy gets one with random weights, for as many workers."""

    def built(name, **given):
        if "checkpoint" in partitioner_config(name)[1]:
            given["checkpoint"] = untrained(
                "batch" if name == "rllib_batch" else "stream", given["n_workers"]
            )
        return make(name, **given)

    return built


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", partitioner_names())
def test_contract(name, check, build):
    CHECKS[check](lambda **given: build(name, **given))


@pytest.mark.parametrize("window", [Window(5_000, 1_000), Window(50.0, 5.0, "time")], ids=["count", "time"])
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", WINDOWED)
def test_contract_in_short_windows(name, check, window, build):
    CHECKS[check](lambda **given: build(name, window=window, **given))


@pytest.mark.parametrize("name", partitioner_names())
def test_configured_values_are_those_of_the_signature(name):
    cls, configured = partitioner_config(name)
    parameters = inspect.signature(cls).parameters
    assert set(configured) == set(parameters) - {"n_workers", "seed"}
    if name in VARIANTS:
        assert cls is partitioner_config(VARIANTS[name])[0]
        return
    for field, value in configured.items():
        default = parameters[field].default
        assert (Window.of(value) if field == "window" else value) == default
        assert type(value) is type(default) or field == "window"


@pytest.mark.parametrize("name", partitioner_names())
def test_no_workers_is_one_clear_line(name):
    for n in (0, -3, 1.5, "many", None, True):
        with pytest.raises(ConfigError, match=r"^n_workers = .*expected a whole number.*1[^\n]*$"):
            make(name, n_workers=n)


def test_known_names():
    named = (
        "kg sg pkg potc on_greedy off_greedy d_choices w_choices cam cm dagreedy ch porc cg dkg prompt oracle"
    )
    assert set(named.split()) <= set(partitioner_names())
