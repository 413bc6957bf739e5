"""The package's structure: imports point one way, and nothing is imported twice."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The rooms of the package in the order in which data flows, as README lists them. A module may
# import from its own room and from those before it.
ROOMS = [
    "errors", "common", "hub", "graph", "gguf", "text", "grammar", "tools", "ops", "models",
    "backends", "sched", "sampling", "memory", "runtime", "draft", "engine", "llama",
    "async_llama", "compat", "packaged", "conformance", "bench", "quantize", "server", "cli",
    "__init__", "__main__",
]  # fmt: skip
LAYER_OF = {name: i for i, name in enumerate(ROOMS)}
SOURCES = sorted(
    path
    for folder in ("ggmlpy", "ops", "backends", "models")
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.is_symlink() for part in path.parents)
)


def module_of(path: Path) -> str:
    """The first name below ggmlpy: "ops" for ops/norm.py, "llama" for ggmlpy/llama.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "ggmlpy" else parts[0]


def imports(path: Path) -> set[str]:
    """What a file imports of ggmlpy at run time, anywhere in it: "graph.graph", "graph.graph.Graph"
    where a name may be a module or what a module has."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("ggmlpy."):
            module = f"{node.module}.".removeprefix("ggmlpy.")
            found |= {module + alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {n.removeprefix("ggmlpy.") for n in names if n.startswith("ggmlpy.")}
    return found


def imported(path: Path) -> set[str]:
    """First names below ggmlpy that a file imports."""
    return {name.split(".")[0] for name in imports(path)}


def test_every_module_is_in_a_room() -> None:
    assert SOURCES
    assert {module_of(p) for p in SOURCES} - set(LAYER_OF) == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = module_of(path)
    known = imported(path) & set(LAYER_OF)
    upwards = {name for name in known if LAYER_OF[name] > LAYER_OF[own]}
    assert not upwards, f"{own} imports {upwards} from above"
    if own in ("backends", "models"):  # of one layer, yet neither knows the other
        assert not known & ({"backends", "models"} - {own})


def test_no_circle_of_imports() -> None:
    """Within rooms too, and counting imports inside functions."""
    modules = {}
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[1:] if parts[0] == "ggmlpy" else parts).removesuffix("__init__")
        modules[name.removesuffix(".")] = path
    graph = {}
    for module, path in modules.items():
        found = {n if n in modules else n.rpartition(".")[0] for n in imports(path)}
        graph[module] = found & modules.keys() - {module}
    seen = {"graph.html_page", "graph.layers", "graph.nodes", "graph.tensor"}
    assert graph["graph.html"] == seen
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_no_second_copy_of_a_module() -> None:
    """`import ops` would find the top-level folder and make other classes of the same name."""
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            first = {name.split(".")[0] for name in names}
            assert not first & {"ops", "backends", "models"}, f"{path}: {names}"
