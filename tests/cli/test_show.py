"""Numbers and strings as a terminal shows them."""

from __future__ import annotations

import io

import pytest

from ggmlpy.cli.show import console, count_text, harmless, size_text
from ggmlpy.common.quoting import printable


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_185_376, "1.19 MB"),
        (9_996_000, "10.0 MB"),
        (999_600_000, "1.00 GB"),
        (370_000_000_000, "370 GB"),
    ],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text


def test_counts() -> None:
    assert [count_text(n) for n in (7, 999, 3_475_968, 7_241_732_096)] == [
        "7", "999", "3.48 M", "7.24 B",
    ]  # fmt: skip


def test_what_steers_a_terminal_is_spelt_out() -> None:
    text = "ä▁\n\ta\rb\x1b[2J\x07\x9b\u202e\udcff"
    assert harmless(text) == "ä▁\n\ta" + r"\rb\x1b[2J\x07\x9b\u202e\udcff"
    assert printable(text) == r"ä▁\n\ta\rb\x1b[2J\x07\x9b\u202e\udcff"


def test_text_is_no_markup() -> None:
    stream = io.StringIO()
    console(stream).print("[bold]x[/] :smile: [link=a]" + "long " * 500, end="")
    assert stream.getvalue() == "[bold]x[/] :smile: [link=a]" + "long " * 500
