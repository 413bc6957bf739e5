"""A graph as a page of HTML: one section per layer, links to sources and readers, a search box.

The page is self-contained and loads nothing. Names that come from a file are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from ggmlpy.graph.layers import layers_of
from ggmlpy.graph.nodes import NO_HOMES, Homes, Nodes
from ggmlpy.graph.tensor import Flag, Tensor

_FAMILIES = {
    "matmul": ("mul_mat", "mul_mat_id", "out_prod"),
    "attention": ("flash_attn_ext", "soft_max", "rope", "diag_mask_inf"),
    "norm": ("rms_norm", "norm", "group_norm", "l2_norm"),
    "memory": ("get_rows", "set_rows", "cpy", "cont", "dup", "cast", "concat", "set"),
}
_FAMILY = {op: family for family, ops in _FAMILIES.items() for op in ops}
_MAX_OPEN = 2  # sections that are open when the page is


@dataclass(slots=True)
class _Section:
    """The tensors of a layer, or those before or after all layers."""

    title: str
    leafs: list[Tensor] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)


def to_html(graph: Nodes, title: str = "graph", homes: Homes = NO_HOMES) -> str:
    """The page for `graph`; `title` is its heading, `homes` has backends and memory to show."""
    page = _Page(graph, homes)
    sections = _sections(graph)
    body = "\n".join(page.section(s, is_open=i < _MAX_OPEN) for i, s in enumerate(sections))
    return _PAGE.format(
        title=escape(title),
        summary=_summary(graph),
        ops=_op_buttons(graph),
        sections=body,
        style=_STYLE,
        script=_SCRIPT,
    )


def _sections(graph: Nodes) -> list[_Section]:
    """Input, every layer in the order of its first node, output; empty ones left out."""
    layers = layers_of(graph)
    before, after = _Section("input"), _Section("output")
    by_layer: dict[int, _Section] = {}
    for node in graph.nodes:
        layer = layers[node]
        if layer is not None:
            by_layer.setdefault(layer, _Section(f"blk.{layer}")).nodes.append(node)
        else:
            (after if by_layer else before).nodes.append(node)
    first_reader = {source: n for n in reversed(graph.nodes) for source in n.src}
    tail = set(after.nodes)
    for leaf in graph.leafs:
        layer = layers[leaf]
        if layer is not None and layer in by_layer:
            by_layer[layer].leafs.append(leaf)
        else:
            (after if first_reader.get(leaf) in tail else before).leafs.append(leaf)
    return [s for s in (before, *by_layer.values(), after) if s.leafs or s.nodes]


class _Page:
    """Writes rows, with the number and the readers of every tensor."""

    def __init__(self, graph: Nodes, homes: Homes) -> None:
        self._graph = graph
        self._homes = homes
        self._number = {t: i for ts in (graph.leafs, graph.nodes) for i, t in enumerate(ts)}
        self._readers: dict[Tensor, list[Tensor]] = {t: [] for t in self._number}
        for node in graph.nodes:
            for source in dict.fromkeys(node.src):
                self._readers[source].append(node)
        self._outputs = set(graph.outputs)

    def section(self, section: _Section, *, is_open: bool) -> str:
        computed = sum(1 for n in section.nodes if n.op is not None and n.op.computes)
        n_views = len(section.nodes) - computed
        counts = [_counted(n, noun) for n, noun in ((computed, "op"), (n_views, "view")) if n]
        weights = [t for t in section.leafs if Flag.WEIGHT in t.flags]
        if weights:
            size = _size(sum(t.spec.n_bytes for t in weights))
            counts.append(f"{_counted(len(weights), 'weight')} ({size})")
        leafs = "\n".join(self._leaf_row(t) for t in section.leafs)
        nodes = "\n".join(self._node_row(t) for t in section.nodes)
        return _SECTION.format(
            attributes=" open" if is_open else "",
            title=escape(section.title),
            counts=", ".join(counts),
            nodes=_NODES.format(rows=nodes) if nodes else "",
            leafs=_LEAFS.format(rows=leafs) if leafs else "",
        )

    def _node_row(self, node: Tensor) -> str:
        assert node.op is not None
        params = _params_text(node.op.params())
        family = "view" if not node.op.computes else _FAMILY.get(node.op.name, "other")
        sources = ", ".join(self._link(s) for s in node.src)
        tag = '<span class="tag">output</span>' if node in self._outputs else ""
        return (
            f'<tr id="{self._id(node)}" class="{family}"><td class="number">{self._number[node]}'
            f'<td><span class="op">{escape(node.op.name)}</span>'
            f'<span class="params" title="{escape(params)}">{escape(params)}</span>'
            f"<td>{self._name(node)}{tag}{self._type_and_shape(node)}"
            f"<td>{sources}<td>{self._reader_links(node)}"
        )

    def _leaf_row(self, leaf: Tensor) -> str:
        kinds = [f.name.lower() for f in Flag if f in leaf.flags and f.name] or ["leaf"]
        return (
            f'<tr id="{self._id(leaf)}" class="leaf"><td class="number">{self._number[leaf]}'
            f"<td>{' '.join(kinds)}<td>{self._name(leaf)}{self._type_and_shape(leaf)}"
            f'<td class="size">{_size(leaf.spec.n_bytes)}<td>{self._reader_links(leaf)}'
        )

    def _id(self, tensor: Tensor) -> str:
        return f"{'leaf' if tensor.is_leaf else 'node'}-{self._number[tensor]}"

    def _name(self, tensor: Tensor) -> str:
        home = self._homes.get(tensor)
        tag = "" if home is None else f'<span class="home">{escape(home)}</span>'
        return f'<span class="name">{_breakable(self._graph.name_of(tensor))}</span>{tag}'

    def _type_and_shape(self, tensor: Tensor) -> str:
        return f"<td>{tensor.type}<td>{tensor.spec.shape_text}"

    def _link(self, tensor: Tensor, label: str = "") -> str:
        kind = ' class="to-leaf"' if tensor.is_leaf else ""
        shown = label or f"{self._number[tensor]} {_breakable(self._graph.name_of(tensor))}"
        title = escape(self._graph.reference(tensor))
        return f'<a href="#{self._id(tensor)}"{kind} title="{title}">{shown}</a>'

    def _reader_links(self, tensor: Tensor) -> str:
        return " ".join(self._link(r, str(self._number[r])) for r in self._readers[tensor])


def _summary(graph: Nodes) -> str:
    computed = sum(1 for n in graph.nodes if n.op is not None and n.op.computes)
    weights = sum(t.spec.n_bytes for t in graph.leafs if Flag.WEIGHT in t.flags)
    state = sum(t.spec.n_bytes for t in graph.leafs if Flag.STATE in t.flags)
    facts = [
        f"{len(graph.nodes)} nodes ({computed} compute, {len(graph.nodes) - computed} are views)",
        f"{len(graph.leafs)} leafs",
        f"{_size(weights)} of weights",
        f"{_size(state)} of state",
    ]
    return " · ".join(facts)


def _op_buttons(graph: Nodes) -> str:
    """A button for each op that computes, the most frequent first."""
    counts = Counter(n.op.name for n in graph.nodes if n.op is not None and n.op.computes)
    return "\n".join(
        f'<button type="button" class="{_FAMILY.get(name, "other")}" data-op="{escape(name)}">'
        f"{escape(name)} <b>{n}</b></button>"
        for name, n in counts.most_common()
    )


def _params_text(params: Mapping[str, object]) -> str:
    """All parameters but `ne`, which the column of shapes shows."""
    shown = {name: value for name, value in params.items() if name != "ne"}
    return ", ".join(f"{name}={_value_text(value)}" for name, value in shown.items())


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value_text, value))}]"
    return str(value)


def _breakable(name: str) -> str:
    """The name, escaped, with opportunities for line breaks."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _size(n_bytes: int) -> str:
    size, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{summary}</p>
