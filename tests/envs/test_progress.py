"""Progress is shown only of long work, fits where it is shown, and cleans up."""

import logging
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dalton.envs import progress as module
from dalton.envs.progress import progress


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def logged(caplog):
    return [record.getMessage() for record in caplog.records]


def test_nothing_is_shown_of_quick_work(capfd, caplog):
    caplog.set_level(logging.INFO)
    with progress("quick", 10, "tuples") as advance:
        for _ in range(10):
            advance(1)
    assert capfd.readouterr() == ("", "")
    assert logged(caplog) == []


def test_nothing_is_shown_of_work_that_never_advances(capfd, caplog):
    caplog.set_level(logging.INFO)
    with progress("idle", 10, "tuples"):
        pass
    assert capfd.readouterr() == ("", "")
    assert logged(caplog) == []


def test_a_log_has_a_plain_line_now_and_then(clock, capfd, caplog):
    caplog.set_level(logging.INFO)
    with progress("long", 200, "tuples") as advance:
        for _ in range(10):
            clock.now += 10.0
            advance(20)
    # More than 30 seconds apart, so at 40 and 80 seconds.
    assert logged(caplog) == ["long: 80 of 200 tuples (40 %)", "long: 160 of 200 tuples (80 %)"]
    assert {record.name for record in caplog.records} == {"dalton"}
    assert "\x1b" not in "".join(capfd.readouterr())


def test_the_interval_of_lines_is_the_setting(clock, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOG_EVERY", 5.0)
    caplog.set_level(logging.INFO)
    with progress("long", 4, "runs") as advance:
        for _ in range(4):
            clock.now += 5.5
            advance(1)
    assert logged(caplog) == [f"long: {i} of 4 runs ({25 * i} %)" for i in (1, 2, 3, 4)]


def test_no_total_is_no_division_by_zero(clock, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with progress("empty", 0, "tuples") as advance:
        clock.now += 31.0
        advance(0)
    assert logged(caplog) == ["empty: 0 of 0 tuples (0 %)"]


def test_nothing_is_shown_if_not_wanted(clock, capfd, caplog):
    caplog.set_level(logging.INFO)
    with progress("hidden", 10, "tuples", show=False) as advance:
        clock.now += 1_000.0
        advance(10)
    assert logged(caplog) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_exceptions_inside_come_out(show, error):
    def fail():
        with progress("failing", 10, "tuples", show=show) as advance:
            advance(1)
            raise error("inside")

    with pytest.raises(error, match="inside"):
        fail()


WORK = """
import sys
from dalton.envs import progress as module

module.PATIENCE = float(sys.argv[1])
with module.progress("working", 40, "tuples") as advance:
    for i in range(4):
        advance(10)
        if sys.argv[2] == str(i):
            raise ZeroDivisionError("inside")
print("done")
"""


def on_terminal(*arguments, **environment):
    """What a program writes to its terminal, the exit code, and its standard output."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, *arguments], stderr=theirs, stdout=subprocess.PIPE, text=True, env=env
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not read:
            break
        shown += read
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return shown.decode(), process.returncode, out


def screen(text):
    """The lines that a terminal shows after ``text``."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token[-1] == "A":
                row = max(0, row - int(token[2:-1] or 1))
            elif token[-1] == "K":
                assert token == "\x1b[2K", token
                lines[row] = ""
            else:
                assert token[-1] in "mhl", token
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line for line in lines if line.strip()]


def test_a_terminal_shows_a_bar_and_is_left_clean():
    shown, code, out = on_terminal("0", "never")
    assert (code, out) == (0, "done\n")
    assert "working" in shown
    assert "━" in shown
    assert re.search(r"\b10/40\b", re.sub(r"\x1b\[[\d;]*m", "", shown))
    assert "tuples" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden, then shown again"
    assert shown.index("\x1b[?25l") < shown.index("\x1b[?25h")
    assert screen(shown) == []


def test_a_terminal_is_left_clean_by_an_exception():
    shown, code, out = on_terminal("0", "1")
    assert (code, out) == (1, "")
    assert "━" in shown
    assert shown.rindex("\x1b[?25l") < shown.rindex("\x1b[?25h")
    left = screen(shown)
    assert left[0].startswith("Traceback")
    assert left[-1] == "ZeroDivisionError: inside"
    assert not any("working" in line and "━" in line for line in left)


def test_a_terminal_shows_nothing_of_quick_work():
    assert on_terminal("1e9", "never") == ("", 0, "done\n")


def test_a_terminal_that_can_do_nothing_gets_no_control_sequences():
    shown, code, out = on_terminal("0", "never", TERM="dumb")
    assert (code, out) == (0, "done\n")
    assert "\x1b" not in shown
