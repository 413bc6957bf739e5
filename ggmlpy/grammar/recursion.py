"""Rules that name themselves only to repeat something, as repetitions:

    a ::= x a | y        (x)* y
    a ::= a x | y        y (x)*

A parser of repetitions is faster, and a rule that no longer names itself can be a lexeme.
"""

from __future__ import annotations

from ggmlpy.grammar.nodes import Alt, Node, Ref, Repeat, Rules, Seq, alt, parts, seq


def without_repetition(rules: Rules) -> Rules:
    """The same texts, with repetitions where there were rules of the forms above."""
    return {name: _rewritten(name, body) for name, body in rules.items()}


def _rewritten(name: str, body: Node) -> Node:
    options = body.options if isinstance(body, Alt) else (body,)
    at_end = [each for each in options if _ends_with(each, name)]
    at_start = [each for each in options if _begins_with(each, name)]
    if bool(at_end) == bool(at_start):  # none, or both
        return body
    recursive = at_end or at_start
    others = [each for each in options if each not in recursive]
    repeated = [_rest(each, last=bool(at_end)) for each in recursive]
    if not others or any(_names(each, name) for each in [*others, *repeated]):
        return body
    loop = Repeat(alt(repeated), 0, None)
    return seq([loop, alt(others)] if at_end else [alt(others), loop])


def _ends_with(node: Node, name: str) -> bool:
    return isinstance(node, Seq) and len(node.items) > 1 and node.items[-1] == Ref(name)


def _begins_with(node: Node, name: str) -> bool:
    return isinstance(node, Seq) and len(node.items) > 1 and node.items[0] == Ref(name)


def _rest(node: Node, *, last: bool) -> Node:
    assert isinstance(node, Seq)
    return seq(list(node.items[:-1] if last else node.items[1:]))


def _names(node: Node, name: str) -> bool:
    return node == Ref(name) or any(_names(each, name) for each in parts(node))
