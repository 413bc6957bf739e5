"""The tensors that some outputs need, in the order in which nodes run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ggmlpy.errors import ArgumentError
from ggmlpy.graph.count import Count, Symbol
from ggmlpy.graph.tensor import Tensor, tensors_of

MAX_CYCLE_NAMES = 8  # of a cycle in an error

Homes = Mapping[Tensor, str]  # the backend that runs a node, the memory that a leaf lies in
NO_HOMES: Homes = MappingProxyType({})


class Nodes:
    """The order and the names of a graph's tensors; `Graph` adds its dumps."""

    def __init__(self, *outputs: Tensor | Sequence[Tensor]) -> None:
        self.outputs = tensors_of("Graph", outputs)
        self.leafs: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self._index: dict[Tensor, int] = {}
        for tensor in _post_order(self.outputs):
            kept = self.leafs if tensor.is_leaf else self.nodes
            self._index[tensor] = len(kept)
            kept.append(tensor)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._index

    def name_of(self, tensor: Tensor) -> str:
        """The tensor's name, or ggml's `node_7`, `leaf_3` where it has none."""
        kind = "leaf" if tensor.is_leaf else "node"
        return tensor.name or f"{kind}_{self._index[tensor]}"

    def reference(self, tensor: Tensor) -> str:
        """`node 7 Qcur-0`: its line in the dump, and its name if it has one."""
        kind = "leaf" if tensor.is_leaf else "node"
        return f"{kind} {self._index[tensor]} {tensor.name}".rstrip()

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols of the tensors' counts, in order of appearance.

        Raises ArgumentError where two have one name.
        """
        found: dict[Symbol, None] = {}
        for tensor in self._index:
            for n in tensor.spec.ne:
                if type(n) is not int:
                    assert isinstance(n, Count)
                    found.update(dict.fromkeys(n.terms))
        if len({symbol.name for symbol in found}) < len(found):
            shown = ", ".join(f"{s.name} <= {s.bound}" for s in found)
            raise ArgumentError(f"Graph: symbols {shown}: each must have a name of its own")
        return tuple(found)

    def find(self, name: str) -> Tensor:
        """The tensor called `name` (the first, if several are). Raises KeyError."""
        for tensor in (*self.leafs, *self.nodes):
            if self.name_of(tensor) == name:
                return tensor
        raise KeyError(f"no tensor {name!r} among {len(self.leafs)} leafs and {len(self)} nodes")


def _post_order(outputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Depth first without recursion: a model's graph is deeper than Python's stack."""
    order: list[Tensor] = []
    finished: dict[Tensor, bool] = {}  # False while its sources are visited
    for output in outputs:
        stack = [(output, 0)]
        while stack:
            tensor, i = stack.pop()
            if i == 0:
                if tensor in finished:
                    if not finished[tensor]:
                        raise _cycle([above for above, _ in stack], tensor)
                    continue
                finished[tensor] = False
            if i < len(tensor.src):
                stack += [(tensor, i + 1), (tensor.src[i], 0)]
            else:
                finished[tensor] = True
                order.append(tensor)
    return order


def _cycle(path: list[Tensor], tensor: Tensor) -> ArgumentError:
    cycle = path[path.index(tensor) :]
    names = [t.name or (t.op.name if t.op is not None else "a leaf") for t in cycle]
    if len(names) > MAX_CYCLE_NAMES:
        names[MAX_CYCLE_NAMES // 2 : -MAX_CYCLE_NAMES // 2] = ["…"]
    shown = " from ".join([*names, names[0]])
    return ArgumentError(f"Graph: {shown}: a node must not be computed from its own result")
