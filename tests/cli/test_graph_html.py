"""The HTML page: complete, linked without loose ends, self-contained, and safe with any name."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from ggmlpy import GGUFFile, Graph, Tensor, from_bytes, ops, scope, zeros
from ggmlpy.graph.html import to_html
from ggmlpy.models import load_model
from ggmlpy.runtime.preview import build_graph
from tests.models.tiny import Tiny, write_model


class Page(HTMLParser):
    """Ids, links, rows and sections of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.resources: list[str] = []
        self.rows: dict[str, str] = {}  # by id: the text of a row
        self.titles: list[str] = []
        self._row = ""
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])
        self.resources += [given[name] for name in ("src", "srcset", "data") if name in given]
        if tag == "tr":
            self._row = given.get("id", "")
        self._in_title = tag == "h2"

    def handle_data(self, data: str) -> None:
        if self._row:
            self.rows[self._row] = self.rows.get(self._row, "") + data + " "
        if self._in_title:
            self.titles.append(data)
            self._in_title = False


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = write_model(tmp_path_factory.mktemp("html") / "m.gguf", Tiny(n_layer=3))
    return build_graph(load_model(GGUFFile.open(path)), 5, 9)


def test_every_tensor_has_its_row(graph: Graph) -> None:
    page = Page(to_html(graph, "a model"))
    nodes = {f"node-{i}": t for i, t in enumerate(graph.nodes)}
    leafs = {f"leaf-{i}": t for i, t in enumerate(graph.leafs)}
    assert set(page.rows) == set(nodes) | set(leafs)
    assert len(page.ids) == len(set(page.ids))
    for id, tensor in (nodes | leafs).items():
        row = page.rows[id].replace(" ", "")
        for text in (graph.name_of(tensor), tensor.type.name, tensor.spec.shape_text):
            assert text.replace(" ", "") in row
        if tensor.op is not None:
            assert tensor.op.name in row
            for source in tensor.src:
                assert graph.name_of(source).replace(" ", "") in row


def test_links_lead_somewhere(graph: Graph) -> None:
    page = Page(to_html(graph))
    n_edges = sum(len(n.src) for n in graph.nodes)
    n_readers = sum(len(set(n.src)) for n in graph.nodes)
    assert len(page.links) == n_edges + n_readers
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_a_section_for_each_layer_in_order(graph: Graph) -> None:
    page = Page(to_html(graph))
    assert page.titles == ["input", "blk.0", "blk.1", "blk.2", "output"]
    text = to_html(graph)
    first = text.index("<h2>blk.1</h2>")
    section = text[first : text.index("</details>", first)]
    assert "blk.<wbr>1.<wbr>attn_<wbr>q.<wbr>weight" in section  # its weights
    assert "cache_<wbr>k_<wbr>l1" in section  # and its cache
    assert "Qcur-1<" in section
    assert "Qcur-2<" not in section


def test_nothing_is_loaded_from_elsewhere(graph: Graph) -> None:
    text = to_html(graph)
    page = Page(text)
    assert page.resources == []
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    for word in ("http:", "https:", "@import", "url(", "fetch(", "XMLHttpRequest"):
        assert word not in text


def test_names_cannot_become_markup() -> None:
    bad = '</script><script>alert(1)</script><b id="x">&amp;'
    w = from_bytes(bytes(64), "f32", (4, 4), name=bad)
    x = zeros("f32", (4,), name='"onmouseover="alert(1)')
    y: Tensor = ops.mul_mat(w, x).named(bad)
    text = to_html(Graph(y), title=bad)
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "x" not in page.ids
    assert "".join(bad.split()) in "".join(page.rows["node-0"].split())
    assert " onmouseover" not in text


def test_graphs_without_layers(tmp_path: Path) -> None:
    x = zeros("f32", (4,), name="x")
    assert Page(to_html(Graph(x + x))).titles == ["input"]
    with scope(layer=7):
        y = x * 2.0
    assert Page(to_html(Graph(y))).titles == ["input", "blk.7"]
    assert "output" in Page(to_html(Graph(y))).rows["node-0"]
