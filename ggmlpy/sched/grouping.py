"""Grouping passes: steps that need not follow each other become one step, which is one launch.

    pass       grouped steps                    operands                          results
    products   2 or 3 mul_mat, or mul_mat+add   weight, weight_2 .., x            y, y_2, ..
                                                [, bias, bias_2, ..]
    stores     rope, rope+set_rows, set_rows    q, pos [, freq_factors], k, ids,  q_y, k_y, v_y
                                                k_dst, v, v_dst

Products of one x have weights of one type, and all of them have a bias or none has. A step of
stores rotates queries and keys alike, and writes keys and values by the same ids.

Unlike the passes of fusion.py these move steps: a product up to the first one of its x, a rotation
down to where the values are written. A step moves past others that neither write what it reads nor
access what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched.fusion import Accept
from ggmlpy.sched.writes import share_memory

MOST_PRODUCTS = 3  # of a step
_NEAR = 16  # steps, within which products are looked for
_PRODUCTS = {"mul_mat", "mul_mat+add"}


def _numbered(name: str, i: int) -> str:
    return name if i == 0 else f"{name}_{i + 1}"


def _may_pass(step: Step, others: Iterable[Step]) -> bool:
    """Whether a step may run on the other side of others: neither writes what the other reads or
    writes."""
    return not any(
        _meet(step.results.values(), other.tensors)
        or _meet(step.operands.values(), other.results.values())
        for other in others
    )


def _meet(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return any(share_memory(a, b) for a in some for b in others)


# --- products -----------------------------------------------------------------------------------


def products(steps: list[Step], accept: Accept) -> list[Step]:
    """Products of one x by weights of one type, where the first one is."""
    result = list(steps)
    i = 0
    while i < len(result):
        if result[i].op in _PRODUCTS:
            _join_products(result, i, accept)
        i += 1
    return result


def _join_products(steps: list[Step], i: int, accept: Accept) -> None:
    """Replace step i and further products of its x by one step, as many as are accepted."""
    near = range(i + 1, min(i + _NEAR, len(steps)))
    alike = [i, *(j for j in near if _alike(steps[i], steps[j]))]
    alike = alike[:MOST_PRODUCTS]
    while len(alike) > 1:
        members = [steps[j] for j in alike]
        joined = _product_of(members)
        if accept(joined) and all(_may_move_to(i, j, steps, alike) for j in alike):
            others = [steps[j] for j in range(i, alike[-1]) if j not in alike]
            steps[i : alike[-1] + 1] = [joined, *others]
            return
        alike.pop()


def _may_move_to(i: int, j: int, steps: Sequence[Step], alike: Sequence[int]) -> bool:
    """Whether step j may run where step i does, before all that are not alike."""
    return _may_pass(steps[j], (steps[k] for k in range(i, j) if k not in alike))


def _alike(first: Step, other: Step) -> bool:
    if other.op != first.op or other.operands["x"] is not first.operands["x"]:
        return False
    weights = first.operands["weight"], other.operands["weight"]
    if first.nodes[0].op != other.nodes[0].op:
        return False
    return weights[0].type is weights[1].type and weights[0].ne[2:] == weights[1].ne[2:]


def _product_of(members: Sequence[Step]) -> Step:
    def of_each(name: str) -> dict[str, Tensor]:
        of = [member.operands[name] for member in members if name in member.operands]
        return {_numbered(name, i): tensor for i, tensor in enumerate(of)}

    operands = of_each("weight") | {"x": members[0].operands["x"]} | of_each("bias")
    results = {_numbered("y", i): member.results["y"] for i, member in enumerate(members)}
    nodes = tuple(node for member in members for node in member.nodes)
    return Step(members[0].node, nodes, operands, results)


# --- stores -------------------------------------------------------------------------------------


def stores(steps: list[Step], accept: Accept) -> list[Step]:
    """Rotated queries, rotated keys and values that are written: where the values are."""
    result = list(steps)
    i_query: int | None = None
    i = 0
    while i < len(result):
        op = result[i].op
        if op == "rope":
            i_query = i
        elif op == "rope+set_rows" and i_query is not None:
            removed = _join_stores(result, i_query, i, accept)
            i_query, i = None, i - removed
        i += 1
    return result


def _join_stores(steps: list[Step], i_query: int, i_key: int, accept: Accept) -> int:
    """Replace these two and the next set_rows by one step. Returns how many steps before the keys'
    are gone."""
    i_value = next((j for j in range(i_key + 1, len(steps)) if steps[j].op == "set_rows"), None)
    if i_value is None:
        return 0
    query, key, value = steps[i_query], steps[i_key], steps[i_value]
    between = [s for s in steps[i_query:i_value] if s is not query and s is not key]
    after_key = [s for s in between if s in steps[i_key:i_value]]
    if not _rotate_alike(query, key) or value.operands["ids"] is not key.operands["ids"]:
        return 0
    if not (_may_pass(query, between) and _may_pass(key, after_key)):
        return 0
    joined = _store_of(query, key, value)
    if not accept(joined):
        return 0
    steps[i_query : i_value + 1] = [*between, joined]
    return 1


def _rotate_alike(query: Step, key: Step) -> bool:
    """Whether both rotate by the same angles."""
    same = all(
        query.operands.get(name) is key.operands.get(name) for name in ("pos", "freq_factors")
    )
    return same and query.nodes[0].op == key.nodes[0].op


def _store_of(query: Step, key: Step, value: Step) -> Step:
    operands = {"q": query.operands["x"], "pos": key.operands["pos"]}
    if "freq_factors" in key.operands:
        operands["freq_factors"] = key.operands["freq_factors"]
    operands |= {"k": key.operands["x"], "ids": key.operands["ids"], "k_dst": key.operands["dst"]}
    operands |= {"v": value.operands["x"], "v_dst": value.operands["dst"]}
    results = {"q_y": query.results["y"], "k_y": key.results["y"], "v_y": value.results["y"]}
    nodes = (*query.nodes, *key.nodes, *value.nodes)
    return Step(key.node, nodes, operands, results, in_place={"q_y": ("q",)})
