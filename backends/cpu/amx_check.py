"""Whether AMX can be used: requested from the system, tried in a separate process, kept on disk.

A CPU that reports AMX may still not run it: on Linux a process must request permission to use
tiles, and under some hypervisors the instructions are illegal nevertheless. So a few small products
of tiles are computed first, in a process that may crash:

    python -m ggmlpy.backends.cpu.amx_products     prints "right" if all are

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
from ggmlpy.backends.cpu.processes import search_path
from ggmlpy.common import log

_ARCH_PRCTL = 158  # the system call, on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_TIMEOUT_S = 60
RIGHT = "right"  # its output; the status alone is also 0 where SIGCHLD is ignored
WRONG = 3  # exit status: tiles are available, but a product of them is wrong
# Signals that a process gets on a CPU that cannot run tiles. Other failures (out of memory, an
# interrupt, modules that cannot be imported) say nothing about AMX.
_FAULTS = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE"})
_HERE = Path(__file__).parent


@cache
def usable() -> bool:
    """Whether this process may use tiles, and they work. The first time that Linux or the check
    refuses, a line on stderr says why."""
    if sys.platform != "linux":
        return False  # how other systems grant permission is not known
    verdicts = Cache()
    reason = refused() or _failure(verdicts)
    if reason:
        _say_once(f"ggmlpy: AMX is not used, but AVX512: {reason}", verdicts)
    return not reason


def _say_once(text: str, said: Cache) -> None:
    """Says a line, unless an earlier process has said the same."""
    key = _key(text)
    if said.get(key) is None and sys.stderr is not None:
        log.show(text)
        said.put(key, b"")


def refused() -> str:
    """Requests tiles for this process and its threads; returns the reason if they are refused."""
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
    """The reason of a failure, "" for success; and whether it applies to later processes too."""
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
    """The cache key of a fact that depends on this machine and this source."""
    return hashlib.sha256("\0".join(["amx", what, *_identity()]).encode()).hexdigest()[:40]


def _identity() -> list[str]:
    """Everything that the verdict may depend on."""
    sources = [_HERE / name for name in ("amx_check.py", "amx_products.py", "codegen.py", "isa.py")]
    sources += sorted((_HERE / "simd").glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return [host_cpu.name(), platform.release(), platform.version(), llvmlite.__version__, digest]
