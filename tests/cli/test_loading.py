"""The sign of life while a model loads: late, out of the way, and only on a terminal."""

from __future__ import annotations

import io
import sys
import time

import pytest

from ggmlpy.cli import loading as module
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading, measuring
from ggmlpy.progress import tell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch, patience_s: float = 0.05) -> Terminal:
    """A terminal as stderr (not by a fixture: pytest sets stderr anew before the test)."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "PATIENCE_S", patience_s)
    return stream


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.01)


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, 30)
    with loading("m.gguf"):
        pass
    assert terminal.getvalue() == ""
    assert sys.stderr is terminal


def test_what_is_slow_shows_a_spinner_and_erases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with loading("m.gguf"):
        wait_for(terminal, "loading m.gguf …")
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back


def test_the_line_tells_how_much_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with loading("m.gguf"):
        for share in (0.25, 0.5):
            tell("packing weights", share)
            wait_for(terminal, f"loading m.gguf … packing weights, {share:.0%}")
    assert terminal.getvalue().endswith("\x1b[2K")
    tell("packing weights", 0.75)  # after it, nobody listens
    assert "75%" not in terminal.getvalue()


def test_while_measuring_the_sign_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with measuring("tg128"):
        wait_for(terminal, "tg128 …")
        at = len(terminal.getvalue())
        time.sleep(0.3)
        assert terminal.getvalue()[at:] == ""
    assert terminal.getvalue().endswith("\x1b[2K")


def test_it_makes_way_for_good_when_something_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with loading("m.gguf"):
        wait_for(terminal, "loading")
        complain("warning", "look here")
        at = len(terminal.getvalue())
        time.sleep(0.3)
        assert terminal.getvalue()[at:] == ""
        print("\rcompiling: 1/2", end="", file=sys.stderr)
        print("\rcompiling: 2/2", file=sys.stderr)
    assert terminal.getvalue().endswith("look here\n\rcompiling: 1/2\rcompiling: 2/2\n")


def test_a_line_that_breaks_off_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with pytest.raises(ValueError, match="bad"), loading("m.gguf"):
        print("\rcompiling: 1/2", end="", file=sys.stderr)
        raise ValueError("bad")
    assert terminal.getvalue() == "\rcompiling: 1/2\n"
    assert sys.stderr is terminal


def test_elsewhere_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with loading("m.gguf"):
        time.sleep(0.1)
        assert sys.stderr is stream
    assert stream.getvalue() == ""
