"""The package's structure: imports point one way, and nothing is imported twice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The rooms of the package in the order in which data flows, as README lists them. A module may
# import from its own room and from those before it.
ROOMS = [
    "errors", "common", "graph", "gguf", "text", "ops", "models", "backends", "sched", "sampling",
    "memory", "runtime", "engine", "llama", "packaged", "bench", "cli", "__init__", "__main__",
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


def imported(path: Path) -> set[str]:
    """First names below ggmlpy that a file imports at run time, anywhere in it."""
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
        if isinstance(node, ast.ImportFrom) and node.module == "ggmlpy":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ggmlpy."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {name[1] for name in names if name[0] == "ggmlpy" and len(name) > 1}
    return found


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
