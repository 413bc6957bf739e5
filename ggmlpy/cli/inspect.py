"""`ggmlpy inspect`: metadata and tensors of a GGUF file, without loading it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from ggmlpy.cli import common, options
from ggmlpy.cli.command import argument, command, flag, option
from ggmlpy.cli.model_plan import ModelPlan
from ggmlpy.cli.options import PlacementOptions
from ggmlpy.cli.show import console, count_text, size_text, write_json
from ggmlpy.cli.types import Regex
from ggmlpy.common.quoting import printable
from ggmlpy.gguf import GGUFFile, LazyArray, TensorInfo
from ggmlpy.packaged import packaged_model

N_ELEMENTS = 5  # shown of an array
N_JSON_ELEMENTS = 16
_GAP = 2  # between columns, one of which is the box's
_NUMBERS = ("tensors", "parameters", "size", "bits per weight")
N_CHARS = 200  # shown of a string


@command
@options.model_file
@argument("file", "[FILE]", "A GGUF file.", **options.file_or_packaged)
@flag("tensors", "--tensors", "List every tensor: name, type, shape, size.")
@option(
    "keys",
    "--keys REGEX",
    "Only metadata whose key matches, anywhere in it.",
    type=Regex(),
    default="",
    show_default=False,
)
@flag(
    "plan",
    "--plan",
    "What the architecture makes of the file: its memory, and tensors and keys without use.",
)
@options.as_json
@options.placement
@options.placement_options
def inspect(
    model: Path | None,
    file: Path | None,
    tensors: bool,
    keys: re.Pattern[str],
    plan: bool,
    as_json: bool,
    placement: bool,
    where: PlacementOptions,
) -> None:
    """Show the metadata and the tensors of a GGUF file, or of the small model in the package.

    Shapes are in ggml's order, the fastest dimension first. Sizes are in powers of a thousand. Of
    long arrays the length and the first elements are shown.

    Examples:
      ggmlpy inspect model.gguf
      ggmlpy inspect model.gguf --tensors
      ggmlpy inspect model.gguf --keys 'rope|head' --json
      ggmlpy inspect model.gguf --plan
      ggmlpy inspect model.gguf --tensors -ngl 8 -ot 'ffn_.*_exps=cpu'
    """
    if model is not None and file is not None:
        raise click.UsageError("FILE cannot be used together with -m, -hf or -mu.")
    with GGUFFile.open(model or file or packaged_model()) as gguf_file:
        selected = [key for key in gguf_file.metadata if keys.search(key)]
        placed = None
        if placement or where != PlacementOptions():
            placed = Placed.of(gguf_file, where)
        planned = ModelPlan.of(gguf_file) if plan else None
        if as_json:
            described = as_dict(gguf_file, selected, tensors, placed)
            if planned is not None:
                described["plan"] = planned.as_dict()
            write_json(described)
        else:
            _print(gguf_file, selected, tensors, placed)
            for line in planned.lines() if planned is not None else ():
                print(line)


@dataclass(frozen=True, slots=True)
class Placed:
    """The memory in which a model's tensors would lie."""

    layers: str  # "layers 0 to 3 on cpu, 4 and output on mock"
    memories: dict[str, list[str]]  # of each tensor: several for one that two layers read
    n_bytes: dict[str, int]  # of weights, by memory

    @classmethod
    def of(cls, file: GGUFFile, where: PlacementOptions) -> Placed:
        """Raises Unsupported for an architecture without support, ArgumentError, BackendError."""
        from ggmlpy.models import load_model

        model = load_model(file)
        placement, _ = common.placement_of(model, where)
        memories: dict[str, list[str]] = {}
        n_bytes: Counter[str] = Counter()
        for name, leaf in model.weights.leaves.items():
            memory = placement.backend_of(name).buffer_type.name
            of_tensor = memories.setdefault(leaf.name, [])
            if memory not in of_tensor:
                of_tensor.append(memory)
                n_bytes[memory] += file.tensors[leaf.name].n_bytes
        return cls(str(placement), memories, dict(n_bytes))


@dataclass(frozen=True, slots=True)
class Total:
    """Sums over the tensors of one type, or over all."""

    n_tensors: int
    n_elements: int
    n_bytes: int

    @classmethod
    def of(cls, tensors: Iterable[TensorInfo]) -> Total:
        listed = list(tensors)
        return cls(len(listed), sum(t.n_elements for t in listed), sum(t.n_bytes for t in listed))

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_elements if self.n_elements else 0.0

    def as_dict(self) -> dict[str, int | float]:
        return {
            "n_tensors": self.n_tensors,
            "n_elements": self.n_elements,
            "n_bytes": self.n_bytes,
            "bits_per_weight": round(self.bits_per_weight, 4),
        }


def totals_by_type(file: GGUFFile) -> dict[str, Total]:
    """Sums by type, in descending order of bytes."""
    types = dict.fromkeys(t.type.name for t in file.tensors.values())
    totals = {
        type: Total.of(t for t in file.tensors.values() if t.type.name == type) for type in types
    }
    return dict(sorted(totals.items(), key=lambda item: -item[1].n_bytes))


