"""The reward of Eq. 3 and 4: R = -(p1 CI + p2 CA), by hand and within its range."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.envs.reward import reward

# (load, total, n, fragments, p1): load and total include the tuple that was just sent.
BY_HAND = {
    # avg = 20/4 = 5. CI = (2 - 5)/max(2, 5) = -3/5. CA = 1/4. R = -(0.5 · -3/5 + 0.5 · 1/4) = 0.3 - 0.125.
    "underloaded": ((2, 20, 4, 1, 0.5), 0.175),
    # avg = 5. CI = (10 - 5)/10 = 1/2. CA = 3/4. R = -(0.25 + 0.375).
    "overloaded": ((10, 20, 4, 3, 0.5), -0.625),
    # avg = 5. CI = 0. CA = 2/4. R = -(0 + 0.5 · 1/2).
    "exactly average": ((5, 20, 4, 2, 0.5), -0.25),
    # The worker has 1 of 1 tuples: avg = 1/4. CI = (1 - 1/4)/1 = 3/4. CA = 1/4. R = -(0.375 + 0.125).
    "first tuple ever": ((1, 1, 4, 1, 0.5), -0.5),
    # All 12 tuples on one of 4: avg = 3. CI = (12 - 3)/12 = 3/4, the most there is with n = 4. CA = 4/4.
    "all on one worker, key on all": ((12, 12, 4, 4, 0.5), -0.875),
    # One worker always has the average: CI = 0, CA = 1/1.
    "one worker": ((7, 7, 1, 1, 0.5), -0.5),
    "one worker, first tuple": ((1, 1, 1, 1, 0.5), -0.5),
    "one worker, only balance counts": ((7, 7, 1, 1, 1.0), 0.0),
    # p1 = 0: R = -CA = -2/8, whatever the load.
    "only aggregation, underloaded": ((1, 800, 8, 2, 0.0), -0.25),
    "only aggregation, overloaded": ((800, 800, 8, 2, 0.0), -0.25),
    # p1 = 1: R = -CI, whatever the fragments. avg = 100: (25 - 100)/100 = -3/4; (400 - 100)/400 = 3/4.
    "only balance, underloaded": ((25, 800, 8, 8, 1.0), 0.75),
    "only balance, overloaded": ((400, 800, 8, 1, 1.0), -0.75),
    # Unequal weights: avg = 10. CI = (40 - 10)/40 = 3/4, CA = 2/5. R = -(0.75 · 0.75 + 0.25 · 0.4).
    "weights 3 to 1": ((40, 50, 5, 2, 0.75), -0.6625),
    # avg = 1/3, which no float is: CI = (1 - 1/3)/1 = 2/3, CA = 1/3. R = -(0.5 · 2/3 + 0.5 · 1/3).
    "thirds": ((1, 1, 3, 1, 0.5), -0.5),
}


@pytest.mark.parametrize(("case", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_by_hand(case, expected):
    assert reward(*case) == pytest.approx(expected, abs=1e-15)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 1024))
    load = draw(st.integers(1, 10**9))
    total = load + (draw(st.integers(0, 10**12)) if n > 1 else 0)
    return load, total, n, draw(st.integers(1, n)), draw(st.floats(0, 1))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(cases())
def test_range_and_definition(case):
    load, total, n, fragments, p1 = case
    value = reward(*case)
    average = Fraction(total, n)
    balance = (load - average) / max(load, average)
    p1 = Fraction(p1)
    exact = -(p1 * balance + (1 - p1) * Fraction(fragments, n))
    assert -1 <= value <= 1
    # Eight roundings of numbers of at most 1.
    assert math.isclose(value, exact, rel_tol=0, abs_tol=8 * 2**-53)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(cases(), st.integers(1, 1000))
def test_more_load_and_more_fragments_never_pay(case, more):
    load, total, n, fragments, p1 = case
    value = reward(*case)
    # Only rounding may make it better.
    assert reward(load + more, total + more, n, fragments, p1) <= value + 1e-15 or n == 1
    assert reward(load, total, n, min(fragments + more, n), p1) <= value + 1e-15
