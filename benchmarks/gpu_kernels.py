"""What the hot kernels of a step take of an H100, predicted from their machine code, without a GPU.

    python benchmarks/gpu_kernels.py [--types f16,q4_0] [--streams 1,8] [--depths 0,4096] [--save]

The CUDA backend plans steps of Llama-3-8B as for an H100 (`gpu_launches.py`); NVRTC compiles what
they launch, nvdisasm prints the machine code, and `sass.py` finds its loops. How often they run is
known for products and attention (`gpu_covers.py`); how long that takes at the best is said by
`gpu_limits.py`, where every constant has its source. For each launch: bytes moved, instructions of
an iteration and of an element, registers, local and shared memory, blocks and warps of a
multiprocessor, waves, and what bounds it. For each step: its time, the sum of its launches, beside
the targets.

Nothing here is measured. The predictions leave out bank conflicts, misses of caches and the ends of
blocks: a kernel that misses its target here will miss it on a GPU, not the other way round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks import report
from benchmarks.gpu_cover_products import n_rows
from benchmarks.gpu_covers import covered
from benchmarks.gpu_executed import Cells, Code, Covered, accessed, allowed, ne, tastes_of
from benchmarks.gpu_limits import (
    A100,
    COPY_SHARE,
    CUBLAS_SHARE,
    H100,
    Gpu,
    Occupancy,
    Times,
    times,
    waves,
)
from benchmarks.gpu_steps import LLAMA_3_8B, PROMPT, Planner, Step, fits
from benchmarks.gpu_tables import ATTENTION_COLUMNS, LAUNCH_COLUMNS, STEP_COLUMNS, document, show
from benchmarks.sass import disassemble, nvdisasm, parse
from ggmlpy.backends.cuda.builder import Prepared
from ggmlpy.backends.cuda.cubins import Cubins
from ggmlpy.backends.cuda.kernel import all_units
from ggmlpy.backends.cuda.machine_code import KernelReport, reports
from ggmlpy.backends.cuda.nvrtc import nvrtc
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.errors import BackendError

RESULTS = report.RESULTS / "gpu_kernels.json"
TYPES = ("f16", "q8_0", "q4_0", "q4_K", "q6_K")
# Shares of a copy's bandwidth in decoding, of cuBLAS in f16 for prompts.
DECODE_TARGET = {"f16": 0.8, "q8_0": 0.8, "q4_0": 0.7, "q4_K": 0.7, "q6_K": 0.7}
PROMPT_TARGET = {"f16": 0.6}  # others 0.4
ATTENTION_TARGETS = {"decode": 0.8, "prompt": 0.5}  # of a copy's bandwidth, of the peak in f16
STREAMS_TARGET = 1.4  # times bytes over bandwidth, of 32 streams at depth 4096
LEAST_SHARE = 0.01  # of a step, of launches that are listed
PRODUCTS = ("multiply_", "round_to_", "finish_product")


# --- machine code -------------------------------------------------------------------------------


@dataclass(slots=True)
class MachineCode:
    """Kernels by their unit, compiled and taken apart once."""

    arch: str
    cubins: Cubins = field(default_factory=Cubins)
    _reports: dict[Unit, dict[str, KernelReport]] = field(default_factory=dict)
    _code: dict[Unit, dict[str, Any]] = field(default_factory=dict)

    def load(self, units: Sequence[Unit]) -> None:
        for unit, cubin in self.cubins.load(units, self.arch).items():
            self._reports[unit] = {kernel.name: kernel for kernel in reports(cubin)}
            text = disassemble(cubin)
            tastes = tastes_of(unit.file)
            self._code[unit] = {name: parse(text, taste) for name, taste in tastes.items()}

    def of(self, launch: Prepared) -> tuple[KernelReport, Code]:
        unit, name = launch.form.unit, launch.form.name
        if unit not in self._code:
            self.load([unit])
        return self._reports[unit][name], Code(self._code[unit], name)


# --- predictions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Predicted:
    """A launch, how often it is in a step, and what it takes."""

    launch: Prepared
    n: int
    report: KernelReport
    occupancy: Occupancy
    covered: Covered
    times: Times

    @property
    def what(self) -> str:
        """`multiply_few_columns q4_0 [4096, 14336] x 2`"""
        names = self.launch.args.dtype.names or ()
        defines = " ".join(value for _, value in self.launch.form.defines)
        shape = ""
        if "weight" in names and defines:
            k, m = ne(self.launch, "weight")[0], n_rows(self.launch)
            shape = f" [{k}, {m}]" + (" x 2" if accessed(self.launch, "up") else "")
        return " ".join([self.launch.form.name, *([defines] if defines else [])]) + shape

    @property
    def is_product(self) -> bool:
        return self.launch.form.name.startswith(PRODUCTS)

    @property
    def is_matrix_vector(self) -> bool:
        return self.launch.form.name == "multiply_one_column"

    @property
    def is_attention(self) -> bool:
        return self.launch.form.name.startswith("attention_")

    def row(self, gpu: Gpu) -> dict[str, Any]:
        """Figures, for files and tables."""
        demand, cover = self.covered.demand, self.covered
        shared = self.report.shared_bytes + self.launch.shared_bytes
        of_element = instructions = None
        if cover.n_elements:
            of_element = demand.n_bytes / cover.n_elements
            instructions = cover.instructions / cover.n_elements
        return {
            "kernel": self.what,
            "launches": self.n,
            "grid": list(self.launch.grid),
            "threads": self.launch.threads,
            "registers": self.report.registers,
            "local_bytes": self.report.local_bytes,
            "shared_bytes": shared,
            "blocks_per_sm": self.occupancy.blocks,
            "warps_per_sm": self.occupancy.warps,
            "limited_by": self.occupancy.limit,
            "waves": round(waves(gpu, self.occupancy, demand.n_blocks), 2),
            "mbytes": round(demand.n_bytes / 1e6, 3),
            "bytes_per_element": of_element and round(of_element, 4),
            "iteration": cover.iteration or None,
            "iteration_covers": cover.per_iteration or None,
            "instructions_per_element": instructions and round(instructions, 4),
            "instructions_allowed": of_element and round(allowed(gpu, of_element), 4),
            "us": round(self.times.total_s * 1e6, 2),
            "bound_by": self.times.limit,
            "parts_us": {what: round(s * 1e6, 2) for what, s in self.times.parts.items()},
            "share_of_copy": round(demand.n_bytes / self.times.total_s / gpu.copy_bytes_s, 3),
        }


def predict(
    gpu: Gpu, code: MachineCode, launches: Sequence[Prepared], cells: Cells
) -> list[Predicted]:
    """Launches of a step by what they are, in the order in which they first come."""
    found: dict[tuple[Any, ...], list[Prepared]] = {}
    for launch in launches:
        sizes = tuple(access.n_bytes for access in launch.accesses)
        found.setdefault((launch.form, launch.grid, launch.shared_bytes, sizes), []).append(launch)
    return [_predicted(gpu, code, same[0], len(same), cells) for same in found.values()]


def _predicted(gpu: Gpu, code: MachineCode, launch: Prepared, n: int, cells: Cells) -> Predicted:
    kernel, of_kernel = code.of(launch)
    shared = kernel.shared_bytes + launch.shared_bytes
    occupancy = Occupancy.of(gpu, launch.threads, kernel.registers, shared)
    cover = covered(launch, of_kernel, cells)
    return Predicted(launch, n, kernel, occupancy, cover, times(gpu, occupancy, cover.demand))


def seconds(found: Sequence[Predicted]) -> float:
    return sum(p.n * p.times.total_s for p in found)


def summary(gpu: Gpu, step: Step, found: Sequence[Predicted]) -> dict[str, Any]:
    """A step beside its targets."""
    total_s = seconds(found)
    products = [p for p in found if p.is_product]
    attention = [p for p in found if p.is_attention]
    cells = step.cells
    n_tokens = cells.n_seqs * cells.n_queries
    n_bytes = sum(p.n * p.covered.demand.n_bytes for p in found if p.covered.n_elements)
    made: dict[str, Any] = {
        "step": str(step),
        "ms": round(total_s * 1e3, 3),
        "tokens_s": round(n_tokens / total_s, 1),
        "launches": sum(p.n for p in found),
        "launch_ms": round(sum(p.n for p in found) * gpu.launch_s * 1e3, 3),
        "products_ms": round(seconds(products) * 1e3, 3),
        "attention_ms": round(seconds(attention) * 1e3, 3),
        "gbytes": round(n_bytes / 1e9, 3),
    }
    if not step.is_prompt:
        share = n_bytes / total_s / gpu.copy_bytes_s
        work_s = total_s - sum(p.n for p in found) * gpu.launch_s
        made["share_without_launches"] = round(n_bytes / work_s / gpu.copy_bytes_s, 3)
        many = cells.n_seqs > 1
        target = 1 / STREAMS_TARGET if many else DECODE_TARGET[step.type]
        made |= {"share": round(share, 3), "of": "a copy", "target": round(target, 2)}
    else:
        # The output is one of the last token alone.
        of_all = [p for p in products if not p.is_matrix_vector]
        flops = 2 * n_tokens * sum(p.n * p.covered.n_elements for p in of_all)
        share = flops / seconds(of_all) / (gpu.f16_flops * CUBLAS_SHARE)
        target = PROMPT_TARGET.get(step.type, 0.4)
        made |= {"share": round(share, 3), "of": "cuBLAS", "target": target}
    return made | {"is_met": bool(made["share"] >= made["target"])}


def attention_summary(gpu: Gpu, step: Step, found: Sequence[Predicted]) -> dict[str, Any]:
    """Attention of a layer: without the plan, which layers share."""
    cells = step.cells
    of_layer = [p for p in found if p.is_attention and not p.launch.form.name.endswith("_plan")]
    time_s = sum(p.times.total_s for p in of_layer)
    (attend,) = [p for p in of_layer if p.covered.n_elements]
    kind = "prompt" if step.is_prompt else "decode"
    if kind == "decode":
        share = 2 * attend.covered.n_elements / time_s / gpu.copy_bytes_s
    else:
        d, _, n_heads, _ = ne(attend.launch, "q")
        seen = cells.n_queries * (cells.depth + (cells.n_queries + 1) / 2)
        share = 4 * d * n_heads * seen * cells.n_seqs / time_s / gpu.f16_flops
    return {
        "step": f"{kind}, {cells.n_seqs} x {cells.n_queries} at depth {cells.depth}",
        "us_a_layer": round(time_s * 1e6, 1),
        "bound_by": attend.times.limit,
        "parts_us": {k: round(s * 1e6, 1) for k, s in attend.times.parts.items()},
        "waves": round(waves(gpu, attend.occupancy, attend.covered.demand.n_blocks), 2),
        "share": round(share, 3),
        "of": "a copy" if kind == "decode" else "the peak in f16",
        "target": ATTENTION_TARGETS[kind],
        "is_met": share >= ATTENTION_TARGETS[kind],
    }


# --- all units ----------------------------------------------------------------------------------


def all_archs() -> list[str]:
    """Those of an A100 and of an H100, and the newest that NVRTC knows."""
    known = nvrtc()
    return list(dict.fromkeys([A100.arch, H100.arch, known.arch_for(known.capabilities[-1])]))


def unit_rows(archs: Sequence[str], cubins: Cubins) -> list[dict[str, Any]]:
    """Registers, local and static shared memory of every kernel that there is."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    units = all_units()
    for arch in archs:
        for unit, cubin in cubins.load(units, arch).items():
            for kernel in reports(cubin):
                row = rows.setdefault(
                    (str(unit), kernel.name), {"unit": str(unit), "kernel": kernel.name}
                )
                row[arch] = [kernel.registers, kernel.local_bytes, kernel.shared_bytes]
    return list(rows.values())


