"""Machine code of NVIDIA GPUs as instructions, loops and what they take, through nvdisasm.

    functions = parse(disassemble(cubin))  # by name of the kernel
    functions["rms_norm"].body.inner       # its loops, each with those inside it

Loops are the natural loops of the flow graph. Of the ways through a loop one is counted: the
longest, or the one that suits a `Taste` best. Left out are ways that a `BRA.DIV` leads to (shuffles
of warps that are apart) and the compiler's own functions for rare numbers (`$__internal_…`). Other
functions that are called are counted where they are called from.

"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.sass_mix import Mix
from ggmlpy.errors import BackendError

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
_NAMED = re.compile(r"`\(([^)]+)\)")
_LISTED = re.compile(r"\.L_x_\d+")
_INSTALL = (
    "nvdisasm, which prints machine code of GPUs, is not on PATH: pip install nvidia-cuda-nvdisasm,"
    " or install a CUDA toolkit"
)


def nvdisasm() -> Path:
    """Where the program is: on PATH, or in a wheel. Raises BackendError if it is nowhere."""
    on_path = shutil.which("nvdisasm")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("nvidia")  # a folder that many wheels share
    for root in (spec and spec.submodule_search_locations) or ():
        for found in sorted(Path(root).glob("*/bin/nvdisasm*"), reverse=True):
            return found
    raise BackendError(_INSTALL)


@dataclass(frozen=True, slots=True)
class Taste:
    """Which way through a loop is taken to be the usual one: patterns of opcodes."""

    prefer: str = "^$"
    avoid: str = "^$"

    def weight(self, mix: Mix) -> float:
        liked = sum(n for opcode, n in mix.items() if re.search(self.prefer, opcode))
        disliked = sum(n for opcode, n in mix.items() if re.search(self.avoid, opcode))
        return mix.n + 1000 * (liked - disliked)


LONGEST = Taste()


def disassemble(cubin: bytes) -> str:
    """What nvdisasm prints of a cubin. Raises BackendError without nvdisasm."""
    program = nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{program.name}: {done.stderr.strip()}")
    return done.stdout


def parse(text: str, taste: Taste = LONGEST) -> dict[str, Function]:
    """The kernels of what nvdisasm prints."""
    return {section.name: section.function(taste) for section in _sections(text)}


# --- instructions ---


@dataclass(frozen=True, slots=True)
class Instruction:
    """`@P0 LDG.E.128 R4, desc[UR4][R2.64]`: its guard, opcode with modifiers, operands."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def executed(self) -> str:
        """The opcode, or NOP where the guard is never true: compilers put loads of that kind before
        copies to shared memory. They are issued, and access nothing."""
        return "NOP" if self.guard == "!PT" else self.opcode


# --- loops ---


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop, or all of a function.

    address   of the first instruction
    mix       of one iteration, without the loops inside
    n_all     instructions of all ways through it, without the loops inside
    inner     the loops on the way through it, in their order
    others    those on other ways
    """

    address: int
    mix: Mix
    n_all: int
    inner: tuple[Loop, ...]
    others: tuple[Loop, ...] = ()

    def walk(self) -> Iterator[Loop]:
        """This one and all on the way through it."""
        yield self
        for loop in self.inner:
            yield from loop.walk()

    def with_mac(self, name: str) -> list[Loop]:
        return [loop for loop in self.walk() if loop.mix.macs(name)]


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel: all of it as one loop, and how many instructions it has."""

    name: str
    body: Loop
    n_instructions: int

    @property
    def loops(self) -> list[Loop]:
        return [loop for loop in self.body.walk() if loop is not self.body]


@dataclass(slots=True)
class _Section:
    """The code of a kernel with the functions that it calls."""

    name: str
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # the index of the next instruction

    def function(self, taste: Taste) -> Function:
        graph = _Graph(self, taste)
        body = graph.body(0)
        n = sum(instruction.name != "NOP" for instruction in self.code)
        return Function(self.name, body, n)


