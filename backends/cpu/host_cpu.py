"""The features of this machine's CPU, by LLVM's names.

On Linux for x86-64 a few bytes of machine code around `cpuid` and `xgetbv` query the CPU, with the
same result as LLVM's `get_host_cpu_features`: so a process that runs kernels does not load LLVM's
library, which takes over 40 MB. Linux's own list, /proc/cpuinfo, lacks features that are newer than
the kernel. On other systems LLVM is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from ggmlpy.backends.cpu import machine_memory

_Cpuid = Callable[[int, int], tuple[int, int, int, int]]  # leaf, part -> eax, ebx, ecx, edx

# void f(u32 leaf, u32 part, u32 result[4]) in the calling convention of Linux
_CPUID = bytes.fromhex(
    "53"  # push rbx
    "4989d0"  # mov r8, rdx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)
# u32 f(): which registers the system saves, of the first 32
_XGETBV = bytes.fromhex("31c90f01d0c3")  # xor ecx, ecx; xgetbv; ret

_EAX, _EBX, _ECX, _EDX = range(4)
_OSXSAVE, _AVX = 27, 28  # bits of leaf 1's ecx: xgetbv may be used; there are 256-bit registers
_AVX_STATE, _AVX512_STATE, _AMX_STATE = 0x6, 0xE6, 0x60000  # the registers that code needs saved
# feature: leaf, part, register, bit, registers that the system must save
_FEATURES = {
    "fma": (1, 0, _ECX, 12, _AVX_STATE),
    "movbe": (1, 0, _ECX, 22, 0),
    "f16c": (1, 0, _ECX, 29, _AVX_STATE),
    "bmi": (7, 0, _EBX, 3, 0),
    "avx2": (7, 0, _EBX, 5, _AVX_STATE),
    "bmi2": (7, 0, _EBX, 8, 0),
    "avx512f": (7, 0, _EBX, 16, _AVX512_STATE),
    "avx512dq": (7, 0, _EBX, 17, _AVX512_STATE),
    "avx512cd": (7, 0, _EBX, 28, _AVX512_STATE),
    "avx512bw": (7, 0, _EBX, 30, _AVX512_STATE),
    "avx512vl": (7, 0, _EBX, 31, _AVX512_STATE),
    "avx512vnni": (7, 0, _ECX, 11, _AVX512_STATE),
    "amx-bf16": (7, 0, _EDX, 22, _AMX_STATE),
    "amx-tile": (7, 0, _EDX, 24, _AMX_STATE),
    "amx-int8": (7, 0, _EDX, 25, _AMX_STATE),
    "avxvnni": (7, 1, _EAX, 4, _AVX_STATE),
    "lzcnt": (0x80000001, 0, _ECX, 5, 0),
}
_NAME_LEAVES = (0x80000002, 0x80000003, 0x80000004)


@cache
def features() -> frozenset[str]:
    """Features of this machine that levels of `isa.py` need; all of them where LLVM is used."""
    asking = _asking()
    if asking is None:
        return _features_by_llvm()
    cpuid, saved = asking
    return decode(cpuid, saved)


@cache
def name() -> str:
    """The CPU's model name, for messages and for facts that are cached for one machine."""
    asking = _asking()
    if asking is not None:
        cpuid, _ = asking
        if cpuid(0x80000000, 0)[_EAX] >= _NAME_LEAVES[-1]:
            words = [word for leaf in _NAME_LEAVES for word in cpuid(leaf, 0)]
            text = b"".join(word.to_bytes(4, "little") for word in words)
            return text.split(b"\0")[0].decode(errors="replace").strip()
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def decode(cpuid: _Cpuid, saved: Callable[[], int]) -> frozenset[str]:
    """The features that `cpuid` reports and whose registers the system saves."""
    last = {0: cpuid(0, 0)[_EAX], 0x80000000: cpuid(0x80000000, 0)[_EAX]}
    basic = cpuid(1, 0)[_ECX]
    state = saved() if basic >> _OSXSAVE & 1 else 0
    if not basic >> _AVX & 1:
        state &= ~_AVX_STATE
    found = set()
    for feature, (leaf, part, register, bit, needed) in _FEATURES.items():
        there = leaf <= last[leaf & 0x80000000] and part <= _last_part(cpuid, leaf)
        if there and cpuid(leaf, part)[register] >> bit & 1 and state & needed == needed:
            found.add(feature)
    return frozenset(found)


def _last_part(cpuid: _Cpuid, leaf: int) -> int:
    """The last part that a leaf has: only leaf 7 has several, and says how many."""
    return cpuid(7, 0)[_EAX] if leaf == 7 else 0


@cache
def _asking() -> tuple[_Cpuid, Callable[[], int]] | None:
    """`cpuid` and `xgetbv` of this machine as functions; None where the system is another one, or
    gives no memory that code may run from."""
    if not machine_memory.HERE:
        return None
    try:
        pages = machine_memory.Pages(machine_memory.PAGE)
        pages.write(_CPUID + _XGETBV)
        pages.close(machine_memory.PAGE, 0)
    except OSError:
        return None
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(pages.address)
    saved = ctypes.CFUNCTYPE(ctypes.c_uint32)(pages.address + len(_CPUID))

    def cpuid(leaf: int, part: int) -> tuple[int, int, int, int]:
        result = (ctypes.c_uint32 * 4)()
        ask(leaf, part, ctypes.addressof(result))
        return result[0], result[1], result[2], result[3]

    return cpuid, saved


def _features_by_llvm() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
