"""Windows, the slides of a stream and the times that are accepted, against the definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.envs.errors import ConfigError
from dalton.envs.window import (
    LATEST,
    NO_TIMES,
    SLIDE,
    Window,
    accept_times,
    lightest,
    load_state,
    put,
    slides_ahead,
    tick,
)

FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=150)


def clock(length, seed=0, origin=0.0, gaps=(), step=1.0):
    """Times with ties and exact slide edges, mean distance ``step``, plus a leap at each of ``gaps``."""
    rng = np.random.default_rng(seed + 100)
    distance = rng.integers(0, 5, length) * (step / 2)
    distance[0] = 0.0
    for at, leap in gaps:
        distance[at] += leap
    return origin + np.cumsum(distance)


def refused(make) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def test_the_slide_of_a_time_does_not_depend_on_the_tuples_before_it():
    slides = []
    for times in ([1.7], [1.65, 1.7]):
        loads = load_state(1, Window(0.1, 0.1, "time"))
        for i in range(len(times)):
            tick(*loads[:4], np.array(times), i)
        slides.append(int(loads.clock[0]))
    assert slides[0] == slides[1]


@pytest.mark.parametrize("by", ["count", "time"])
@pytest.mark.parametrize("ratio", [1, 3])
def test_slides_ahead_foretells_tick(by, ratio):
    loads = load_state(2, Window(12, 12 // ratio, by))
    times = clock(500, origin=-100.0, gaps=[(200, 50.0), (300, 12.0)])
    given_times = times if by == "time" else NO_TIMES
    foretold, told = [], []
    for i in range(500):
        foretold.append(slides_ahead(loads.clock, loads.edge, given_times, i))
        told.append(tick(*loads[:4], given_times, i))
    length = 12 // ratio
    slides = np.floor((times if by == "time" else np.arange(500)) / length)
    assert foretold == told == [0, *np.diff(slides).tolist()]


@FIXED
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_lightest_is_the_first_least(loads):
    assert lightest(np.array(loads)) == loads.index(min(loads))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"size": 10, "slide": 3}, "window.size = 10: expected a multiple of window.slide = 3"),
        ({"size": 3, "slide": 10}, "window.size = 3: expected a multiple of window.slide = 10"),
        (
            {"size": 1, "slide": 0.3, "by": "time"},
            "window.size = 1: expected a multiple of window.slide = 0.3",
        ),
        (
            {"size": 0.5, "slide": 1, "by": "time"},
            "window.size = 0.5: expected a multiple of window.slide = 1",
        ),
        ({"size": 0, "slide": 1}, "window.size = 0: expected a whole number >= 1"),
        ({"size": 10, "slide": 0}, "window.slide = 0: expected a whole number >= 1"),
        ({"size": 10, "slide": -5}, "window.slide = -5: expected a whole number >= 1"),
        ({"size": 2.5, "slide": 0.5}, "window.size = 2.5: expected a whole number >= 1"),
        ({"size": float("nan"), "slide": 1}, "window.size = nan: expected a whole number >= 1"),
        ({"size": 10, "slide": None}, "window.slide = None: expected a whole number >= 1"),
        ({"size": 0, "slide": 1, "by": "time"}, "window.size = 0: expected a number > 0"),
        ({"size": 1, "slide": 0.0, "by": "time"}, "window.slide = 0.0: expected a number > 0"),
        ({"size": float("nan"), "slide": 1, "by": "time"}, "window.size = nan: expected a number > 0"),
        ({"size": 1, "slide": float("nan"), "by": "time"}, "window.slide = nan: expected a number > 0"),
        ({"size": float("inf"), "slide": 1, "by": "time"}, "window.size = inf: expected a number > 0"),
        (
            {"size": 10, "slide": 5, "by": "tine"},
            "window.by = 'tine': unknown (did you mean 'time'?); known: count, time",
        ),
        ({"size": 10, "slide": 5, "by": None}, "window.by = None: unknown; known: count, time"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused_in_one_line(fields, expected):
    assert refused(lambda: Window(**fields)) == expected
    assert refused(lambda: Window.of(fields)) == expected


@pytest.mark.parametrize(
    "spec",
    [{}, {"slide": 5}, {"by": "time"}, {"size": 10, "slides": 5}, {"size": 10, "slide": 5, "unit": "s"}],
)
def test_a_window_with_missing_or_unknown_fields_is_refused(spec):
    assert (
        refused(lambda: Window.of(spec))
        == f"window = {spec!r}: expected the field size and perhaps slide and by, or nothing"
    )


@pytest.mark.parametrize(
    ("spec", "expected", "n_slides"),
    [
        ({"size": 10, "slide": 5, "by": "time"}, Window(10, 5, "time"), 2),
        ({"size": 10, "slide": 5}, Window(10, 5, "count"), 2),
        ({"size": 10}, Window(10, 10, "count"), 1),
        ({"size": 0.3, "slide": 0.1, "by": "time"}, Window(0.3, 0.1, "time"), 3),
        (Window(6, 2), Window(6, 2), 3),
    ],
)
def test_a_window_from_its_fields(spec, expected, n_slides):
    window = Window.of(spec)
    assert window == expected
    assert window.n_slides == n_slides


def test_no_window_stays_none():
    assert Window.of(None) is None


def test_a_refused_large_window_shows_what_is_wrong():
    text = refused(lambda: Window(1_000_001, 1_000_000))
    assert "1000001" in text


def test_a_window_in_time_given_as_strings_is_refused():
    assert "window.size" in refused(lambda: Window("10", "5", "time"))


@pytest.mark.parametrize("spec", [10, "count"])
def test_a_window_that_is_no_mapping_is_refused(spec):
    assert refused(lambda: Window.of(spec)).startswith("window = ")


@FIXED
@given(
    st.sampled_from([0.1, 0.3, 1 / 3, 1.1, 7.7, 1e-9, 2.5e8]),
    st.lists(
        st.tuples(st.integers(-(10**6), 10**6), st.sampled_from([-2, -1, 0, 0, 1, 2])),
        min_size=2,
        max_size=12,
    ),
)
def test_every_time_is_in_the_slide_of_its_quotient_whatever_came_before(length, places):
    # Times at and next to the multiples of the slide, where products and quotients are rounded differently.
    times = []
    for multiple, off in places:
        at = multiple * length
        for _ in range(abs(off)):
            at = np.nextafter(at, math.inf if off > 0 else -math.inf)
        times.append(at)
    times = np.sort(times)
    loads = load_state(2, Window(3 * length, length, "time"))
    for i, now in enumerate(times):
        ahead = slides_ahead(loads.clock, loads.edge, times, i)
        before = int(loads.clock[SLIDE]) if i else None
        assert tick(*loads[:4], times, i) == ahead
        assert loads.clock[SLIDE] == math.floor(now / length)
        assert ahead == (0 if before is None else loads.clock[SLIDE] - before)


def test_load_is_what_the_last_slides_got():
    # Slides of 2, a window of 3 slides, times in slides 0, 0, 1, 3, 6: nothing is left in the window at last.
    loads = load_state(2, Window(6, 2, "time"))
    times = np.array([0.0, 1.9, 2.0, 6.5, 12.0])
    seen = []
    for i, worker in enumerate([0, 1, 1, 0, 1]):
        tick(*loads[:4], times, i)
        put(*loads[:3], worker)
        seen.append(loads.load.tolist())
    assert seen == [[1, 0], [1, 1], [1, 2], [1, 1], [0, 1]]


@pytest.mark.parametrize("window", [None, Window(4, 2)])
def test_times_are_taken_as_they_are_unless_the_window_is_in_time(window):
    edge = load_state(2, window).edge
    assert accept_times(edge, None, 3) is NO_TIMES
    stamps = accept_times(edge, [3, math.inf, 1], 3)
    assert stamps.dtype == np.float64
    assert stamps.tolist() == [3.0, math.inf, 1.0]
    assert edge[LATEST] == -math.inf
    assert refused(lambda: accept_times(edge, [1.0], 3)).startswith("times has shape (1,)")


def test_the_latest_accepted_time_is_remembered():
    edge = load_state(2, Window(4, 2, "time")).edge
    assert accept_times(edge, [1, 1, 5], 3).tolist() == [1.0, 1.0, 5.0]
    assert edge[LATEST] == 5.0
    assert accept_times(edge, [], 0).shape == (0,)
    assert accept_times(edge, None, 0).shape == (0,)
    assert edge[LATEST] == 5.0
    text = refused(lambda: accept_times(edge, [4.5], 1))
    assert text == "times[0] = 4.5: expected no decrease (after 5.0)"
    assert accept_times(edge, [5.0], 1).tolist() == [5.0]


@pytest.mark.parametrize("times", [["a", "b"], [None, 1.0], [1j, 2j], [[1.0], [1.0, 2.0]]])
def test_times_that_are_no_numbers_are_refused(times):
    edge = load_state(2, Window(4, 2, "time")).edge
    assert refused(lambda: accept_times(edge, times, 2)).startswith("times")


@pytest.mark.parametrize("slide", [0.5, 1.0, 3.0])
def test_slides_are_numbered_below_2_to_the_52(slide):
    last = np.nextafter(2.0**52 * slide, 0)
    for sign in (-1, 1):
        loads = load_state(2, Window(2 * slide, slide, "time"))
        times = accept_times(loads.edge, [sign * last], 1)
        tick(*loads[:4], times, 0)
        assert loads.clock[SLIDE] == math.floor(Fraction(sign * last) / Fraction(slide))
        edge = load_state(2, Window(2 * slide, slide, "time")).edge
        text = refused(lambda edge=edge, sign=sign: accept_times(edge, [sign * 2.0**52 * slide], 1))
        assert text.endswith("expected a finite number of less than 2**52 slides")
