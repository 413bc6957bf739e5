"""What launches execute: instructions of all warps, and what they take of a GPU (`Demand`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from benchmarks.gpu_limits import Demand, Gpu
from benchmarks.sass import LONGEST, Function, Loop, Taste
from benchmarks.sass_mix import Mix
from ggmlpy.backends.cuda.builder import Prepared

TASTES: Mapping[str, Taste] = {
    # Of products: copies of aligned rows, within a slice of K; and with what ends a slice.
    "usual": Taste("LDGSTS|MMA", r"LDG\S*U16|FADD|EX2|TANH"),
    "ending": Taste("LDGSTS|MMA|FADD", r"LDG\S*U16|EX2|TANH"),
    "single": Taste("LDGSTS|MMA", r"LDG\S*U16|FADD|EX2|TANH|RCP"),  # of one matrix, as its first
    "gated": Taste("LDGSTS|MMA|EX2", r"LDG\S*U16"),  # results of gated units
    "longest": LONGEST,
}
# Without a mask and without a soft cap, whose tanh has reciprocals; with what folds a chunk into
# those before; and tiles of which rows see a part: scores of other cells are replaced.
_RARE = r"LDG?\.\S*U16|RCP|ATOMG"
ATTENTION_TASTES: Mapping[str, Taste] = {
    "usual": Taste("LDGSTS|MMA", f"{_RARE}|STG|FSEL"),
    "parts": Taste("LDGSTS|MMA|FSEL", rf"{_RARE}|STG|FSETP\.GEU"),
    "idle": Taste("LDGSTS", f"{_RARE}|STG|MMA"),
    "ending": Taste(r"LDGSTS|MMA|LDG\S*64", f"{_RARE}|FSEL"),
    "combining": Taste("LDGSTS|MMA|STG", _RARE),
    "longest": LONGEST,
}


def tastes_of(file: str) -> Mapping[str, Taste]:
    return ATTENTION_TASTES if file.startswith("attention") else TASTES


@dataclass(frozen=True, slots=True)
class Cells:
    """What sequences see: each has `n_queries` new tokens after `depth` others."""

    n_seqs: int
    depth: int
    n_queries: int


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel's machine code, by the taste of ways through it, and its neighbours in the file."""

    functions: Mapping[str, Mapping[str, Function]]  # by taste, then by kernel
    name: str

    def body(self, taste: str = "usual", name: str | None = None) -> Loop:
        return self.functions[taste][name or self.name].body


@dataclass(slots=True)
class Executed:
    """Instructions of all warps, by opcode."""

    counts: dict[str, float] = field(default_factory=dict)

    def add(self, mix: Mix, times: float) -> None:
        for opcode, n in mix.items():
            self.counts[opcode] = self.counts.get(opcode, 0.0) + n * times

    @property
    def n(self) -> float:
        return sum(self.counts.values())

    def clocks(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for opcode, n in self.counts.items():
            for pipe, clocks in Mix({opcode: 1}).clocks().items():
                total[pipe] = total.get(pipe, 0.0) + clocks * n
        return total

    def macs(self, kind: str) -> float:
        """On tensor cores; those of 16 integers take as long as those of 32."""
        total = 0.0
        for opcode, n in self.counts.items():
            one = Mix({opcode: 1}).tensor_macs(kind)
            total += n * one * (2 if kind == "I" and ".16816." in opcode else 1)
        return total


@dataclass(frozen=True, slots=True)
class Covered:
    """What is known of a launch.

    n_elements    of weights (or of K and V) that it reads; 0 where that means nothing
    iteration     instructions of the hot loop's iteration of a warp; 0 without such a loop
    instructions  of all warps
    """

    demand: Demand
    instructions: float
    n_elements: float = 0.0
    iteration: int = 0
    per_iteration: str = ""


# --- arguments ---


def ne(launch: Prepared, name: str) -> list[int]:
    """Counts of a tensor of the arguments: bounds."""
    return [int(n) for n in launch.args[name]["ne"]["bound"]]


def is_there(launch: Prepared, name: str) -> bool:
    return bool(launch.args[name]["data"])


def number(launch: Prepared, name: str) -> int:
    return int(launch.args[name])


def accessed(launch: Prepared, name: str) -> int:
    """Bytes of a tensor or of scratch memory whose name begins so; 0 without one."""
    return sum(access.n_bytes for access in launch.accesses if access.what.startswith(name))


def n_warps(launch: Prepared) -> int:
    x, y, z = launch.grid
    return x * y * z * ceil(launch.threads / 32)


def n_blocks(launch: Prepared) -> int:
    x, y, z = launch.grid
    return x * y * z


def same_loop(body: Loop, loop: Loop) -> Loop:
    """The loop at the same place in a body, with another way through it."""
    return next(other for other in body.walk() if other.address == loop.address)


def path_to_macs(body: Loop, name: str) -> list[Loop]:
    """The loops from a body to the one inside that has an mma."""
    if body.mix.tensor_macs("H") + body.mix.tensor_macs("I"):
        return [body]
    for loop in body.inner:
        if any(x.mix.tensor_macs("H") + x.mix.tensor_macs("I") for x in loop.walk()):
            return [body, *path_to_macs(loop, name)]
    raise ValueError(
        f"{name}: no loop with an mma: the table of gpu_covers.py is of another kernel"
    )


def allowed(gpu: Gpu, bytes_an_element: float) -> float:
    """Warp instructions for an element that leave the bandwidth of a copy."""
    bytes_a_clock = gpu.copy_bytes_s / gpu.n_sm / gpu.clock
    return 4 * bytes_an_element / bytes_a_clock
