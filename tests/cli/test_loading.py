"""The sign of life while a model loads: late, out of the way, and only on a terminal."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from ggmlpy.cli import loading as module
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.common.progress import tell


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.written:
            self.written.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self.written:
            self.written.wait_for(lambda: text in self.getvalue())


def use_terminal(monkeypatch: pytest.MonkeyPatch, delay_s: float = 0.0) -> Terminal:
    """A terminal as stderr (not by a fixture: pytest sets stderr anew before the test)."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "DELAY_S", delay_s)
    return stream


def join_others(before: set[threading.Thread]) -> None:
    """Waits for the end of all threads that have begun since: none goes on to write."""
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, 3600)
    with loading("m.gguf"):
        pass
    assert terminal.getvalue() == ""
    assert sys.stderr is terminal


def test_what_is_slow_shows_a_spinner_and_erases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with loading("m.gguf"):
        terminal.wait_for("loading m.gguf …")
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


def test_the_line_tells_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with loading("m.gguf"):
        for share in (0.25, 0.5):
            tell("packing weights", share)
            terminal.wait_for(f"loading m.gguf … packing weights, {share:.0%}")
    assert terminal.getvalue().endswith("\x1b[2K")
    tell("packing weights", 0.75)  # after it, nobody listens
    assert "75%" not in terminal.getvalue()


def test_while_measuring_the_sign_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, before = use_terminal(monkeypatch), set(threading.enumerate())
    with measuring("tg128"):
        terminal.wait_for("tg128 …")
        join_others(before)
    assert terminal.getvalue().endswith("\x1b[2K")


def test_it_makes_way_for_good_when_something_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, before = use_terminal(monkeypatch), set(threading.enumerate())
    with loading("m.gguf"):
        terminal.wait_for("loading")
        complain("warning", "look here")
        join_others(before)
        print("\rcompiling: 1/2", end="", file=sys.stderr)
        print("\rcompiling: 2/2", file=sys.stderr)
    assert terminal.getvalue().endswith("look here\n\rcompiling: 1/2\rcompiling: 2/2\n")


def test_a_line_that_breaks_off_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, 3600)
    with pytest.raises(ValueError, match="bad"), loading("m.gguf"):
        print("\rcompiling: 1/2", end="", file=sys.stderr)
        raise ValueError("bad")
    assert terminal.getvalue() == "\rcompiling: 1/2\n"
    assert sys.stderr is terminal


def test_elsewhere_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, before = io.StringIO(), set(threading.enumerate())
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    with loading("m.gguf"):
        join_others(before)
        assert sys.stderr is stream
    assert stream.getvalue() == ""