def _sections(text: str) -> list[_Section]:
    found: list[_Section] = []
    for line in text.splitlines():
        if named := _SECTION.match(line):
            found.append(_Section(named.group(1)))
        elif not found:
            continue
        elif label := _LABEL.match(line):
            found[-1].labels[label.group(1)] = len(found[-1].code)
        elif match := _LINE.search(line):
            address, guard, opcode, operands = match.groups()
            found[-1].code.append(Instruction(int(address, 16), guard or "", opcode, operands))
    return [section for section in found if section.code]


class _Graph:
    """Blocks of instructions by the index of their first one, and where they lead to."""

    def __init__(self, section: _Section, taste: Taste) -> None:
        self._code = section.code
        self._labels = section.labels
        self._weight = taste.weight
        self._targets = [self._targets_of(i) for i in range(len(self._code))]
        starts = {0, *section.labels.values()} - {len(self._code)}
        for i, targets in enumerate(self._targets):
            if targets is not None:
                starts |= {i + 1, *targets} - {len(self._code)}
        self._starts = sorted(starts)
        self._calls: dict[int, Loop] = {}

    def body(self, entry: int) -> Loop:
        """A function as a loop that runs once."""
        nodes = self._reached(entry)
        loops = _natural_loops(entry, nodes)
        return self._level(entry, set(nodes), nodes, loops)

    # --- flow ---

    def _targets_of(self, i: int) -> list[int] | None:
        """Where an instruction leads to; None: only to the next one."""
        instruction = self._code[i]
        name, after = instruction.name, [i + 1]
        if instruction.guard == "!PT":
            return None
        always = instruction.guard in ("", "PT")
        if name in ("EXIT", "RET"):
            return [] if always else after
        if name == "BRX":
            return self._indices(_LISTED.findall(instruction.operands))
        if name == "BRA":
            if ".DIV" in instruction.opcode:
                return after  # warps are taken to be together
            target, condition = self._target(instruction), instruction.operands.partition("`")[0]
            return [target] if always and not condition.strip() else [*after, target]
        if name == "BSYNC":
            return [self._end_of_divergence(i)] if always else [*after, self._end_of_divergence(i)]
        return None

    def _indices(self, labels: Iterable[str]) -> list[int]:
        return [self._labels[label] for label in labels]

    def _target(self, instruction: Instruction) -> int:
        named = _NAMED.search(instruction.operands)
        assert named, f"a branch to nowhere: {instruction}"
        return self._labels[named.group(1)]

    def _end_of_divergence(self, i: int) -> int:
        """Where a BSYNC leads to: what the BSSY of the same barrier before it says."""
        barrier = self._code[i].operands
        for before in reversed(self._code[:i]):
            if before.name == "BSSY" and before.operands.partition(",")[0] == barrier:
                return self._target(before)
        return i + 1

    def _end(self, start: int) -> int:
        after = self._index[start] + 1
        return self._starts[after] if after < len(self._starts) else len(self._code)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {start: i for i, start in enumerate(self._starts)}

    def _next(self, start: int) -> list[int]:
        end = self._end(start)
        targets = self._targets[end - 1]
        known = [end] if targets is None else targets
        return [target for target in dict.fromkeys(known) if target < len(self._code)]

    def _reached(self, entry: int) -> dict[int, list[int]]:
        """Blocks from an entry on, with their successors."""
        found: dict[int, list[int]] = {}
        waiting = [entry]
        while waiting:
            start = waiting.pop()
            if start not in found:
                found[start] = self._next(start)
                waiting += found[start]
        return found

    # --- what is executed ---

    def _level(
        self, entry: int, own: set[int], nodes: dict[int, list[int]], loops: dict[int, set[int]]
    ) -> Loop:
        """The blocks `own`, a loop from `entry` on or a function: the longest way through."""
        inside = {h: body for h, body in loops.items() if h in own and h != entry}
        outermost = {
            header: body
            for header, body in inside.items()
            if not any(header in other for h, other in inside.items() if h != header)
        }
        of_block = {block: header for header, body in outermost.items() for block in body}
        below = {
            header: self._level(header, body, nodes, loops) for header, body in outermost.items()
        }
        blocks = {start: self._block(start) for start in own if start not in of_block}

        def leads_to(node: int) -> list[int]:
            from_blocks = outermost.get(node, {node})
            targets = {of_block.get(t, t) for b in from_blocks for t in nodes[b] if t in own}
            return sorted(targets - {node, entry})

        def weight(node: int) -> float:
            if node in below:
                return sum(self._weight(loop.mix) for loop in below[node].walk())
            mix, called = blocks[node]
            return self._weight(mix) + sum(self._weight(x.mix) for c in called for x in c.walk())

        path = _heaviest(of_block.get(entry, entry), leads_to, weight)
        mix = Mix()
        inner: list[Loop] = []
        for node in path:
            if node in below:
                inner.append(below[node])
                continue
            own_mix, called = blocks[node]
            mix.update(own_mix)
            for function in called:
                mix.update(function.mix)
                inner += function.inner
        n_all = sum(own_mix.n for own_mix, _ in blocks.values())
        others = tuple(loop for header, loop in sorted(below.items()) if header not in path)
        return Loop(self._code[entry].address, mix, n_all, tuple(inner), others)

    def _block(self, start: int) -> tuple[Mix, list[Loop]]:
        """Its instructions, and the functions that it calls."""
        mix, called = Mix(), []
        for instruction in self._code[start : self._end(start)]:
            if instruction.name == "NOP":
                continue
            mix[instruction.executed] += 1
            if instruction.name == "CALL" and "$__internal" not in instruction.operands:
                called.append(self._called(self._target(instruction)))
        return mix, called

    def _called(self, entry: int) -> Loop:
        if entry not in self._calls:
            self._calls[entry] = self.body(entry)
        return self._calls[entry]


