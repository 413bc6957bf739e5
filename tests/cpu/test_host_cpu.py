"""What the CPU reports, read as LLVM reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from ggmlpy.backends.cpu import host_cpu, isa, machine_memory
from ggmlpy.backends.cpu.host_cpu import decode

here = pytest.mark.skipif(not machine_memory.HERE, reason="the CPU is asked on Linux for x86-64")

Leaves = dict[tuple[int, int], tuple[int, ...]]  # by leaf and part: eax, ebx, ecx, edx

_NAMES = "eax", "ebx", "ecx", "edx"
# A CPU with all that there is, by leaf and part.
_ALL: Leaves = dict.fromkeys([(1, 0), (7, 0), (7, 1), (0x80000001, 0)], (0xFFFFFFFF,) * 4)
_ALL |= {(0, 0): (32, 0, 0, 0), (0x80000000, 0): (0x80000008, 0, 0, 0)}
_ALL_SAVED = 0x600E7
_AVX512 = {f"avx512{part}" for part in ("f", "bw", "vl", "dq", "cd", "vnni")}
_AMX = {"amx-tile", "amx-int8", "amx-bf16"}
_AVX = {"avx2", "fma", "f16c", "avxvnni"}
_BASIC = {"bmi", "bmi2", "lzcnt", "movbe"}
_EVERYTHING = _BASIC | _AVX | _AVX512 | _AMX


def without(leaf: int, part: int, register: str, bit: int) -> Leaves:
    """A CPU that lacks what one bit stands for."""
    registers = list(_ALL[leaf, part])
    registers[_NAMES.index(register)] &= ~(1 << bit)
    return _ALL | {(leaf, part): tuple(registers)}


def features(leaves: Leaves, saved: int = _ALL_SAVED) -> frozenset[str]:
    def cpuid(leaf: int, part: int) -> tuple[int, int, int, int]:
        a, b, c, d = leaves.get((leaf, part), (0, 0, 0, 0))
        return a, b, c, d

    return decode(cpuid, lambda: saved)


def cpuinfo(what: str) -> list[str]:
    """What Linux says of every core."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(what)]


@here
def test_it_is_what_llvm_finds() -> None:
    found = {name for name, present in llvm.get_host_cpu_features().items() if present}
    assert host_cpu.features() == found & host_cpu._FEATURES.keys()


@here
def test_it_is_what_linux_finds() -> None:
    """By its names, as far as it has them: what it lists is there."""
    names = {"bmi": "bmi1", "lzcnt": "abm", "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni"}
    names |= {name: name.replace("-", "_") for name in _AMX}
    (flags, *_) = cpuinfo("flags")
    for feature in host_cpu._FEATURES:
        if names.get(feature, feature) in flags.split():
            assert feature in host_cpu.features()


def test_all_levels_are_covered() -> None:
    """A feature that a level needs and nobody looks for would never be found."""
    for level in (*isa._X86_LEVELS, *isa._ARM64_LEVELS):
        assert level.needs <= host_cpu._FEATURES.keys()


def test_a_cpu_with_everything_has_everything() -> None:
    assert features(_ALL) == _EVERYTHING == host_cpu._FEATURES.keys()


@pytest.mark.parametrize("feature", sorted(_EVERYTHING))
def test_one_bit_is_one_feature(feature: str) -> None:
    leaf, part, register, bit, _ = host_cpu._FEATURES[feature]
    assert features(without(leaf, part, _NAMES[register], bit)) == _EVERYTHING - {feature}


@pytest.mark.parametrize(
    ("saved", "left"),
    [
        (0x600E7, _EVERYTHING),
        (0x000E7, _EVERYTHING - _AMX),
        (0x20000, _BASIC),
        (0x00007, _BASIC | _AVX),
        (0x00067, _BASIC | _AVX),
        (0x00003, _BASIC),
    ],
)
def test_registers_that_the_system_does_not_save_are_not_there(saved: int, left: set[str]) -> None:
    assert features(_ALL, saved) == left


def test_without_the_instruction_nothing_is_saved() -> None:
    assert features(without(1, 0, "ecx", 27)) == _BASIC


def test_without_avx_there_is_nothing_made_of_it() -> None:
    assert features(without(1, 0, "ecx", 28)) == _BASIC | _AMX


@pytest.mark.parametrize(
    ("leaf", "last", "gone"),
    [
        (0, 6, _EVERYTHING - {"fma", "movbe", "f16c", "lzcnt"}),
        (0x80000000, 0x80000000, {"lzcnt"}),
        (7, 0, {"avxvnni"}),
    ],
)
def test_leaves_that_a_cpu_does_not_have_are_not_read(leaf: int, last: int, gone: set[str]) -> None:
    """Intel's answer about others with what the last one says."""
    first = (last, *_ALL[leaf, 0][1:])
    assert features(_ALL | {(leaf, 0): first}) == _EVERYTHING - gone


@here
def test_the_name_is_that_of_linux() -> None:
    assert host_cpu.name() in cpuinfo("model name")


@here
def test_llvm_is_asked_where_no_code_can_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(n_bytes: int) -> None:
        raise PermissionError(13, "Permission denied")

    for cached in (host_cpu._asking, host_cpu.features, host_cpu.name):
        monkeypatch.setattr(host_cpu, cached.__name__, cached.__wrapped__)
    features = host_cpu.features()
    monkeypatch.setattr(machine_memory, "Pages", refused)
    assert host_cpu.features() >= features
    assert host_cpu.name() == llvm.get_host_cpu_name()


@here
def test_asking_does_not_load_llvm() -> None:
    code = (
        "import sys; from ggmlpy.backends.cpu import isa; isa.select();"
        "sys.exit('llvmlite.binding' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
