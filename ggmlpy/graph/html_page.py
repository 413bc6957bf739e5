"""What the page of a graph consists of: HTML with places for its parts, style and script."""

from __future__ import annotations

PAGE = """\
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

SECTION = """\
<details{attributes}>
<summary><h2>{title}</h2> <span>{counts}</span></summary>
{nodes}{leafs}</details>"""

NODES = """\
<div class="scroll"><table class="nodes">
<thead><tr><th>#<th>op<th>name<th>type<th>shape (ne)<th>sources<th>read by</thead>
<tbody>
{rows}
</tbody></table></div>
"""

LEAFS = """\
<div class="scroll"><table class="leafs">
<thead><tr><th>#<th>kind<th>leaf<th>type<th>shape (ne)<th>size<th>read by</thead>
<tbody>
{rows}
</tbody></table></div>
"""

STYLE = """
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

SCRIPT = """
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