</header>
<nav>
<input type="search" id="search" placeholder="Search names, ops, types, shapes"
 aria-label="Search names, ops, types, shapes" autocomplete="off" spellcheck="false">
<output id="found"></output>
<label><input type="checkbox" id="views" checked> views</label>
<button type="button" id="open">open all</button>
<button type="button" id="close">close all</button>
</nav>
<p class="ops">{ops}</p>
<main>
{sections}
</main>
<script>{script}</script>
</body>
</html>
"""

_SECTION = """\
<details{attributes}>
<summary><h2>{title}</h2> <span>{counts}</span></summary>
{nodes}{leafs}</details>"""

_NODES = """\
<div class="scroll"><table class="nodes">
<thead><tr><th>#<th>op<th>name<th>type<th>shape (ne)<th>sources<th>read by</thead>
<tbody>
{rows}
</tbody></table></div>
"""

_LEAFS = """\
<div class="scroll"><table class="leafs">
<thead><tr><th>#<th>kind<th>leaf<th>type<th>shape (ne)<th>size<th>read by</thead>
<tbody>
{rows}
</tbody></table></div>
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fafaf8; --card: #ffffff; --line: #e4e2dc; --text: #22252a; --dim: #71757d;
  --link: #1f5fbf; --hit: #fff3c4;
  --matmul: #2f6fd0; --attention: #b04fb8; --norm: #2c8a5b; --memory: #b3731c; --other: #5f6670;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181c; --card: #1d2025; --line: #31353c; --text: #dfe2e6; --dim: #8d939d;
    --link: #7fb0ff; --hit: #4b4218;
    --matmul: #6ea4f5; --attention: #d68ddd; --norm: #63c091; --memory: #e0a95c; --other: #9aa2ad;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 0 1.25rem 4rem; max-width: 84rem;
  background: var(--page); color: var(--text); font: 14px/1.45 system-ui, sans-serif;
}
header { padding: 1.25rem 0 .25rem; }
h1 { font-size: 1.3rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--dim); }
nav {
  position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; align-items: center;
  gap: .6rem; padding: .6rem 0; background: var(--page);
}
#search {
  flex: 1 1 16rem; max-width: 30rem; padding: .4rem .6rem; font: inherit; color: inherit;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px;
}
#found { min-width: 6.5rem; color: var(--dim); }
button {
  font: inherit; font-size: .85rem; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; padding: .25rem .6rem; cursor: pointer;
}
button:hover { border-color: var(--dim); }
.ops { display: flex; flex-wrap: wrap; gap: .35rem; margin: .1rem 0 1rem; }
.ops button { border-left: 4px solid var(--dim); font-family: ui-monospace, monospace; }
.ops b { font-weight: 500; color: var(--dim); }
details {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 0 0 .6rem;
}
summary { padding: .5rem .8rem; cursor: pointer; }
summary h2 { display: inline; font: 600 1rem ui-monospace, monospace; }
summary span { color: var(--dim); margin-left: .5rem; }
.scroll { overflow-x: auto; border-top: 1px solid var(--line); }
table { width: 100%; border-collapse: collapse; font: 12.5px/1.4 ui-monospace, monospace; }
th {
  text-align: left; font: 500 .78rem system-ui, sans-serif; color: var(--dim);
  padding: .35rem .6rem; white-space: nowrap;
}
td { padding: .28rem .6rem; vertical-align: top; border-top: 1px solid var(--line); }
td:nth-child(4), td:nth-child(5), .size { white-space: nowrap; }
td:nth-child(3) { min-width: 12rem; }
td:nth-child(6), td:nth-child(7) { min-width: 7rem; }
.number { color: var(--dim); text-align: right; width: 3.5rem; }
.nodes .number { border-left: 4px solid transparent; }
.op { font-weight: 600; }
.params {
  display: block; max-width: 15rem; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; color: var(--dim); font-size: 11.5px;
}
.view { color: var(--dim); }
.view .op { font-weight: 400; font-style: italic; }
.tag {
  margin-left: .5rem; padding: 0 .4rem; border-radius: 4px; font-size: 11px;
  background: var(--norm); color: var(--card);
}
.home {
  margin-left: .5rem; padding: 0 .4rem; border-radius: 4px; font-size: 11px;
  border: 1px solid var(--line); color: var(--dim);
}
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
a.to-leaf { color: var(--memory); }
.ops .matmul, .matmul .number { border-left-color: var(--matmul); }
.ops .attention, .attention .number { border-left-color: var(--attention); }
.ops .norm, .norm .number { border-left-color: var(--norm); }
.ops .memory, .memory .number { border-left-color: var(--memory); }
.ops .other, .other .number { border-left-color: var(--other); }
.matmul .op { color: var(--matmul); } .attention .op { color: var(--attention); }
.norm .op { color: var(--norm); } .memory .op { color: var(--memory); }
tr { scroll-margin-top: 4rem; }
tr:target td, tr.linked td { background: var(--hit); }
.no-views tr.view, .hidden, .scroll:not(:has(tr:not(.hidden) td)) { display: none; }
"""

_SCRIPT = """
"use strict";
const search = document.getElementById("search");
const found = document.getElementById("found");
const views = document.getElementById("views");
const sections = [...document.querySelectorAll("details")].map(section => ({
  section, wasOpen: section.open,
  rows: [...section.querySelectorAll("tbody tr")].map(row => ({
    row, op: row.querySelector(".op")?.textContent ?? "",
    text: [...row.cells].slice(1, 5).map(cell => cell.textContent).join(" ").toLowerCase(),
  })),
}));
let query = "";

