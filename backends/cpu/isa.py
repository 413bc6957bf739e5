"""Instruction sets that CPU kernels are compiled for, and which of them this machine can run.

    level     needs of the host             gives
    amx       avx512, AMX-INT8 and -BF16    products of tiles, 16 x 16 sums at a time
    avx512    F BW VL DQ CD VNNI, FMA F16C  512-bit registers, 4-way int8 products
    avxvnni   AVX2 FMA F16C AVX-VNNI        256-bit registers, 4-way int8 products
    avx2      AVX2 FMA F16C                 256-bit registers
    generic   nothing                       whatever the architecture guarantees (SSE2, NEON, ...)

A level fixes the LLVM processor and features outright instead of taking the host's, so one source
gives the same machine code on every machine of that level. `GGMLPY_CPU_ISA` forces a level. For
AMX it is not sufficient that the CPU reports it: amx_check.py tries it.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from ggmlpy.backends.cpu import host_cpu
from ggmlpy.errors import BackendError

_FORCED = os.environ.get("GGMLPY_CPU_ISA", "").lower() or None
_X86 = frozenset({"x86_64", "amd64"})
_ARM64 = frozenset({"arm64", "aarch64"})


@dataclass(frozen=True, slots=True)
class ISA:
    """One level: how code for it is generated, and what its code may rely on."""

    name: str
    cpu: str  # LLVM's processor name
    features: str  # LLVM's feature string, on top of what `cpu` implies
    needs: frozenset[str]  # host features, by LLVM's names, without which it cannot run
    has: frozenset[str]  # what intrinsics may test for: "x86", "fma", "f16", "avx2", "vnni", ...

    def to_json(self) -> dict[str, Any]:
        """All fields, for the processes that compile."""
        sets = {"needs": sorted(self.needs), "has": sorted(self.has)}
        return {"name": self.name, "cpu": self.cpu, "features": self.features, **sets}

    @staticmethod
    def from_json(found: dict[str, Any]) -> ISA:
        sets = {"needs": frozenset(found["needs"]), "has": frozenset(found["has"])}
        return ISA(found["name"], found["cpu"], found["features"], **sets)

    def includes(self, level: str) -> bool:
        """Whether code that needs `level` runs here. Raises BackendError for an unknown level."""
        names = [isa.name for isa in known()]
        if level not in names:
            raise BackendError(f"unknown instruction set {level!r}; known: {', '.join(names)}")
        return names.index(self.name) <= names.index(level)


_AVX2_HOST = frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"})
_AVX512_HOST = _AVX2_HOST | {f"avx512{part}" for part in ("f", "bw", "vl", "dq", "cd", "vnni")}
_AMX_HOST = _AVX512_HOST | {"amx-tile", "amx-int8", "amx-bf16"}
_AVX2_HAS = frozenset({"x86", "fma", "f16", "avx2"})
_AVX512_HAS = _AVX2_HAS | {"avx512", "vnni"}
_AMX = "+avx512vnni,+amx-tile,+amx-int8,+amx-bf16"

_X86_LEVELS = (  # best first; each level includes those below it
    ISA("amx", "x86-64-v4", _AMX, _AMX_HOST, _AVX512_HAS | {"amx"}),
    ISA("avx512", "x86-64-v4", "+avx512vnni", _AVX512_HOST, _AVX512_HAS),
    ISA("avxvnni", "x86-64-v3", "+avxvnni", _AVX2_HOST | {"avxvnni"}, _AVX2_HAS | {"vnni"}),
    ISA("avx2", "x86-64-v3", "", _AVX2_HOST, _AVX2_HAS),
    ISA("generic", "x86-64", "", frozenset(), frozenset({"x86"})),
)
_ARM64_LEVELS = (
    ISA("generic", "generic", "+neon", frozenset(), frozenset({"arm64", "fma", "f16"})),
)
_OTHER_LEVELS = (ISA("generic", "generic", "", frozenset(), frozenset()),)


def known() -> tuple[ISA, ...]:
    """The levels of this architecture, best first."""
    machine = platform.machine().lower()
    if machine in _X86:
        return _X86_LEVELS
    return _ARM64_LEVELS if machine in _ARM64 else _OTHER_LEVELS


@cache
def available() -> tuple[ISA, ...]:
    """The levels that this host can run, best first; "generic" is always the last."""
    return tuple(isa for isa in known() if _runs(isa))


def _runs(isa: ISA) -> bool:
    """Whether this host can run the level. For AMX this also requests permission for this process,
    with all its threads and the processes that it forks."""
    if not isa.needs:
        return True
    if not isa.needs <= host_cpu.features():
        return False
    if "amx" not in isa.has:
        return True
    from ggmlpy.backends.cpu import amx_check  # which imports llvmlite

    return amx_check.usable()


def select(name: str | None = None) -> ISA:
    """The level called `name`, or what GGMLPY_CPU_ISA names, or the best one of this host.

    Raises BackendError for a level that the host lacks.
    """
    forced = f"GGMLPY_CPU_ISA: {_FORCED!r}" if name is None else f"instruction set {name!r}"
    name = name or _FORCED
    if name is None:
        return available()[0]
    for isa in known():
        if isa.name == name and _runs(isa):
            return isa
    have = ", ".join(isa.name for isa in available())
    raise BackendError(f"{forced} cannot be used: {host_cpu.name()} has {have}")
