"""The one error a user's mistake raises, and the checks that raise it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

import numpy as np


class ConfigError(ValueError):
    """A value a user gave is not allowed.

    The message is one line that names the field, the value and what is allowed; command lines print
    it without a traceback.
    """


def check_int(field: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    """Return ``value`` as an int within ``[low, high]``, or raise `ConfigError`."""
    if not _is_integral(value):
        raise ConfigError(f"{field} = {shown(value)}: expected a whole number{_bounds(low, high)}")
    number: int = int(value)  # type: ignore[call-overload]
    if (low is not None and number < low) or (high is not None and number > high):
        raise ConfigError(f"{field} = {number}: expected a whole number{_bounds(low, high)}")
    return number


def check_real(
    field: str,
    value: object,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> float:
    """Return ``value`` as a finite float within ``[low, high]`` and greater than ``above``."""
    allowed = _bounds(low, high) if above is None else f" > {exact(above)}" + _bounds(low, high, "and")
    if not _is_scalar(value):
        raise ConfigError(f"{field} = {shown(value)}: expected a number{allowed}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{field} = {shown(value)}: expected a number{allowed}") from None
    outside = (
        (low is not None and number < low)
        or (high is not None and number > high)
        or (above is not None and number <= above)
    )
    if not math.isfinite(number) or outside:
        raise ConfigError(f"{field} = {shown(value)}: expected a number{allowed}")
    return number


def check_flag(field: str, value: object) -> bool:
    """Return ``value`` if it is true or false, or raise `ConfigError`."""
    if not isinstance(value, bool):
        raise ConfigError(f"{field} = {shown(value)}: expected true or false")
    return value


def check_choice(field: str, value: object, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, or raise naming them and the nearest."""
    names = sorted(allowed)
    if isinstance(value, str) and value in names:
        return str(value)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"{field} = {shown(value)}: unknown{hint}; known: {', '.join(names)}")


def _is_scalar(value: object) -> bool:
    # Neither "3" nor True is a number a user meant to give.
    return np.ndim(value) == 0 and not isinstance(value, str | bytes | bool | np.bool_)  # type: ignore[arg-type]


def _is_integral(value: object) -> bool:
    try:
        return _is_scalar(value) and int(value) == value  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False


def shown(value: object) -> str:
    """A value as one line."""
    return " ".join(repr(value).split())


def _bounds(low: float | None, high: float | None, lead: str = "") -> str:
    lead = f" {lead}" if lead else ""
    if low is not None and high is not None:
        return f"{lead} from {exact(low)} to {exact(high)}"
    if low is not None:
        return f"{lead} >= {exact(low)}"
    if high is not None:
        return f"{lead} <= {exact(high)}"
    return ""


def exact(number: float) -> str:
    """A number with all its digits, and no ".0"."""
    return repr(int(number)) if number == int(number) else repr(float(number))
