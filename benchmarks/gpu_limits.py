"""What GPUs have, how many blocks fit on a multiprocessor, and how long work takes at the best.

A launch takes the longest of

    memory      its bytes once, at the share of the bandwidth that a copy reaches
    l2          what its instructions load, at the bandwidth of L2
    tensor      its tensor operations, at what mma.sync reaches
    a pipe      its instructions: four warps a clock are issued, fewer go through each pipe
    chain       waves of blocks, one after another: what a block takes by itself and waits for

and then `launch_s` more, in which the next launch of a graph does not work yet. Blocks that come to
their end and others that begin, bank conflicts, misses of the instruction cache: none of it is
counted, so that times are those of a good day.

Sources of the numbers:
    H100 SXM, A100 SXM      the data sheets and whitepapers of NVIDIA
    registers, shared memory, warps, blocks     CUDA C++ Programming Guide, "Compute Capabilities"
    clock                   the H100's boost clock under load, as nvidia-smi shows it; its data
                            sheet counts with 1.83 GHz, 4 % more
    COPY_SHARE              what copies on an H100 were measured to reach (BabelStream: 91 to 93 %)
    MMA_SYNC_SHARE          "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture"
                            (arXiv 2402.13499): mma.sync reaches 62.9 % of the peak on Hopper, only
                            wgmma reaches all of it; on Ampere mma.sync is all there is
    L2                      measured by others, 5.5 to 7 TB/s on an H100; the lower end
    DRAM_S, L2_S            478 and 261 clocks without load (the same paper, of a PCIe H100); 800
                            and 300 ns are an assumption, for what a load waits when all load
    LAUNCH_S                an assumption: 1.5 us between dependent nodes of a graph, 1 us until the
                            first blocks have loaded their arguments and the last ones are stored
    OVERLAPPED_LAUNCH_S     an assumption: of launches that begin while the one before them runs
                            (from compute capability 9.0 on) only the latter is left
    CLOCKS_A_WARP           an assumption: dependent arithmetic takes 4 clocks, and compilers find
                            two chains
    CUBLAS_SHARE            an assumption: cuBLAS in f16 on 512 columns reaches 70 % of the peak
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace

from benchmarks.sass_mix import PIPES

COPY_SHARE = 0.92
CUBLAS_SHARE = 0.70
DRAM_S = 800e-9
L2_S = 300e-9
LAUNCH_S = 2.5e-6
OVERLAPPED_LAUNCH_S = 1.0e-6
CLOCKS_A_WARP = 2.0
_REGISTER_UNIT = 256  # of a warp
_SHARED_UNIT = 128
_SHARED_OF_SYSTEM = 1024  # of each block


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU.

    bytes_s, l2_bytes_s     bandwidths
    f16_flops, int8_ops     dense peaks of the tensor cores, per second
    mma_share               of these by mma.sync
    launch_s                from the end of one launch to the work of the next
    """

    name: str
    arch: str
    n_sm: int
    clock: float
    bytes_s: float
    l2_bytes_s: float
    f16_flops: float
    int8_ops: float
    mma_share: float
    launch_s: float
    shared_bytes: int  # of a multiprocessor
    registers: int = 65_536
    warps: int = 64
    blocks: int = 32

    @property
    def copy_bytes_s(self) -> float:
        return COPY_SHARE * self.bytes_s


