"""Numbers of instructions, and what they take of a multiprocessor.

Throughputs are those of the table "Throughput of Native Arithmetic Instructions" of the CUDA C++
Programming Guide for 8.0 and 9.0, in warps per clock of a multiprocessor; shared memory and L1
deliver 128 bytes a clock, through which shuffles and loads of constants go too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ISSUED = "issue"  # by the four schedulers of a multiprocessor
TENSOR = "tensor"

# Warps per clock of a multiprocessor. Tensor cores are counted by their operations instead.
PIPES: Mapping[str, float] = {ISSUED: 4, "fma": 4, "imad": 2, "alu": 2, "xu": 0.5, "shared": 1}

_FMA = {"FFMA", "FADD", "FMUL", "HFMA2", "HMUL2", "HADD2"}
_IMAD = {"IMAD", "IDP", "IMMAD"}
_XU = {"MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "F2FP64"}
_SHARED = {"LDS", "STS", "LDSM", "STSM"}
_GLOBAL = {"LDG", "STG", "LD", "ST", "LDL", "STL", "LDGSTS"}
_OTHER_MEMORY = {"SHFL", "ATOM", "ATOMG", "ATOMS", "RED", "REDUX", "LDC"}
_TENSOR_CORES = {"HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"}
_ELSEWHERE = {  # of a pipe of their own, or of none that fills up
    "BRA", "BAR", "BSSY", "BSYNC", "BREAK", "BRX", "CALL", "RET", "EXIT", "NOP", "WARPSYNC",
    "YIELD", "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "S2R", "S2UR", "CS2R", "ENDCOLLECTIVE",
    "WARPGROUP", "NANOSLEEP", "SYNCS", "UTMALDG", "UBLKCP", "ULDC", "FENCE", "CCTL",
    "PREEXIT", "ACQBULK",
}  # fmt: skip


def access_bytes(opcode: str) -> int:
    """Of a thread. Matrices of LDSM have 4 bytes in each thread."""
    parts = opcode.split(".")
    if parts[0] in {"LDSM", "STSM"}:
        return 4 * int(parts[-1]) if parts[-1].isdigit() else 4
    for part in parts[1:]:
        if part in {"64", "128"}:
            return int(part) // 8
        if part in {"U8", "S8"}:
            return 1
        if part in {"U16", "S16"}:
            return 2
    return 4


def macs_of(opcode: str) -> int:
    """Multiplications and additions of a warp."""
    name, *modifiers = opcode.split(".")
    if name in _TENSOR_CORES:
        shape = next(m for m in modifiers if m[0].isdigit())
        if "x" in shape:  # HGMMA.64x128x16: of four warps
            m, n, k = map(int, shape.split("x"))
            return m * n * k // 4
        return {"1688": 1024, "16816": 2048, "16832": 4096, "16864": 8192, "8816": 1024}[shape]
    if name == "IDP":
        return 4 * 32 if "4A" in modifiers else 2 * 32
    return {"FFMA": 32, "HFMA2": 64, "DFMA": 32}.get(name, 0)


class Mix(Counter[str]):
    """How often instructions are executed, by opcode."""

    @property
    def n(self) -> int:
        return sum(self.values())

    def of(self, *names: str) -> int:
        return sum(n for opcode, n in self.items() if opcode.partition(".")[0] in names)

    def macs(self, name: str) -> int:
        """Of a warp, by instructions of this name."""
        found = (item for item in self.items() if item[0].partition(".")[0] == name)
        return sum(n * macs_of(opcode) for opcode, n in found)

    def tensor_macs(self, kind: str) -> int:
        """Of a warp on tensor cores: kind H (floats), I (integers)."""
        return self.macs(f"{kind}MMA") + self.macs(f"{kind}GMMA")

    @property
    def global_bytes(self) -> int:
        """That a thread loads from global memory."""
        return self._bytes({"LDG", "LDGSTS"})

    @property
    def stored_bytes(self) -> int:
        return self._bytes({"STG"})

    def _bytes(self, names: set[str]) -> int:
        found = (item for item in self.items() if item[0].partition(".")[0] in names)
        return sum(n * access_bytes(opcode) for opcode, n in found)

    def clocks(self) -> dict[str, float]:
        """What a multiprocessor takes for one warp's, by pipe."""
        taken = dict.fromkeys(PIPES, 0.0)
        for opcode, n in self.items():
            taken[ISSUED] += n / PIPES[ISSUED]
            pipe = pipe_of(opcode)
            if pipe in taken:
                taken[pipe] += n * _passes(opcode) / PIPES[pipe]
        return taken


def pipe_of(opcode: str) -> str:
    """The pipe that an instruction goes through; uniform ones go through none that fills up."""
    name = opcode.partition(".")[0]
    if name in _TENSOR_CORES:
        return TENSOR
    if name in _FMA:
        return "fma"
    if name in _IMAD:  # IMAD.MOV copies, which the compiler puts there to spare the other pipe
        return "fma" if opcode.startswith("IMAD.MOV") else "imad"
    if name in _XU:
        return "xu"
    if name in _SHARED | _GLOBAL | _OTHER_MEMORY:
        return "shared"
    if name in _ELSEWHERE or name.startswith("U") or name == "R2UR":
        return "none"
    return "alu"


def _passes(opcode: str) -> float:
    """Of 128 bytes through shared memory or L1."""
    name = opcode.partition(".")[0]
    return max(1, access_bytes(opcode) / 4) if name in _SHARED | _GLOBAL else 1
