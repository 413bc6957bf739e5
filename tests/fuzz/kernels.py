"""All kernels that this machine would choose, compiled and loaded before cases are forked."""

from __future__ import annotations

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.backends.cpu.kernel import Kernel, all_entries, candidates
from ggmlpy.backends.cpu.threads import thread_pool, wanted_entries


def load_kernels() -> None:
    """Load the best kernel for each op and its types; compile what the cache lacks."""
    jit = shared_jit(CpuBackend(1).isa)
    kernels = [entry for entry in all_entries() if isinstance(entry, Kernel)]
    chosen = [candidates(kernel.op, kernel.types, jit.isa)[:1] for kernel in kernels]
    jit.load([*dict.fromkeys(kernel for best in chosen for kernel in best), *wanted_entries(jit)])
    thread_pool()  # has no threads before a plan on several runs
