"""What a case demands of a backend: right values, and that nothing else is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.bounds import expect
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import build
from ggmlpy.conformance.judge import judge
from ggmlpy.conformance.run import (
    Prepared,
    can_run_in_place,
    computing,
    initial_bytes,
    restore,
    unsupported,
)
from ggmlpy.graph.buffer import Bytes
from ggmlpy.graph.tensor import Tensor


class NotSupported(Exception):
    """The backend does not claim to run this: the test is skipped, with the message as reason."""


def check_case(case: Case, backend: Backend, others: Sequence[Backend] = (), seed: int = 0) -> str:
    """What the backend gets wrong of a case, in one line; empty if nothing.

    Values within their bounds, no byte changed besides the results, the same bits when run again,
    on `others`, and over source 0 where the op can run in place. Raises NotSupported.
    """
    return check_node(build(case, seed), backend, others)


def check_node(y: Tensor, backend: Backend, others: Sequence[Backend] = (), shift: int = 0) -> str:
    """As `check_case`, of a graph whose leaves have their bytes on the host.

    `shift` moves the tensors of `others` by so many bytes off the memory's alignment.
    """
    nodes = computing(y)
    reason = unsupported(backend, nodes)
    if reason:
        raise NotSupported(reason)
    before = initial_bytes(nodes)
    first = Prepared(backend, nodes)
    first.run()
    wrong = first.wrongly_changed(before) or judge_nodes(backend, first, before)
    if wrong:
        return wrong
    want = [first.raw(node) for node in nodes]
    first.run()
    wrong = _difference(nodes, want, first, "run again") or first.wrongly_changed()
    for other in others:
        if not wrong:
            wrong = _check_same(
                other, nodes, before, want, other.settings() or other.name, shift=shift
            )
    if not wrong and len(nodes) == 1 and can_run_in_place(nodes[0]):
        wrong = _check_same(backend, nodes, before, want, "run over its source 0", in_place=True)
    return wrong


def judge_nodes(backend: Backend, run: Prepared, before: Mapping[Tensor, Bytes]) -> str:
    """What is wrong with the values of a run: each node by the values that it read itself."""
    for node in run.nodes:
        sources = run.sources(node, before)
        wrong = judge(node, run.value(node), expect(node, sources, backend.rounding(node)))
        if wrong:
            return f"{_named(node, run.nodes)}{wrong}"
    return ""


def _check_same(
    backend: Backend,
    nodes: Sequence[Tensor],
    before: Mapping[Tensor, Bytes],
    want: Sequence[Bytes],
    how: str,
    in_place: bool = False,
    shift: int = 0,
) -> str:
    restore(before)
    again = Prepared(backend, list(nodes), in_place, shift)
    again.run()
    return _difference(nodes, want, again, how) or again.wrongly_changed()


def _difference(nodes: Sequence[Tensor], want: Sequence[Bytes], run: Prepared, how: str) -> str:
    """Where the bits of another run differ."""
    for node, raw in zip(nodes, want, strict=True):
        differ = run.raw(node) != raw
        if differ.any():
            count, at = int(differ.sum()), int(np.argmax(differ))
            return f"{_named(node, nodes)}{how}: {count} bytes differ, the first is byte {at}"
    return ""


def _named(node: Tensor, nodes: Sequence[Tensor]) -> str:
    return "" if len(nodes) == 1 else f"node {nodes.index(node)}, {node.op}: "
