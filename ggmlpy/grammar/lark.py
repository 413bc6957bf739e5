"""A grammar as llguidance's Lark: rules have small letters, lexemes capital ones."""

from __future__ import annotations

import json
from collections.abc import Callable

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import GrammarError
from ggmlpy.grammar.lexemes import Lexemes
from ggmlpy.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Token, parts
from ggmlpy.grammar.recursion import without_repetition

_MOST_DEEP = 8  # nodes in one another in a line: llguidance refuses some 30 parentheses


def lark_of(rules: Rules, token_of: Callable[[str], int | None]) -> str:
    """The text of the same grammar. `token_of` gives the token that a text is, if it is one.

    Raises GrammarError for a token that does not exist, and for a grammar that is too large.
    """
    try:
        return _Writer(without_repetition(rules), token_of).text()
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None


class _Writer:
    def __init__(self, rules: Rules, token_of: Callable[[str], int | None]) -> None:
        self._rules = rules
        self._lexemes = Lexemes(rules)
        self._token_of = token_of
        self._numbers = {name: i for i, name in enumerate(rules)}
        self._names: dict[Node, str] = {}  # of lexemes
        self._parts: dict[tuple[Node, bool], str] = {}  # names of nodes that are deep in others
        self._lines: list[str] = []
        self._written: set[str] = set()  # rules, and those that are lexemes
        self._todo = ["root"]

    def text(self) -> str:
        root = self._rule("root")
        while self._todo:
            rule = self._todo.pop()
            name = self._rule(rule)
            if name not in self._written:
                self._written.add(name)
                self._lines.append(f"{name}: {self._inner(self._rules[rule])}")
        return "\n".join([f"start: {root}", *self._lines]) + "\n"

    def _rule(self, name: str) -> str:
        return f"r{self._numbers[name]}"

    def _inner(self, node: Node, depth: int = 0) -> str:
        """A node of a rule, in so many others of its line."""
        if self._lexemes.is_lexeme(node):
            return self._lexeme(node)
        match node:
            case Token(name, is_negated):
                return f"<[{'^' if is_negated else ''}{self._token(name)}]>"
            case Ref(rule):
                self._todo.append(rule)
                return self._rule(rule)
        if depth == _MOST_DEEP:
            return self._part(node, in_lexeme=False)
        inner = [self._inner(each, depth + 1) for each in self._lexemes.inner(node)]
        return _composed(node, inner)

    def _part(self, node: Node, *, in_lexeme: bool) -> str:
        """The name of a line of its own for what is deep in others."""
        key = node, in_lexeme
        if key not in self._parts:
            self._parts[key] = f"{'P' if in_lexeme else 'p'}{len(self._parts)}"
            inner = self._regular(node) if in_lexeme else self._inner(node)
            self._lines.append(f"{self._parts[key]}: {inner}")
        return self._parts[key]

    def _token(self, name: int | str) -> int:
        id = name if isinstance(name, int) else self._token_of(name)
        if id is None:
            raise GrammarError(f"the grammar names {quoted(str(name))}, which is not one token")
        return id

    def _lexeme(self, node: Node) -> str:
        """The name of a lexeme."""
        if node not in self._names:
            self._names[node] = f"L{len(self._names)}"
            self._lines.append(f"{self._names[node]}: {self._regular(node)}")
        return self._names[node]

    def _regular(self, node: Node, depth: int = 0) -> str:
        """A node of a lexeme, in so many others of its line."""
        match node:
            case Chars(ranges):
                return f"/[{''.join(map(_range, ranges))}]/"
            case Ref(rule):
                name = f"R{self._numbers[rule]}"
                if name not in self._written:
                    self._written.add(name)
                    self._lines.append(f"{name}: {self._regular(self._rules[rule])}")
                return name
            case Seq(items) if items and all(map(_is_single, items)):
                return json.dumps("".join(map(_character, items)), ensure_ascii=False)
        if depth == _MOST_DEEP:
            return self._part(node, in_lexeme=True)
        return _composed(node, [self._regular(each, depth + 1) for each in parts(node)])


def _composed(node: Node, inner: list[str]) -> str:
    match node:
        case Alt():
            return f"({' | '.join(inner)})"
        case Repeat(_, low, high):
            return f"({inner[0]}){{{low},{'' if high is None else high}}}"
    return f"({' '.join(inner)})" if inner else '""'


def _is_single(node: Node) -> bool:
    return isinstance(node, Chars) and len(node.ranges) == 1 and len(set(node.ranges[0])) == 1


def _character(node: Node) -> str:
    assert isinstance(node, Chars)
    return chr(node.ranges[0][0])


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}"
