"""What notebooks show, and tensors where numpy wants arrays."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import ggmlpy
from ggmlpy import Graph, Llama, ops
from ggmlpy.common.notebook import table
from ggmlpy.errors import ArgumentError, GgmlpyError

VOID = ("br", "wbr", "hr")


class _Checked(HTMLParser):
    """Raises unless every element is closed; keeps the text and the colours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.styles = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [tag] * (tag not in VOID)
        self.styles += (dict(attrs).get("style") or "") + ";"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def test_text_is_escaped_and_rows_are_limited() -> None:
    page = _Checked(table("<b>&", [(f"<i>{i}", "</td>") for i in range(100)], "<pre>"))
    assert "<b>&" in page.words and "<i>29" in page.words and "</td>" in page.words
    assert "<i>30" not in page.words and "… 70 more" in page.words


def test_no_colour_of_its_own() -> None:
    """A page may be light or dark: text and background stay the page's."""
    styles = _Checked(table("a", [("b", "c")])).styles
    assert "background" not in styles
    assert not [s for s in styles.split(";") if s.strip().startswith("color")]


def test_a_tensor_and_a_graph() -> None:
    x = ggmlpy.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), name="<x>")
    y = ops.scale(x, 2.0).named("y")
    assert "no values yet" in _Checked(y._repr_html_()).words
    shown = _Checked(x._repr_html_()).words
    assert "<x>" in shown and "[3, 2]" in shown and "[3. 4. 5.]" in shown
    ggmlpy.compute(y, backend="reference")
    assert "10." in _Checked(y._repr_html_()).words
    graph = _Checked(Graph(y)._repr_html_()).words
    assert "Graph of y" in graph and "scale 1" in graph
    large = ggmlpy.zeros("f32", (1 << 22, 2))
    assert "0." not in _Checked(large._repr_html_()).words


def test_a_model_and_its_context() -> None:
    with Llama(ggmlpy.packaged_model(), backend="reference", n_ctx=64) as llm:
        page = _Checked(llm._repr_html_()).words
        assert "n_ctx=64" in page and "cache_ram" in page
        context = _Checked(llm.engine.context._repr_html_()).words
        assert "reference" in context and "cells used" in context
        assert repr(llm.engine.context).startswith("Context(llama, ")
    assert "closed" in _Checked(llm._repr_html_()).words


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0", "i32"])
def test_numpy_takes_tensors(type: str) -> None:
    values = np.arange(64).reshape(2, 32)
    x = ggmlpy.from_numpy(values.astype(np.int32 if type == "i32" else np.float32))
    if type != "i32":
        x = ops.cast(x, type)
        ggmlpy.compute(x, backend="reference")
    for made in (np.asarray(x), np.array(x), np.array(x, copy=True)):
        np.testing.assert_array_equal(made, x.numpy())
        assert made.dtype == x.numpy().dtype
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.asarray(x, dtype=np.int8), x.numpy().astype(np.int8))
    np.testing.assert_array_equal(np.stack([x, x]), np.stack([x.numpy()] * 2))


def test_arrays_are_copies() -> None:
    values = np.zeros(3, np.float32)
    x = ggmlpy.from_numpy(values)
    np.asarray(x)[0] = 1
    assert values[0] == 0
    with pytest.raises(ValueError, match="copy must be True or None"):
        np.array(x, copy=False)
    with pytest.raises(ArgumentError):
        x.__array__(copy=False)


def test_no_array_of_what_is_not_computed() -> None:
    x = ggmlpy.from_numpy(np.ones(3, np.float32))
    with pytest.raises(GgmlpyError, match=r"has no value yet: pass it to ggmlpy.compute first"):
        np.asarray(ops.scale(x, 2.0))
