"""What a grammar allows, by the definition: Earley's algorithm over single characters."""

from __future__ import annotations

from collections.abc import Callable

from ggmlpy.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq

Symbol = Chars | str  # a character, or the name of a rule
Bodies = dict[str, list[tuple[Symbol, ...]]]
State = tuple[str, tuple[Symbol, ...], int, int]  # a rule, one of its bodies, how far, from where


class Recogniser:
    """Reads a text character by character."""

    def __init__(self, rules: Rules) -> None:
        self._bodies: Bodies = {}
        self._names: dict[Node, str] = {}
        for name, body in rules.items():
            self._bodies[name] = self._options(body)
        self._chart: list[set[State]] = []
        self._nullable = self._find_nullable()
        self._close({("root", body, 0, 0) for body in self._bodies["root"]})

    def push(self, character: str) -> None:
        code = ord(character)
        moved = set()
        for rule, body, at, start in self._chart[-1]:
            if at < len(body) and isinstance(symbol := body[at], Chars) and has(symbol, code):
                moved.add((rule, body, at + 1, start))
        self._close(moved)

    @property
    def is_possible(self) -> bool:
        """Whether a text of the grammar begins so, if each rule has one."""
        return bool(self._chart[-1])

    @property
    def is_complete(self) -> bool:
        """Whether the text is one of the grammar."""
        return any(r == "root" and at == len(b) and s == 0 for r, b, at, s in self._chart[-1])

    def following(self) -> list[Chars]:
        """The characters that may come next."""
        symbols = (body[at] for _, body, at, _ in self._chart[-1] if at < len(body))
        return [symbol for symbol in symbols if isinstance(symbol, Chars)]

    def _options(self, node: Node) -> list[tuple[Symbol, ...]]:
        match node:
            case Alt(options):
                return [body for option in options for body in self._options(option)]
            case Seq(items):
                return [tuple(map(self._symbol, items))]
        return [(self._symbol(node),)]

    def _symbol(self, node: Node) -> Symbol:
        match node:
            case Chars():
                return node
            case Ref(rule):
                return rule
            case _:
                pass
        if node not in self._names:
            name = self._names[node] = f"#{len(self._names)}"
            if isinstance(node, Repeat):
                item = self._symbol(node.item)
                if node.high is None:
                    self._bodies[name] = [(item,) * node.low, (name, item)]
                else:
                    self._bodies[name] = [(item,) * n for n in range(node.low, node.high + 1)]
            else:
                self._bodies[name] = self._options(node)
        return self._names[node]

    def _find_nullable(self) -> set[str]:
        return _least(self._bodies, lambda body, known: all(s in known for s in body))

    def _close(self, states: set[State]) -> None:
        here = len(self._chart)
        self._chart.append(states)
        todo = list(states)
        while todo:
            rule, body, at, start = todo.pop()
            found: list[State] = []
            if at == len(body):
                for r, b, a, s in list(self._chart[start]):
                    if a < len(b) and b[a] == rule:
                        found.append((r, b, a + 1, s))
            elif isinstance(symbol := body[at], str):
                found += [(symbol, each, 0, here) for each in self._bodies[symbol]]
                if symbol in self._nullable:
                    found.append((rule, body, at + 1, start))
            for state in found:
                if state not in states:
                    states.add(state)
                    todo.append(state)


def has(symbol: Chars, code: int) -> bool:
    return any(low <= code <= high for low, high in symbol.ranges)


def is_productive(rules: Rules) -> bool:
    """Whether each rule has a text."""
    made = Recogniser(rules)
    productive = _least(
        made._bodies, lambda body, known: all(isinstance(s, Chars) or s in known for s in body)
    )
    return productive == set(made._bodies)


def _least(bodies: Bodies, applies: Callable[[tuple[Symbol, ...], set[str]], bool]) -> set[str]:
    """The least set of rules that have a body to which `applies`."""
    known: set[str] = set()
    while True:
        found = {
            name for name, options in bodies.items() if any(applies(b, known) for b in options)
        }
        if found == known:
            return known
        known = found
