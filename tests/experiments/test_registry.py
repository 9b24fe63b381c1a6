import pytest

from dalton.envs.errors import ConfigError
from dalton.experiments import make
from dalton.experiments.registry import options, partitioner_names


def test_make_builds_with_configured_and_given_values():
    partitioner = make("pkg", n_workers=16, seed=3, d=5)
    assert partitioner.params == {"n_workers": 16, "seed": 3, "d": 5, "window": None}


def test_the_options_of_a_group_are_its_files():
    assert options("partitioner") == partitioner_names()
    assert {"zipf", "trace"} <= set(options("workload"))
    assert options("experiment") == sorted(options("experiment"))
    assert {"quickstart", "comparison"} <= set(options("experiment"))
    assert options("tracking") == ["mlflow", "none"]


def test_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(ConfigError) as caught:
        make("dagredy", n_workers=4)
    message = str(caught.value)
    assert "\n" not in message
    assert "partitioner = 'dagredy'" in message
    assert "did you mean 'dagreedy'?" in message
    assert all(name in message for name in partitioner_names())


def test_unknown_parameter_lists_the_known():
    with pytest.raises(
        ConfigError, match=r"^parameter of pkg = 'choices': unknown.*known: d, n_workers, seed, window$"
    ):
        make("pkg", n_workers=4, choices=3)


def test_missing_number_of_workers():
    with pytest.raises(ConfigError, match=r"^kg: parameter n_workers is missing"):
        make("kg")


def test_window_that_is_no_multiple_of_its_slide():
    with pytest.raises(ConfigError, match=r"^window.size = 10: expected a multiple of window.slide = 3$"):
        make("cam", n_workers=4, window={"size": 10, "slide": 3})