def as_dict(
    file: GGUFFile, keys: Iterable[str], with_tensors: bool, placed: Placed | None = None
) -> dict[str, Any]:
    """The object that `--json` writes."""
    described: dict[str, Any] = {
        "file": str(file.path),
        "n_files": len(file.paths),
        "version": file.version,
        "byte_order": file.byte_order,
        "alignment": file.alignment,
        "metadata": {key: _json_value(file, key) for key in keys},
        "total": Total.of(file.tensors.values()).as_dict(),
        "types": {type: total.as_dict() for type, total in totals_by_type(file).items()},
    }
    if placed is not None:
        described["placement"] = {"layers": placed.layers, "n_bytes": placed.n_bytes}
    if with_tensors:
        described["tensors"] = [
            {
                "name": t.name,
                "type": t.type.name,
                "ne": t.ne[: t.n_dims],
                "n_bytes": t.n_bytes,
                "offset": t.offset,
                **({} if placed is None else {"on": placed.memories.get(t.name, [])}),
            }
            for t in file.tensors.values()
        ]
    return described


def _json_value(file: GGUFFile, key: str) -> dict[str, Any]:
    value, type = file.metadata[key], file.metadata.value_type(key)
    if not isinstance(value, LazyArray):
        return {"type": type, "value": value}
    first = [_plain(v) for v in value[:N_JSON_ELEMENTS]]
    return {"type": type, "length": len(value), "first": first}


def _plain(element: Any) -> Any:
    """An element of an array; for an element that is an array, the list of its first elements."""
    if isinstance(element, LazyArray):
        return [_plain(v) for v in element[:N_JSON_ELEMENTS]]
    return element


def _print(
    file: GGUFFile, keys: list[str], with_tensors: bool, placed: Placed | None = None
) -> None:
    out = console(sys.stdout)
    total = Total.of(file.tensors.values())
    n_files = f" in {len(file.paths)} files" if len(file.paths) > 1 else ""
    out.print(
        f"{file.name}: GGUF version {file.version}, {file.byte_order}-endian,"
        f" {len(file.metadata)} keys, {total.n_tensors} tensors{n_files}",
        style="bold",
        soft_wrap=True,
    )
    _print_table(out, _metadata_table(out, file, keys))
    if with_tensors:
        _print_table(out, _tensor_table(out, file, placed))
    if file.tensors:
        _print_table(out, _total_table(out, file, total))
    if placed is not None:
        sizes = ", ".join(f"{size_text(n)} on {name}" for name, n in placed.n_bytes.items())
        out.print(f"\nplacement: {placed.layers}; weights: {sizes}", soft_wrap=True)


def _print_table(out: Console, table: Table) -> None:
    """An empty line and the table, without trailing spaces."""
    with out.capture() as captured:
        out.print(table)
    print()
    for line in captured.get().splitlines():
        print(line.rstrip())


def _table(out: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns are as wide as needed; the last one is cut to the width of `out`.

    Columns of numbers are right-aligned.
    """
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold",
    )
    used = 0
    for i, name in enumerate(columns):
        is_last = i == len(columns) - 1
        table.add_column(
            name,
            justify="right" if name in _NUMBERS else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=max(len(name), out.width - used) if is_last else None,
        )
        used += max(map(cell_len, [name, *(row[i] for row in rows)])) + _GAP
    for row in rows:
        table.add_row(*row)
    return table


def _metadata_table(out: Console, file: GGUFFile, keys: list[str]) -> Table:
    rows = [(printable(key), file.metadata.value_type(key), _value_text(file, key)) for key in keys]
    return _table(out, ("key", "type", "value"), rows)


def _value_text(file: GGUFFile, key: str) -> str:
    value = file.metadata[key]
    if key == "general.file_type" and isinstance(value, int):
        return f"{value} ({_file_type_name(value)})"
    return _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, LazyArray):
        return f"{len(value)}: {_elements(value)}"
    if isinstance(value, str):
        cut = "…" if len(value) > N_CHARS else ""
        return f'"{printable(value[:N_CHARS])}"{cut}'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _elements(array: LazyArray) -> str:
    """The first elements; arrays among them in brackets."""
    listed = [
        f"[{_elements(v)}]" if isinstance(v, LazyArray) else _shown(v) for v in array[:N_ELEMENTS]
    ]
    return ", ".join(listed + ["…"] * (len(array) > N_ELEMENTS))


def _file_type_name(value: int) -> str:
    """The name of a `general.file_type`, such as "Q4_K_M"."""
    import gguf

    try:
        name: str = gguf.LlamaFileType(value).name
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "unknown"


def _tensor_table(out: Console, file: GGUFFile, placed: Placed | None) -> Table:
    columns = ["tensor", "type", "ne", "size"] + ["on"] * (placed is not None)
    rows = []
    for t in file.tensors.values():
        row = [printable(t.name), t.type.name, str(list(t.ne[: t.n_dims])), size_text(t.n_bytes)]
        if placed is not None:
            row.append(", ".join(placed.memories.get(t.name, ["-"])))
        rows.append(row)
    return _table(out, columns, rows)


def _total_table(out: Console, file: GGUFFile, total: Total) -> Table:
    totals = totals_by_type(file)
    rows = [
        (
            type,
            str(of_type.n_tensors),
            count_text(of_type.n_elements),
            size_text(of_type.n_bytes),
            f"{of_type.bits_per_weight:.2f}",
        )
        for type, of_type in (totals if len(totals) == 1 else totals | {"all": total}).items()
    ]
    return _table(out, ("type", "tensors", "parameters", "size", "bits per weight"), rows)