def _natural_loops(entry: int, nodes: dict[int, list[int]]) -> dict[int, set[int]]:
    """The blocks of each loop by its first block. A loop has a way back to a block that every way
    into it passes."""
    order = _postorder(entry, nodes)
    rank = {node: i for i, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in nodes}
    for node, targets in nodes.items():
        for target in targets:
            before[target].append(node)
    dominator = {entry: entry}

    def common(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = dominator[a]
            while rank[b] < rank[a]:
                b = dominator[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [p for p in before[node] if p in dominator]
            new = known[0]
            for other in known[1:]:
                new = common(new, other)
            if dominator.get(node) != new:
                dominator[node], changed = new, True

    loops: dict[int, set[int]] = {}
    for node, targets in nodes.items():
        for header in targets:
            if not _dominates(header, node, dominator):
                continue
            body = loops.setdefault(header, {header})
            waiting = [node]
            while waiting:
                at = waiting.pop()
                if at not in body:
                    body.add(at)
                    waiting += before[at]
    return loops


def _dominates(a: int, b: int, dominator: dict[int, int]) -> bool:
    while b != a and dominator[b] != b:
        b = dominator[b]
    return a == b


def _postorder(entry: int, nodes: Mapping[int, list[int]]) -> list[int]:
    order: list[int] = []
    seen = {entry}
    stack = [(entry, iter(nodes[entry]))]
    while stack:
        node, rest = stack[-1]
        target = next(rest, None)
        if target is None:
            order.append(node)
            stack.pop()
        elif target not in seen:
            seen.add(target)
            stack.append((target, iter(nodes[target])))
    return order


def _heaviest(
    entry: int, leads_to: Callable[[int], list[int]], weight: Callable[[int], float]
) -> list[int]:
    """The way from a node to where no other one follows that weighs most."""
    nodes: dict[int, list[int]] = {}
    waiting = [entry]
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes[node] = leads_to(node)
            waiting += nodes[node]
    order = _postorder(entry, nodes)
    rank = {node: i for i, node in enumerate(order)}
    best: dict[int, tuple[float, int | None]] = {}
    for node in order:
        after = [t for t in nodes[node] if rank[t] < rank[node]]  # not back: flow that is no loop
        follower = max(after, key=lambda t: best[t][0], default=None)
        rest = best[follower][0] if follower is not None else 0.0
        best[node] = weight(node) + rest, follower
    path: list[int] = []
    at: int | None = entry
    while at is not None:
        path.append(at)
        at = best[at][1]
    return path
