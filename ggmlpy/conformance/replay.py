"""A failing case in a file: the case, the bytes of its inputs, and what the backend made of them.
Random graphs that fail are files of their own, as JSON.

The file of a case is an npz archive without pickled objects: `case` and `about` are JSON,
`input_0`, ... the bytes of the leaves in the order of the graph. It replays even if the generator
of inputs changes.
"""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.graphs.leaves import placeless_leaf
from ggmlpy.conformance.graphs.program import Program
from ggmlpy.conformance.graphs.program import build as build_program
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.run import computing, initial_bytes, restore
from ggmlpy.errors import FileError, GgmlpyError, MissingFile
from ggmlpy.graph.buffer import Bytes
from ggmlpy.graph.tensor import Tensor

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A case from a file, its inputs, and under `about` the backend, its settings and message."""

    case: Case
    seed: int
    inputs: tuple[Bytes, ...]
    about: dict[str, str]

    def node(self) -> Tensor:
        """The case's output over the saved inputs. Raises FileError if they do not fit."""
        y = build(self.case, self.seed)
        leaves = list(initial_bytes(computing(y)).items())
        sizes = [data.nbytes for _, data in leaves]
        if sizes != [data.nbytes for data in self.inputs]:
            raise FileError(
                f"{self.case.id}: its inputs have {sizes} bytes, those of the file have "
                f"{[data.nbytes for data in self.inputs]}"
            )
        restore({leaf: data for (leaf, _), data in zip(leaves, self.inputs, strict=True)})
        return y


def save_case(folder: Path, case: Case, seed: int, **about: str) -> Path:
    """Write a case and its inputs to a file in `folder`, named after the case. Raises OSError."""
    inputs = list(initial_bytes(computing(build(case, seed))).values())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', case.id)[:120]}.npz"
    fields = {
        "format": _FORMAT,
        "op": case.op,
        "ne": case.ne,
        "types": case.types,
        "layouts": case.layouts,
        "span": case.span,
        "params": case.params,
        "seed": seed,
    }
    arrays = {f"input_{i}": np.asarray(data) for i, data in enumerate(inputs)}
    np.savez_compressed(path, case=json.dumps(fields), about=json.dumps(about), **arrays)  # type: ignore[arg-type]
    return path


def load_case(path: Path) -> Saved:
    """A case that `save_case` has written. Raises MissingFile, FileError."""
    if not path.is_file():
        raise MissingFile(f"{path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as file:
            fields: dict[str, Any] = json.loads(str(file["case"]))
            about = json.loads(str(file["about"]))
            names = sorted((n for n in file.files if n.startswith("input_")), key=_number)
            inputs = tuple(file[name].astype(np.uint8, casting="equiv") for name in names)
        params: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields["params"].items()
        }
        case = Case(
            fields["op"],
            ne=[tuple(ne) for ne in fields["ne"]],
            types=fields["types"] or ("f32",),
            layouts=fields["layouts"],
            span=tuple(fields["span"]),
            **params,
        )
        return Saved(case, int(fields["seed"]), inputs, about)
    except (KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise FileError(f"{path}: not a saved case: {error}") from error


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A random graph from a file: the mode it failed in, and what was wrong then."""

    program: Program
    seed: int
    mode: str
    wrong: str


def load_graph(path: Path) -> SavedGraph:
    """A graph that `Finding.save` has written. Raises MissingFile, FileError."""
    if not path.is_file():
        raise MissingFile(f"{path}: there is no such file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        program = Program.from_json(content)
        build_program(program, placeless_leaf)
        about = str(content["wrong"])
        return SavedGraph(program, int(content["seed"]), str(content["mode"]), about)
    except (KeyError, ValueError, TypeError, AttributeError, GgmlpyError) as error:
        raise FileError(f"{path}: not a saved graph: {error}") from error


def _number(name: str) -> int:
    return int(name.removeprefix("input_"))
