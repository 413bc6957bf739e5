"""Which parts of a grammar a lexer can take as a whole.

llguidance first cuts a text into lexemes, of which it takes the longest match, and parses these. A
grammar in GBNF has no lexemes, so that this must not lose any text: in

    num ::= [0-9]+ ws      line ::= num "\n"      ws ::= [ \t\n]*

a lexeme `num` would swallow the line break that `line` needs. What describes regular texts becomes
a lexeme if that cannot happen: for no lexemes T and U is there a text w of T and a character c that
can follow T, with which w c is the beginning of a text of U. Else U is taken apart, down to single
characters if need be. All lexemes are compared, also those that are never possible at one place.

Sets of characters are bits of an int, one for each class of characters that no set tells apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ggmlpy.errors import GrammarError
from ggmlpy.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Token, parts

_MOST_POSITIONS = 20_000


@dataclass(slots=True)
class _Automaton:
    """The texts of a lexeme: paths through its single characters, by position (Glushkov, 1961).

    Repetitions with a limit have none here: it may find conflicts that there are not.
    """

    sets: list[int] = field(default_factory=list)  # the characters at each position
    following: list[set[int]] = field(default_factory=list)  # the positions after each
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)


class Lexemes:
    """The lexemes of a grammar."""

    def __init__(self, rules: Rules) -> None:
        """Raises GrammarError for a grammar that is too large."""
        self._rules = rules
        self._bounds = sorted({at for node in _all_chars(rules) for at in _edges(node)})
        self._regular = _regular_rules(rules)
        self._split: set[Node] = set()  # what must not be a lexeme
        self._masks: dict[Chars, int] = {}
        self._first: dict[str, int] = dict.fromkeys(rules, 0)
        self._nullable: dict[str, bool] = dict.fromkeys(rules, False)
        self._automata: dict[Node, _Automaton] = {}
        self._n_positions = 0
        self._fill_first()
        self._compared: dict[tuple[Node, Node], int] = {}
        while conflicts := self._conflicts():
            for node in conflicts:
                self._take_apart(node)

    def is_lexeme(self, node: Node) -> bool:
        """Whether a part of the grammar is matched as a whole."""
        if isinstance(node, Chars):
            return True
        return node not in self._split and self._is_regular(node)

    def _is_regular(self, node: Node) -> bool:
        match node:
            case Token():
                return False
            case Ref(rule):
                return rule in self._regular
        return all(map(self._is_regular, parts(node)))

    def inner(self, node: Node) -> tuple[Node, ...]:
        """The parts of a node that is no lexeme: of a sequence, its last item and what is before
        it, which most often is one."""
        if isinstance(node, Seq) and node in self._split and len(node.items) > 2:
            return Seq(node.items[:-1]), node.items[-1]
        return parts(node)

    def _take_apart(self, node: Node) -> None:
        self._split.add(node)
        if isinstance(node, Ref):
            self._take_apart(self._rules[node.rule])

    # --- what can begin and follow ---

    def _fill_first(self) -> None:
        changed = True
        while changed:
            changed = False
            for name, body in self._rules.items():
                found = self._first_of(body), self._is_nullable(body)
                if found != (self._first[name], self._nullable[name]):
                    self._first[name], self._nullable[name] = found
                    changed = True

    def _mask(self, node: Chars) -> int:
        mask = self._masks.get(node)
        if mask is None:
            mask = 0
            for i, start in enumerate(self._bounds):
                if any(low <= start <= high for low, high in node.ranges):
                    mask |= 1 << i
            self._masks[node] = mask
        return mask

    def _first_of(self, node: Node) -> int:
        """The characters that texts of a node can begin with; a token has none of them."""
        match node:
            case Chars():
                return self._mask(node)
            case Ref(rule):
                return self._first[rule]
            case Seq(items):
                found = 0
                for item in items:
                    found |= self._first_of(item)
                    if not self._is_nullable(item):
                        break
                return found
            case _:
                found = 0
                for each in parts(node):
                    found |= self._first_of(each)
                return found

    def _is_nullable(self, node: Node) -> bool:
        match node:
            case Chars() | Token():
                return False
            case Ref(rule):
                return self._nullable[rule]
            case Seq(items):
                return all(map(self._is_nullable, items))
            case Alt(options):
                return any(map(self._is_nullable, options))
            case Repeat(item, low):
                return low == 0 or self._is_nullable(item)

    def _follow(self) -> dict[Node, int]:
        """The characters that can follow each lexeme that the root reaches."""
        of_lexemes: dict[Node, int] = {}
        of_rules = {"root": 0}
        todo = ["root"]

        def walk(node: Node, follow: int) -> None:
            if self.is_lexeme(node):
                of_lexemes[node] = of_lexemes.get(node, 0) | follow
                return
            match node:
                case Ref(rule):
                    known = of_rules.get(rule)
                    if known is None or follow & ~known:
                        of_rules[rule] = follow | (known or 0)
                        todo.append(rule)
                case Seq():
                    for item in reversed(self.inner(node)):
                        walk(item, follow)
                        behind = follow if self._is_nullable(item) else 0
                        follow = self._first_of(item) | behind
                case Alt(options):
                    for option in options:
                        walk(option, follow)
                case Repeat(item, _, high):
                    walk(item, follow if high == 1 else follow | self._first_of(item))

        while todo:
            rule = todo.pop()
            walk(self._rules[rule], of_rules[rule])
        return of_lexemes

    # --- conflicts ---

    def _conflicts(self) -> set[Node]:
        """Lexemes that could swallow what another one, or they themselves, must leave."""
        follow = self._follow()
        found: set[Node] = set()
        for t, behind in follow.items():
            for u in follow:
                # A text of u can go on where one of t ends only if they begin alike.
                alike = behind and self._first_of(t) & self._first_of(u)
                if alike and not isinstance(u, Chars) and self._goes_on(t, u) & behind:
                    found.add(u)
        return found

    def _goes_on(self, t: Node, u: Node) -> int:
        """The characters c for which w is a text of t, and w c begins a text of u."""
        known = self._compared.get((t, u))
        if known is not None:
            return known
        a, b = self._automaton(t), self._automaton(u)
        todo = [(p, q) for p in a.first for q in b.first if a.sets[p] & b.sets[q]]
        seen, found = set(todo), 0
        while todo:
            p, q = todo.pop()
            if p in a.last:
                for after in b.following[q]:
                    found |= b.sets[after]
            for p2 in a.following[p]:
                for q2 in b.following[q]:
                    if (p2, q2) not in seen and a.sets[p2] & b.sets[q2]:
                        seen.add((p2, q2))
                        todo.append((p2, q2))
        self._compared[t, u] = found
        return found

    def _automaton(self, node: Node) -> _Automaton:
        made = self._automata.get(node)
        if made is None:
            made = self._automata[node] = _Automaton()
            _, made.first, made.last = self._positions(node, made)
        return made

    def _positions(self, node: Node, into: _Automaton) -> tuple[bool, set[int], set[int]]:
        """Add the positions of a node: whether it can be empty, its first and its last ones."""
        match node:
            case Chars():
                self._n_positions += 1
                if self._n_positions > _MOST_POSITIONS:
                    raise GrammarError(
                        f"the grammar is too large: its regular parts have more than"
                        f" {_MOST_POSITIONS} characters, with rules as often as they are used"
                    )
                into.sets.append(self._mask(node))
                into.following.append(set())
                position = {len(into.sets) - 1}
                return False, position, position
            case Ref(rule):
                return self._positions(self._rules[rule], into)
            case Seq(items):
                return self._sequence(items, into)
            case Repeat(item, low, high):
                nullable, first, last = self._positions(item, into)
                if high != 1:
                    for p in last:
                        into.following[p] |= first
                return nullable or low == 0, first, last
            case _:
                found = [self._positions(option, into) for option in parts(node)]
                first = set().union(*(f for _, f, _ in found))
                last = set().union(*(each for _, _, each in found))
                return any(nullable for nullable, _, _ in found), first, last

    def _sequence(
        self, items: tuple[Node, ...], into: _Automaton
    ) -> tuple[bool, set[int], set[int]]:
        all_nullable, first, last = True, set[int](), set[int]()
        for item in items:
            nullable, begins, ends = self._positions(item, into)
            for p in last:
                into.following[p] |= begins
            if all_nullable:
                first = first | begins
            last = last | ends if nullable else ends
            all_nullable = all_nullable and nullable
        return all_nullable, first, last


def _all_chars(rules: Rules) -> Iterator[Chars]:
    todo = list(rules.values())
    while todo:
        node = todo.pop()
        if isinstance(node, Chars):
            yield node
        todo += parts(node)


def _edges(node: Chars) -> Iterator[int]:
    """Where classes of characters begin."""
    for low, high in node.ranges:
        yield low
        yield high + 1


def _regular_rules(rules: Rules) -> set[str]:
    """Rules that name no tokens, and lead to no rule that leads to itself."""
    regular: set[str] = set()

    def is_regular(node: Node) -> bool:
        if isinstance(node, Ref):
            return node.rule in regular
        return not isinstance(node, Token) and all(map(is_regular, parts(node)))

    while added := {name for name, body in rules.items() if is_regular(body)} - regular:
        regular |= added
    return regular
