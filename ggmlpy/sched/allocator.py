"""Where results lie: one arena per buffer type, memory reused as soon as its value is dead.

All lifetimes are known before anything is placed, so the largest values go first, each to the
lowest place that is free for as long as it lives. That leaves fewer gaps than placing values in
running order, as ggml's allocator does.

A result is written over an operand where the step allows it and nothing reads the operand later. A
step's other operands live until it is over, and values inside a fused step get no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.scheduler import Split, kept_roots

Key = tuple[Tensor, BufferType]  # a root, and the memory whose arena holds this copy of it


@dataclass(slots=True)
class Layout:
    """Offsets in the arenas, with the figures that tell how good they are."""

    offsets: dict[Key, int] = field(default_factory=dict)
    arena_bytes: dict[BufferType, int] = field(default_factory=dict)
    live_bytes: dict[BufferType, int] = field(default_factory=dict)  # largest set alive at one time
    total_bytes: dict[BufferType, int] = field(default_factory=dict)  # what no reuse would take


@dataclass(slots=True, eq=False)
class _Block:
    """Memory of a value, and of those that are written over it one after another."""

    n_bytes: int
    first: int  # the steps, both included, in which it holds one of them
    last: int
    offset: int = 0


def allocate(graph: Graph, splits: Sequence[Split]) -> Layout:
    """Place the results of every step, and every copy that a split brings in."""
    layout = Layout()
    blocks = _blocks(graph, splits)
    n_steps = sum(len(split.steps) for split in splits)
    for memory in dict.fromkeys(split.backend.buffer_type for split in splits):
        here = list(dict.fromkeys(b for (_, where), b in blocks.items() if where is memory))
        layout.arena_bytes[memory], layout.live_bytes[memory] = _pack(here, n_steps)
        layout.total_bytes[memory] = sum(block.n_bytes for block in here)
    layout.offsets = {key: block.offset for key, block in blocks.items()}
    return layout


def _pack(blocks: Sequence[_Block], n_steps: int) -> tuple[int, int]:
    """Give each block an offset; where the furthest ends, and the largest sum of one step."""
    in_use = [0] * (n_steps + 1)
    for block in blocks:
        for step in range(block.first, block.last + 1):
            in_use[step] += block.n_bytes
    most = max(in_use)
    best: tuple[int, dict[_Block, int]] | None = None
    for order in _ORDERS:
        end, offsets = _stack(sorted(blocks, key=order), n_steps)
        if best is None or end < best[0]:
            best = end, offsets
        if end == most:  # it cannot be better
            break
    assert best is not None
    for block, offset in best[1].items():
        block.offset = offset
    return best[0], most


# The largest first: in bytes times steps, or in bytes. Of 240 graphs (12 models, 1 to 512 tokens)
# the better one has the arena as small as can be for 172, and 0.7 % more than that on average.
_ORDERS: tuple[Callable[[_Block], float], ...] = (
    lambda block: -block.n_bytes * (block.last - block.first + 1),
    lambda block: -block.n_bytes,
)


def _stack(blocks: Iterable[_Block], n_steps: int) -> tuple[int, dict[_Block, int]]:
    """Each block as low as it goes beside those before it; where the furthest ends."""
    placed: list[list[tuple[int, int]]] = [[] for _ in range(n_steps + 1)]  # by step
    offsets: dict[_Block, int] = {}
    furthest = 0
    for block in blocks:
        steps = placed[block.first : block.last + 1]
        at = 0
        for offset, end in sorted({taken for step in steps for taken in step}):
            if at + block.n_bytes <= offset:
                break
            at = max(at, end)
        offsets[block] = at
        for step in steps:
            step.append((at, at + block.n_bytes))
        furthest = max(furthest, at + block.n_bytes)
    return furthest, offsets


def _blocks(graph: Graph, splits: Sequence[Split]) -> dict[Key, _Block]:
    """The block of every root that is made or copied; several share one in turns."""
    last_use = _last_uses(graph, splits)
    blocks: dict[Key, _Block] = {}

    def begin(key: Key, step: int) -> None:
        root, memory = key
        blocks[key] = _Block(memory.tensor_bytes(root.spec), step, last_use[key])

    i_step = 0
    for split in splits:
        memory = split.backend.buffer_type
        for copy in split.copies:
            if (copy.root, memory) not in blocks:
                begin((copy.root, memory), i_step)
        for step in split.steps:
            dying = {root for root in _operand_roots(step) if last_use[root, memory] == i_step}
            for result, tensor in step.results.items():
                if tensor.root is not tensor:
                    continue
                over = next((r for r in _overwritable(step, result, memory) if r in dying), None)
                if over is None:
                    begin((tensor, memory), i_step)
                else:
                    dying.remove(over)
                    blocks[tensor, memory] = blocks[over, memory]
                    blocks[tensor, memory].last = last_use[tensor, memory]
            i_step += 1
    return blocks


def _operand_roots(step: Step) -> set[Tensor]:
    return {operand.root for operand in step.operands.values()}


def _last_uses(graph: Graph, splits: Sequence[Split]) -> dict[Key, int]:
    """The step at which each root is last touched in each memory. Outputs are never done with."""
    kept = kept_roots(graph)
    last: dict[Key, int] = {}
    i_step = 0
    n_steps = sum(len(s.steps) for s in splits)
    for split in splits:
        for copy in split.copies:
            if copy.source is not None:  # the source must hold out until the copy is made
                last[copy.root, copy.source] = max(i_step, last.get((copy.root, copy.source), 0))
        for step in split.steps:
            for tensor in step.tensors:
                last[tensor.root, split.backend.buffer_type] = i_step
            i_step += 1
    return {key: n_steps if key[0] in kept else at for key, at in last.items()}


def _overwritable(step: Step, result: str, memory: BufferType) -> list[Tensor]:
    """Roots that a result may be written over where nothing reads them after the step.

    The step allows it for an operand, which has the result's layout and owns its bytes. No other
    operand has some of them a little further on, of which one thread would read what another has
    overwritten.
    """
    spec = step.results[result].spec
    n_bytes = memory.tensor_bytes(spec)
    roots = []
    for name in step.in_place.get(result, ()):
        root = step.operands[name].root
        if root.is_leaf or memory.tensor_bytes(root.spec) != n_bytes:
            continue
        here = [x for x in step.operands.values() if x.root is root]
        if all(x.view_offs == 0 and x.spec.same_layout(spec) for x in here):
            roots.append(root)
    return roots