# --- the command ---


def about(gpu: Gpu, archs: Sequence[str]) -> dict[str, Any]:
    return {
        "what": "predicted from machine code, not measured",
        "gpu": gpu.name,
        "arch": gpu.arch,
        "archs": list(archs),
        "nvrtc": nvrtc().version_text,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": report.commit(),
        "command": report.command(sys.argv),
        "constants": (
            f"{gpu.bytes_s / 1e12} TB/s of which a copy has {COPY_SHARE:.0%}, {gpu.n_sm}"
            f" multiprocessors at {gpu.clock / 1e9} GHz, {gpu.f16_flops / 1e12:.0f} TFLOP/s f16 and"
            f" {gpu.int8_ops / 1e12:.0f} TOP/s int8 of which mma.sync has {gpu.mma_share:.0%},"
            f" {gpu.launch_s * 1e6} us a launch, cuBLAS at {CUBLAS_SHARE:.0%} of the peak"
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", type=report.words, default=list(TYPES), help="of weights")
    parser.add_argument("--streams", type=report.numbers, default=[1, 8, 32])
    parser.add_argument("--depths", type=report.numbers, default=[0, 4096, 32_768])
    parser.add_argument("--layers", type=report.count, default=LLAMA_3_8B.n_layer)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name} and a .md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        nvdisasm()
        result = predictions(options)
    except BackendError as error:
        return report.fail(error)
    if options.save:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(as_lines(result), encoding="utf-8")
        RESULTS.with_suffix(".md").write_text(document(result), encoding="utf-8")
    for step, rows in result["launches"].items():
        show(step, LAUNCH_COLUMNS, rows)
    show("steps", STEP_COLUMNS, result["steps"])
    show("attention, K and V in f16", ATTENTION_COLUMNS, result["attention"])
    return 0


def rows_of(gpu: Gpu, found: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Of the launches that take more than a little of a step."""
    least_s = LEAST_SHARE * seconds(found)
    return [p.row(gpu) for p in found if p.n * p.times.total_s >= least_s]


def as_lines(result: dict[str, Any]) -> str:
    """JSON with a line for each row of a table."""

    def written(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(inner + json.dumps(row) for row in value)
            return f"[\n{rows}\n{indent}]"
        if isinstance(value, dict):
            items = (f"{inner}{json.dumps(k)}: {written(v, inner)}" for k, v in value.items())
            return "{\n" + ",\n".join(items) + f"\n{indent}" + "}"
        return json.dumps(value)

    return written(result, "") + "\n"


def predictions(options: argparse.Namespace) -> dict[str, Any]:
    gpu = H100
    code = MachineCode(gpu.arch)
    shape = replace(LLAMA_3_8B, n_layer=options.layers)
    planner = Planner(shape)
    steps, attention, tables = [], {}, {}
    for type in options.types:
        for n_seqs in options.streams:
            report.tell(f"{type}, {n_seqs} sequences")
            depths = [depth for depth in options.depths if fits(LLAMA_3_8B, n_seqs, depth)]
            prompt, decode = planner.launches(type, n_seqs, max(depths))
            wanted = [Step(type, Cells(n_seqs, depth, 1)) for depth in depths]
            if n_seqs == 1:
                wanted += [Step(type, Cells(1, depth, PROMPT)) for depth in depths]
            for step in wanted:
                launches = prompt if step.is_prompt else decode
                found = predict(gpu, code, launches, step.cells)
                steps.append(summary(gpu, step, found))
                of_attention = attention_summary(gpu, step, found)
                attention[of_attention["step"]] = of_attention
                if step.cells.depth == wanted[0].cells.depth:
                    tables[str(step)] = rows_of(gpu, found)
    archs = all_archs() if options.save else [gpu.arch]
    return {
        "about": about(gpu, archs),
        "steps": steps,
        "attention": list(attention.values()),
        "launches": tables,
        "units": unit_rows(archs, code.cubins) if options.save else [],
    }


if __name__ == "__main__":
    sys.exit(main())