H100 = Gpu(
    "H100 SXM", "sm_90a", 132, 1.755e9, 3.35e12, 5.5e12, 989e12, 1979e12, 0.629,
    OVERLAPPED_LAUNCH_S, 228 << 10,
)  # fmt: skip
A100 = Gpu(
    "A100 SXM 80 GB", "sm_80", 108, 1.41e9, 2.039e12, 4.0e12, 312e12, 624e12, 1.0,
    LAUNCH_S, 164 << 10,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel a multiprocessor holds, and what it has no more of."""

    blocks: int
    warps: int
    limit: str

    @staticmethod
    def of(gpu: Gpu, threads: int, registers: int, shared_bytes: int) -> Occupancy:
        """`shared_bytes` are static and dynamic. A kernel that does not fit has 0 blocks."""
        warps = -(-threads // 32)
        of_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        of_block = -(-(shared_bytes + _SHARED_OF_SYSTEM) // _SHARED_UNIT) * _SHARED_UNIT
        # Registers are dealt out by quarters of a multiprocessor, and so are warps.
        by_registers = gpu.registers // 4 // of_warp * 4 // warps if of_warp else gpu.blocks
        limits = {
            "registers": by_registers,
            "shared memory": gpu.shared_bytes // of_block,
            "warps": gpu.warps // warps,
            "blocks": gpu.blocks,
        }
        limit = min(limits, key=lambda what: limits[what])
        return Occupancy(limits[limit], limits[limit] * warps, limit)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a launch takes, of all blocks together.

    n_bytes       that it reads and writes of memory, each once
    loaded_bytes  that its instructions load, from L2 mostly
    clocks        of a multiprocessor, by pipe
    f16_flops, int8_ops     of tensor cores, with what is computed in vain
    warp_instructions       of a warp, one of the busiest
    wait_s        that a warp waits for loads, one after another
    n_blocks      that do work
    blocks_s      of these the seconds of each by itself, where they differ: then instead of the two
                  above
    """

    n_bytes: float
    loaded_bytes: float
    clocks: Mapping[str, float]
    f16_flops: float = 0.0
    int8_ops: float = 0.0
    warp_instructions: float = 0.0
    wait_s: float = 0.0
    n_blocks: int = 1
    blocks_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a launch by what takes them; they run beside each other. And those behind it."""

    parts: Mapping[str, float]
    launch_s: float

    @property
    def limit(self) -> str:
        return max(self.parts, key=lambda what: self.parts[what])

    @property
    def work_s(self) -> float:
        return max(self.parts.values())

    @property
    def total_s(self) -> float:
        return self.work_s + self.launch_s


def waves(gpu: Gpu, occupancy: Occupancy, n_blocks: int) -> float:
    """How often the GPU is filled."""
    return n_blocks / (gpu.n_sm * max(1, occupancy.blocks))


def times(gpu: Gpu, occupancy: Occupancy, demand: Demand) -> Times:
    """Fewer blocks than multiprocessors leave some idle."""
    n_busy = min(gpu.n_sm, demand.n_blocks)
    share = n_busy / gpu.n_sm
    parts = {
        "memory": demand.n_bytes / gpu.copy_bytes_s,
        "l2": demand.loaded_bytes / gpu.l2_bytes_s,
        "tensor": demand.f16_flops / (gpu.f16_flops * gpu.mma_share * share)
        + demand.int8_ops / (gpu.int8_ops * gpu.mma_share * share),
    }
    for pipe in PIPES:
        parts[pipe] = demand.clocks.get(pipe, 0.0) / (n_busy * gpu.clock)
    n_at_once = gpu.n_sm * max(1, occupancy.blocks)
    one = 1 / max(1, demand.n_blocks)
    by_itself = by_itself_s(gpu, demand.clocks, demand.f16_flops, demand.int8_ops) * one
    of_block = max(warp_s(gpu, demand.warp_instructions), by_itself) + demand.wait_s
    n_waves = max(1, -(-demand.n_blocks // n_at_once))
    in_turn = in_turn_s(demand.blocks_s, n_at_once) if demand.blocks_s else n_waves * of_block
    parts["chain"] = in_turn
    return Times(parts, gpu.launch_s)


def warp_s(gpu: Gpu, instructions: float) -> float:
    """What a warp takes for instructions if nothing else holds it up."""
    return instructions * CLOCKS_A_WARP / gpu.clock


def by_itself_s(gpu: Gpu, clocks: Mapping[str, float], f16_flops: float, int8_ops: float) -> float:
    """What one multiprocessor takes, by the busiest of its pipes and tensor cores."""
    flops = f16_flops / gpu.f16_flops + int8_ops / gpu.int8_ops
    of_pipes = max(clocks.values(), default=0.0) / gpu.clock
    return max(flops * gpu.n_sm / gpu.mma_share, of_pipes)


def in_turn_s(blocks_s: Sequence[float], n_at_once: int) -> float:
    """Until all blocks are done, of which so many run at once: each begins when one ends."""
    ends = [0.0] * min(n_at_once, len(blocks_s))
    for block_s in blocks_s:
        heapreplace(ends, ends[0] + block_s)
    return max(ends)
