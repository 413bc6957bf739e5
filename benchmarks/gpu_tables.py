"""Tables of predictions, for terminals and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

WIDTH = 190  # where the output is no terminal


def _figure(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value}"


LAUNCH_COLUMNS = {
    "kernel": "kernel",
    "launches": "n",
    "mbytes": "MB",
    "bytes_per_element": "B/elem",
    "iteration": "instr/iter",
    "instructions_per_element": "instr/elem",
    "instructions_allowed": "allowed",
    "registers": "regs",
    "local_bytes": "local B",
    "shared_bytes": "shared B",
    "blocks_per_sm": "blocks/SM",
    "warps_per_sm": "warps/SM",
    "waves": "waves",
    "us": "us",
    "bound_by": "bound by",
    "share_of_copy": "of copy",
}
STEP_COLUMNS = {
    "step": "step",
    "ms": "ms",
    "tokens_s": "tok/s",
    "launches": "launches",
    "launch_ms": "their ms",
    "products_ms": "products ms",
    "attention_ms": "attention ms",
    "gbytes": "GB",
    "share": "share",
    "share_without_launches": "without launches",
    "of": "of",
    "target": "target",
    "is_met": "met",
}
ATTENTION_COLUMNS = {
    "step": "attention of a layer",
    "us_a_layer": "us",
    "bound_by": "bound by",
    "waves": "waves",
    "share": "share",
    "of": "of",
    "target": "target",
    "is_met": "met",
}


def show(title: str, columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    table = Table(*columns.values(), title=title, title_justify="left", box=SIMPLE)
    for row in rows:
        table.add_row(*(_figure(row.get(key)) for key in columns))
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table)


def markdown(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| " + " | ".join(columns.values()) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(_figure(row.get(key)) for key in columns) + " |"


def document(result: dict[str, Any]) -> str:
    """The file for people."""
    about = result["about"]
    lines = [
        "# Kernels on a GPU, predicted",
        "",
        "**Predicted from machine code, not measured.** No GPU was used. Bank conflicts, misses of",
        "caches and the ends of blocks are left out, so that times are lower bounds of a kind.",
        "",
        f"{about['gpu']}, {about['arch']}, NVRTC {about['nvrtc']}, {about['date']}, commit"
        f" {about['commit']}; `{about['command']}`. Constants: {about['constants']}.",
        "",
        "## Steps of Llama-3-8B",
        "",
        *markdown(STEP_COLUMNS, result["steps"]),
        "",
        "## Attention of a layer, K and V in f16",
        "",
        *markdown(ATTENTION_COLUMNS, result["attention"]),
    ]
    for step, rows in result["launches"].items():
        lines += ["", f"## Launches: {step}", "", *markdown(LAUNCH_COLUMNS, rows)]
    if result.get("units"):
        archs = about["archs"]
        columns = {"unit": "unit", "kernel": "kernel", **{arch: arch for arch in archs}}
        rows = [
            {**row, **{arch: " / ".join(map(str, row.get(arch, ["-"]))) for arch in archs}}
            for row in result["units"]
        ]
        lines += ["", "## Registers / local bytes / static shared bytes of all kernels", ""]
        lines += markdown(columns, rows)
    return "\n".join(lines) + "\n"
