"""NVRTC, the compiler of CUDA kernels, through ctypes: a unit and an architecture -> machine code.

It is a library of its own, which needs neither a GPU nor a driver nor CUDA's headers. It comes as
a wheel (nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), or with a CUDA toolkit.

Architectures are NVRTC's words: "sm_80" and "sm_90a" are machine code; "compute_80" is PTX, which
the driver of a newer GPU compiles when it loads it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggmlpy.backends.cuda import source
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.errors import BackendError, KernelError

# Products and sums are fused only where a kernel says so (fmaf): so fused steps keep the bits of
# their nodes.
OPTIONS = ("-std=c++17", "-fmad=false")
MAJORS = (13, 12)  # versions of CUDA whose NVRTC is looked for, the preferred one first
_SHOWN_LINES = 12  # of a compiler's log, in an error message
_WITH_OWN_INSTRUCTIONS = (9, 0)  # from here on, sm_90a has instructions that sm_90 lacks


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code (or PTX) of a unit, and what the compiler had to say: warnings."""

    code: bytes
    log: str


class Nvrtc:
    """A loaded library. Safe to use from several threads, which compile at the same time."""

    def __init__(self, path: str) -> None:
        """Raises OSError if there is no such library, AttributeError if it is not NVRTC."""
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.path = path
        self.version = self._version()
        self.capabilities = self._capabilities()

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that it compiles for, oldest first: "sm_75", …, "sm_121"."""
        return tuple(_arch("sm", capability) for capability in self.capabilities)

    def compile(self, unit: Unit, arch: str) -> Compiled:
        """Raises KernelError with the first lines of the log if the unit does not compile."""
        return self.compile_text(
            str(unit),
            source.text(unit.file),
            [*unit.options, f"-arch={arch}", *OPTIONS],
            source.headers(unit.file),
        )

    def compile_text(
        self, name: str, text: str, options: Sequence[str], headers: dict[str, str]
    ) -> Compiled:
        """Compile a source; `headers` are the files that it may include, by name."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            text.encode(),
            name.encode(),
            len(headers),
            _strings(list(headers.values())),
            _strings(list(headers)),
        )
        try:
            rc = self._library.nvrtcCompileProgram(program, len(options), _strings(options))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if rc:
                raise KernelError(_failure(name, options, log or self._error(rc)))
            is_ptx = any(option.startswith("-arch=compute_") for option in options)
            return Compiled(self._read(program, "PTX" if is_ptx else "CUBIN"), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def arch_for(self, capability: tuple[int, int]) -> str:
        """What to compile for on a GPU: its own instructions, else those of the nearest older one
        of its generation, else PTX. Raises BackendError for a GPU that NVRTC no longer knows.
        """
        older = [known for known in self.capabilities if known <= capability]
        if not older:
            raise BackendError(
                f"NVRTC {self.version_text} compiles for {self.archs[0]} and later, and the GPU is"
                f" {_arch('sm', capability)}: an older CUDA supports it (ggmlpy[cuda])"
            )
        if older[-1] == capability and capability >= _WITH_OWN_INSTRUCTIONS:
            return _arch("sm", capability) + "a"
        same = older[-1][0] == capability[0]
        return _arch("sm" if same else "compute", older[-1])

    @property
    def version_text(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    def _version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def _capabilities(self) -> tuple[tuple[int, int], ...]:
        n = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(n))
        archs = (ctypes.c_int * n.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return tuple(divmod(arch, 10) for arch in sorted(archs))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        """One of the results of a program: its log, its PTX, its machine code."""
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, content)
        return content.raw

    def _call(self, name: str, *args: object) -> None:
        rc = getattr(self._library, name)(*args)
        if rc:
            raise BackendError(f"NVRTC ({self.path}): {name}: {self._error(rc)}")

    def _error(self, rc: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(rc)
        return text.decode()


@cache
def nvrtc(max_major: int = MAJORS[0]) -> Nvrtc:
    """The newest NVRTC here, of CUDA `max_major` or older: a driver does not load machine code of a
    newer major version. Raises BackendError if there is none."""
    problem = ""
    for path in _paths([major for major in MAJORS if major <= max_major]):
        try:
            return Nvrtc(path)
        except (OSError, AttributeError) as error:
            problem = problem or f" ({error})"
    extra = "cuda13" if max_major >= MAJORS[0] else "cuda"
    raise BackendError(
        f"NVRTC, which compiles CUDA kernels, is not installed for CUDA {max_major} or older:"
        f" pip install 'ggmlpy[{extra}]'{problem}"
    )


def compile_unit(unit: Unit, arch: str) -> bytes:
    """Machine code of a unit. Raises KernelError with NVRTC's log if it does not compile."""
    return nvrtc().compile(unit, arch).code


def supported_archs() -> tuple[str, ...]:
    """The architectures that the installed NVRTC compiles for, oldest first."""
    return nvrtc().archs


def _paths(majors: Sequence[int]) -> Iterator[str]:
    """Where the library may be: wheels, then whatever the system's loader finds."""
    for major in majors:
        for folder in _wheels(major):
            yield from sorted(str(path) for path in folder.glob(_file_name(major)))
    for major in majors:
        yield _file_name(major).replace("*", "0")
    system = ctypes.util.find_library("nvrtc")
    if system is not None and any(f"so.{major}" in system for major in majors):
        yield system


def _wheels(major: int) -> Iterator[Path]:
    """Folders of the wheels of a version of CUDA."""
    spec = importlib.util.find_spec("nvidia")  # a folder that many wheels share
    own = ("cuda_nvrtc",) if major < 13 else (f"cu{major}",)
    libraries = ("bin", "bin/x86_64") if sys.platform == "win32" else ("lib",)
    for root in (spec and spec.submodule_search_locations) or ():
        for name in own:
            yield from (Path(root) / name / folder for folder in libraries)


def _file_name(major: int) -> str:
    return f"nvrtc64_{major}*_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"


def _arch(kind: str, capability: tuple[int, int]) -> str:
    return f"{kind}_{capability[0]}{capability[1]}"


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


def _failure(name: str, options: Sequence[str], log: str) -> str:
    """The message for a source that does not compile: its errors, without the warnings before."""
    lines = log.splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    shown = lines[first : first + _SHOWN_LINES]
    arch = next((option for option in options if option.startswith("-arch=")), "")
    return "\n  ".join([f"{name} does not compile ({arch}):", *shown])