function filter() {
  const typed = search.value.trim().toLowerCase();
  if (typed && !query) for (const s of sections) s.wasOpen = s.section.open;
  const only = typed.startsWith("op:") ? typed.slice(3).trim() : null;
  const words = typed.split(/\\s+/);
  let n = 0;
  for (const s of sections) {
    let hits = 0;
    for (const {row, op, text} of s.rows) {
      const hit = only === null ? words.every(word => text.includes(word)) : op === only;
      row.classList.toggle("hidden", !hit);
      hits += hit;
    }
    s.section.classList.toggle("hidden", hits === 0);
    if (typed) s.section.open = hits > 0;
    else if (query) s.section.open = s.wasOpen;
    n += hits;
  }
  query = typed;
  found.textContent = typed ? `${n} found` : "";
}

function reveal() {
  const row = document.getElementById(location.hash.slice(1));
  if (!row) return;
  if (row.classList.contains("hidden")) { search.value = ""; filter(); }
  if (row.classList.contains("view") && !views.checked) { views.checked = true; showViews(); }
  row.closest("details").open = true;
  row.scrollIntoView({block: "center"});
}

function showViews() { document.body.classList.toggle("no-views", !views.checked); }

function mark(event, on) {
  const link = event.target.closest?.("td a");
  if (!link) return;
  document.getElementById(link.hash.slice(1))?.classList.toggle("linked", on);
}

search.addEventListener("input", filter);
views.addEventListener("change", showViews);
addEventListener("hashchange", reveal);
document.addEventListener("mouseover", event => mark(event, true));
document.addEventListener("mouseout", event => mark(event, false));
document.addEventListener("click", event => {
  const op = event.target.closest?.("[data-op]")?.dataset.op;
  if (op) { search.value = search.value === `op:${op}` ? "" : `op:${op}`; filter(); }
  if (event.target.closest?.(`a[href="${location.hash || "#"}"]`)) reveal();
});
document.getElementById("open").onclick = () => sections.forEach(s => s.section.open = true);
document.getElementById("close").onclick = () => sections.forEach(s => s.section.open = false);
document.addEventListener("keydown", event => {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  }
});
showViews();
if (location.hash) reveal();
"""
