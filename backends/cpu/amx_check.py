"""Whether AMX can be used: asked of the system, tried in a process of its own, remembered on disk.

A CPU that reports AMX may still not run it: Linux wants to be asked before a process may use tiles,
and under some hypervisors the instructions are illegal nevertheless. So a few small products of
tiles are computed first where nothing is lost if that process dies:

    python -m ggmlpy.backends.cpu.amx_products     says "right" if every product is

The verdict is kept beside the compiled kernels, for this CPU, kernel, compiler and source.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import llvmlite

from ggmlpy.backends.cpu import host_cpu
from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.compiling import search_path

_ARCH_PRCTL = 158  # the system call, on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_TIMEOUT_S = 60
RIGHT = "right"  # what it says; a status of 0 is also what one gets where SIGCHLD is ignored
WRONG = 3  # exit status: tiles can be had, but a product of them is wrong
# What a CPU that cannot run them does to a process. Other ends (out of memory, an interrupt,
# modules that cannot be imported) say nothing of AMX.
_FAULTS = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE"})
_HERE = Path(__file__).parent


@cache
def usable() -> bool:
    """Whether this process may use tiles, and they work. The first time that Linux or the check
    says no, so does one line on stderr."""
    if sys.platform != "linux":
        return False  # how to ask other systems for it is not known
    verdicts = Cache()
    reason = refused() or _failure(verdicts)
    if reason:
        _say_once(f"ggmlpy: AMX is not used, but AVX512: {reason}", verdicts)
    return not reason


def _say_once(text: str, said: Cache) -> None:
    """On stderr, unless an earlier process said so."""
    key = _key(text)
    if said.get(key) is None and sys.stderr is not None:
        print(text, file=sys.stderr)
        said.put(key, b"")


def refused() -> str:
    """Asks that this process and its threads may use tiles; why not, if not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return ""
    return f"the system does not allow it ({os.strerror(ctypes.get_errno())})"


def _failure(verdicts: Cache) -> str:
    """Why the check in another process failed, now or earlier; "" if it did not."""
    key = _key("check")
    verdict = verdicts.get(key)
    if verdict is not None:
        return verdict.decode()
    try:
        reason, is_verdict = _run_check()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check of it did not come to an end: {error}"  # it may the next time
    if is_verdict:
        verdicts.put(key, reason.encode())
    return reason


def _run_check() -> tuple[str, bool]:
    """Why it failed, "" if it did not; and whether that holds for other processes too."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ggmlpy.backends.cpu.amx_products"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search_path())},
    )
    if done.returncode == 0 and done.stdout.strip() == RIGHT:
        return "", True
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return f"a process that tried it died of {name}", name in _FAULTS
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}, and no word"]
    return f"the check of it failed: {said[-1]}", done.returncode == WRONG


def _key(what: str) -> str:
    """For the cache, of something that holds on this machine and with this source."""
    return hashlib.sha256("\0".join(["amx", what, *_identity()]).encode()).hexdigest()[:40]


def _identity() -> list[str]:
    """All that the verdict may depend on."""
    sources = [_HERE / name for name in ("amx_check.py", "amx_products.py", "codegen.py", "isa.py")]
    sources += sorted((_HERE / "simd").glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return [host_cpu.name(), platform.release(), platform.version(), llvmlite.__version__, digest]
