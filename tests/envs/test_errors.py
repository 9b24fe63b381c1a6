"""Every check returns a clean value or raises one line naming the field, the value and what is allowed."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from dalton.envs.errors import ConfigError, check_choice, check_int, check_real

NAN, INF = float("nan"), float("inf")


def message(check, *args, **bounds) -> str:
    """The one line that ``check`` raises."""
    with pytest.raises(ConfigError) as caught:
        check(*args, **bounds)
    text = str(caught.value)
    assert text.strip()
    assert len(text.splitlines()) == 1
    return text


def test_config_error_is_a_value_error():
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    "value", [3, 3.0, np.int8(3), np.uint64(3), np.float32(3), np.array(3), Fraction(3), Decimal(3)]
)
def test_check_int_takes_whole_numbers_of_any_type(value):
    number = check_int("n", value)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    ("low", "high"),
    [(None, None), (3, None), (None, 3), (3, 3), (-5, 5)],
    ids=["free", "low", "high", "one", "in"],
)
def test_check_int_bounds_are_inclusive(low, high):
    assert check_int("n", 3, low=low, high=high) == 3


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        (0, {"low": 1}, "n = 0: expected a whole number >= 1"),
        (-7, {"low": 0}, "n = -7: expected a whole number >= 0"),
        (8, {"high": 7}, "n = 8: expected a whole number <= 7"),
        (8, {"low": 1, "high": 7}, "n = 8: expected a whole number from 1 to 7"),
        (2**70, {"low": 1, "high": 7}, f"n = {2**70}: expected a whole number from 1 to 7"),
        (1.5, {}, "n = 1.5: expected a whole number"),
        (1.5, {"low": 1}, "n = 1.5: expected a whole number >= 1"),
        ("4", {"low": 1}, "n = '4': expected a whole number >= 1"),
        ("a\nb", {"low": 1}, r"n = 'a\nb': expected a whole number >= 1"),
        (None, {"low": 1}, "n = None: expected a whole number >= 1"),
        (True, {"low": 1}, "n = True: expected a whole number >= 1"),
        (False, {}, "n = False: expected a whole number"),
        (NAN, {"low": 1}, "n = nan: expected a whole number >= 1"),
        (-INF, {"high": 1}, "n = -inf: expected a whole number <= 1"),
        (3 + 0j, {}, "n = (3+0j): expected a whole number"),
        ([3], {}, "n = [3]: expected a whole number"),
        ({"n": 3}, {}, "n = {'n': 3}: expected a whole number"),
    ],
)
def test_check_int_names_field_value_and_allowed(value, bounds, expected):
    assert message(check_int, "n", value, **bounds) == expected


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2), Decimal(2)])
def test_check_real_takes_numbers_of_any_type(value):
    number = check_real("rate", value)
    assert number == 2.0
    assert type(number) is float


def test_check_real_low_and_high_are_inclusive_and_above_is_not():
    assert check_real("rate", 0.5, low=0.5, high=0.5) == 0.5
    assert check_real("rate", 5e-324, above=0) == 5e-324
    assert message(check_real, "rate", 0.0, above=0) == "rate = 0.0: expected a number > 0"


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        (-1, {"low": 0}, "rate = -1: expected a number >= 0"),
        (2.5, {"high": 2}, "rate = 2.5: expected a number <= 2"),
        (2.5, {"low": 0, "high": 1.5}, "rate = 2.5: expected a number from 0 to 1.5"),
        (1.5, {"above": 0, "high": 1}, "rate = 1.5: expected a number > 0 and <= 1"),
        (0, {"above": 0, "low": -1}, "rate = 0: expected a number > 0 and >= -1"),
        (NAN, {}, "rate = nan: expected a number"),
        (NAN, {"low": 0, "high": 1}, "rate = nan: expected a number from 0 to 1"),
        (INF, {"low": 0}, "rate = inf: expected a number >= 0"),
        (-INF, {}, "rate = -inf: expected a number"),
        ("fast", {"above": 0}, "rate = 'fast': expected a number > 0"),
        (None, {}, "rate = None: expected a number"),
        ([1.0], {"low": 0}, "rate = [1.0]: expected a number >= 0"),
        (1j, {}, "rate = 1j: expected a number"),
    ],
)
def test_check_real_names_field_value_and_allowed(value, bounds, expected):
    assert message(check_real, "rate", value, **bounds) == expected


@pytest.mark.parametrize("value", ["count", np.str_("count")])
def test_check_choice_returns_a_known_name_as_str(value):
    name = check_choice("by", value, ("time", "count"))
    assert name == "count"
    assert type(name) is str


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cuont", "by = 'cuont': unknown (did you mean 'count'?); known: count, country, time"),
        ("countri", "by = 'countri': unknown (did you mean 'country'?); known: count, country, time"),
        ("tim", "by = 'tim': unknown (did you mean 'time'?); known: count, country, time"),
        ("xyz", "by = 'xyz': unknown; known: count, country, time"),
        ("", "by = '': unknown; known: count, country, time"),
        (None, "by = None: unknown; known: count, country, time"),
        (7, "by = 7: unknown; known: count, country, time"),
        (["count"], "by = ['count']: unknown (did you mean 'count'?); known: count, country, time"),
        ("Time", "by = 'Time': unknown (did you mean 'time'?); known: count, country, time"),
        ("a\nb", r"by = 'a\nb': unknown; known: count, country, time"),
    ],
)
def test_check_choice_names_field_value_nearest_and_known(value, expected):
    text = message(check_choice, "by", value, {"time", "country", "count"})
    assert text == expected


def test_check_choice_takes_names_from_any_iterable_once():
    assert check_choice("by", "b", iter(["a", "b"])) == "b"
    assert message(check_choice, "by", "c", iter(["b", "a"])) == "by = 'c': unknown; known: a, b"


def test_check_real_rejects_an_int_beyond_float():
    assert message(check_real, "rate", 10**400).endswith(": expected a number")


def test_large_bounds_are_printed_exactly():
    assert message(check_int, "n", 0, low=1, high=2**31 - 1).endswith("from 1 to 2147483647")


def test_check_int_rejects_numpy_booleans_like_python_ones():
    assert "expected a whole number" in message(check_int, "n", np.True_)


def test_an_array_given_for_a_number_makes_one_line():
    assert "expected a whole number" in message(check_int, "n", np.zeros((2, 2)))
