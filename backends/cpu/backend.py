"""The CPU backend: steps run by compiled kernels, on threads that wait for work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache as cached
from typing import Any, Literal

from ggmlpy.backends.base import Backend, Places, Weight
from ggmlpy.backends.base import Plan as BackendPlan
from ggmlpy.backends.cpu import kernels
from ggmlpy.backends.cpu.builder import PlanBuilder, ScratchPool
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.backends.cpu.counts import CountWriter
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.jit import Jit, shared_jit
from ggmlpy.backends.cpu.kernel import UNREADABLE, Kernel, candidates
from ggmlpy.backends.cpu.kernels import matmul_rows
from ggmlpy.backends.cpu.kernels.matmul import FORMATS
from ggmlpy.backends.cpu.linker import llvm_bytes
from ggmlpy.backends.cpu.packed_cache import PackedCache, cache_from_environment
from ggmlpy.backends.cpu.packing import Keeping, WeightLoader
from ggmlpy.backends.cpu.plan import Failure, Plan
from ggmlpy.backends.cpu.runner import MAX_THREADS
from ggmlpy.backends.cpu.threads import check_n_threads, common_entries, thread_pool
from ggmlpy.backends.rounding import Rounding
from ggmlpy.backends.step import Step
from ggmlpy.common.arguments import WrongKind, parsed
from ggmlpy.errors import FileError, IndexOutOfRange
from ggmlpy.graph.buffer import HostBuffer
from ggmlpy.graph.count import Counts
from ggmlpy.graph.tensor import Tensor

assert kernels.__name__  # importing it is what declares every kernel


# Multiply-adds below which a plan runs on one thread unless a number was given: about half a
# millisecond's work. Sharing records of a few microseconds does not pay, least of all on a busy
# machine, where a thread that holds a share may have to wait for a core.
SMALL_PLAN = 16_000_000
PRODUCTS = ("mul_mat", "mul_mat_id")
MATMUL_FORMATS = {format.type_name: format for format in FORMATS}


class CpuBackend(Backend):
    """Runs whatever the kernel table holds for this machine's instruction set.

    `n_threads` None is one thread a core, and one for plans of little work. `isa` forces a level
    ("generic", "avx2", "avxvnni", "avx512", "amx"); None is the best one here. Products in a row
    that read the same x quantise it once, unless `share_activations` is off. `packed_cache` keeps
    packed weights on disk; None is that of $GGMLPY_PACKED_CACHE, if it is set, and False is none.
    """

    name = "cpu"
    takes_counts = True

    def __init__(
        self,
        n_threads: int | None = None,
        isa: str | ISA | None = None,
        *,
        share_activations: bool = True,
        packed_cache: PackedCache | Literal[False] | None = None,
    ) -> None:
        self.n_threads = n_threads or min(default_n_threads(), MAX_THREADS)
        check_n_threads(self.n_threads)
        self._adapts = n_threads is None
        self._shares = share_activations
        self._jit = shared_jit(isa if isinstance(isa, ISA) else select(isa))
        self._pool = ScratchPool()
        cache = parsed(_as_cache, "CpuBackend", "packed_cache", packed_cache)
        self._keeping = Keeping(cache, cached(self._jit.key)) if cache else None

    @property
    def isa(self) -> ISA:
        """The instruction set that kernels are compiled for."""
        return self._jit.isa

    def settings(self) -> str:
        small = " (1 where there is little to do)" if self._adapts and self.n_threads > 1 else ""
        threads = "1 thread" if self.n_threads == 1 else f"{self.n_threads} threads{small}"
        size = f"{llvm_bytes() / 1e6:.0f} MB of it in memory" if self._jit.uses_llvm else ""
        linked = f", linked by LLVM ({size})" if size else ""
        return f"{threads}, instruction set {self.isa.name}{linked}"

    def supports(self, node: Tensor) -> bool:
        assert node.op is not None
        return self._kernel(node.op.name, node.src, node) is not None

    def supports_step(self, step: Step) -> bool:
        return self._kernel(step.op, step.operands.values(), step.node) is not None

    def rounding(self, node: Tensor) -> Rounding:
        """Packed quantised weights are multiplied by int8; rows read as f32 by x as it is."""
        if node.op is None or node.op.name not in PRODUCTS or not node.src[0].type.is_quantized:
            return Rounding.F32
        kernel = self._kernel(node.op.name, node.src, node)
        is_read = kernel is not None and kernel.module == matmul_rows.__name__
        return Rounding.F32 if is_read else Rounding.INT8X32

    def prepare(self, nodes: Sequence[Tensor]) -> None:
        found = [self._kernel(node.op.name, node.src, node) for node in nodes if node.op]
        self._jit.load(dict.fromkeys(kernel for kernel in found if kernel is not None))

    def plan(self, steps: Sequence[Step], places: Places) -> CpuPlan:
        few = self._adapts and _multiply_adds(steps) < SMALL_PLAN
        builder = PlanBuilder(
            places,
            1 if few else self.n_threads,
            self._pool,
            self.isa,
            share_activations=self._shares,
        )
        for step in steps:
            kernel = self._kernel(step.op, step.operands.values(), step.node)
            assert kernel is not None, f"{step} was given to a backend that does not support it"
            builder.add(kernel, step)
        # In one call, so that they are compiled on all cores.
        compiled = *builder.kernels, *builder.weights.entries, *common_entries(self._jit)
        code = self._jit.load(compiled)
        builder.weights.make(self.n_threads, code)
        return CpuPlan(builder, self._jit)

    def load_weights(self, weights: Sequence[Weight]) -> None:
        """Pack the weights of products on all threads, or map what a cache has of them; read those
        that are used as stored."""
        super().load_weights(weights)
        loader = WeightLoader(self._keeping)
        for weight in weights:
            leaf = weight.leaf
            if weight.ops.intersection(PRODUCTS) and leaf.type.name in MATMUL_FORMATS:
                MATMUL_FORMATS[leaf.type.name].address(leaf, loader)
        loader.weights.make(self.n_threads, self._jit.load(loader.weights.entries))

    def _kernel(self, op: str, operands: Iterable[Tensor], node: Tensor) -> Kernel | None:
        """The first kernel of the table that can run the step: what is supported is what runs."""
        types = tuple(operand.type.name for operand in operands)
        for kernel in candidates(op, types, self._jit.isa):
            if kernel.requires(node):
                return kernel
        return None


def _as_cache(value: Any) -> PackedCache | None:
    """The cache of packed weights that an argument stands for. Raises WrongKind."""
    if value is None:
        return cache_from_environment()
    if value is False:
        return None
    if not isinstance(value, PackedCache):
        raise WrongKind("a PackedCache, False for none, or None", value)
    return value


def _multiply_adds(steps: Sequence[Step]) -> int:
    """Those of the matrix products, which are nearly all there are."""
    nodes = (node for step in steps for node in step.nodes)
    products = (node for node in nodes if node.op is not None and node.op.name in PRODUCTS)
    return sum(node.spec.n_elements * node.src[0].ne[0] for node in products)


class CpuPlan(BackendPlan):
    """A plan whose records run the kernels called `kernels`, in order."""

    def __init__(self, builder: PlanBuilder, jit: Jit) -> None:
        thread_pool()  # compiled with the plan, before anything is shown, not at its first run
        self.kernels = tuple(kernel.name for kernel in builder.kernels)
        self._plan = Plan(jit, builder.kernels, builder.records)
        self._counts = CountWriter(builder.count_fields, self._plan.memory)
        self.n_threads = builder.n_threads
        self._nodes = builder.nodes
        self._failure: Failure | None = None
        self._keep = builder.keep  # packed weights and scratch memory that the records point into

    def set_counts(self, counts: Counts) -> None:
        self._counts.write(counts)

    def submit(self) -> None:
        self._failure = self._plan.run(self.n_threads)

    def check(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            node = self._nodes[failure.node]
            if failure.value == UNREADABLE:
                raise _unreadable(node.src[0])
            shapes = ", ".join(str(source.spec) for source in node.src)
            raise IndexOutOfRange(
                f"{node.name or 'node'} ({node.op}): index {failure.value} is out of range for"
                f" sources {shapes}"
            )


def _unreadable(weight: Tensor) -> FileError:
    """What is wrong with the file that a weight's rows are read from."""
    buffer = None if weight.place is None else weight.place.buffer
    assert isinstance(buffer, HostBuffer)
    assert buffer.file is not None
    try:
        buffer.file.check(0, weight.spec.n_bytes)
    except FileError as error:
        return error
    return FileError(f"{buffer.file.file.name}: {weight.name} cannot be read")
