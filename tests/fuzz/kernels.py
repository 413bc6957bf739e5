"""All kernels that this machine would choose, compiled and loaded before cases are forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.backends.cpu.kernel import Kernel, all_entries, candidates
from ggmlpy.backends.cpu.threads import common_entries, thread_pool


def load_kernels() -> None:
    """Load the best kernel for each op and its types; compile what the cache lacks."""
    jit = shared_jit(CpuBackend(1).isa)
    kernels = [entry for entry in all_entries() if isinstance(entry, Kernel)]
    chosen = [candidates(kernel.op, kernel.types, jit.isa)[:1] for kernel in kernels]
    jit.load([*dict.fromkeys(kernel for best in chosen for kernel in best), *common_entries(jit)])
    thread_pool()  # has no threads before a plan on several runs


def compile_kernels() -> None:
    """Put into the cache what it lacks, once for all processes; in one of its own, because threads
    that compile must not be forked. Raises KeyboardInterrupt."""
    program = f"from {__name__} import load_kernels; load_kernels()"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        if process.wait() != 0:
            raise RuntimeError("the kernels cannot be compiled")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
