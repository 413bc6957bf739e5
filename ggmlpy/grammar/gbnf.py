"""GBNF, llama.cpp's notation of grammars, to a tree.

    rule        name ::= options                      its start is the rule root
    options     sequence | sequence | …               an empty one is the empty text
    item        "text"  [a-z]  [^a-z]  .  name  (options)  <token>  <[id]>  !<token>
    repetition  item* item+ item? item{m} item{m,} item{m,n}

A rule ends with its line; the next line belongs to it behind | and ::=, and within parentheses.
"""

from __future__ import annotations

import string
from typing import NoReturn

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import GrammarError
from ggmlpy.grammar.nodes import Chars, Node, Ref, Repeat, Rules, Seq, Token, alt, chars, seq

_NAME = frozenset(string.ascii_letters + string.digits + "-_")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{c: c for c in '\\"[]-'}}
_HEX = {"x": 2, "u": 4, "U": 8}
_MOST = 0x10FFFF
_ANY = chars([], negated=True)
_MOST_DEEP = 200  # parentheses in one another


def parse_gbnf(text: str) -> Rules:
    """The rules of a grammar. Raises GrammarError, which says where."""
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._used: dict[str, int] = {}  # names of rules, and where they are first used

    def rules(self) -> Rules:
        rules: Rules = {}
        self._space(lines=True)
        while self._at < len(self._text):
            name = self._name()
            self._space()
            self._expect("::=")
            self._space(lines=True)
            rules[name] = self._options(nested=False)
            if self._at < len(self._text) and self._peek() not in "\r\n":
                self._fail("expected an item, | or the end of the line")
            self._space(lines=True)
        if "root" not in rules:
            raise GrammarError('the grammar has no rule "root", where it would start')
        for name, at in self._used.items():
            if name not in rules:
                self._at = at
                self._fail(f"there is no rule {quoted(name)}")
        return rules

    def _options(self, *, nested: bool) -> Node:
        options = [self._sequence(nested=nested)]
        while self._peek() == "|":
            self._at += 1
            self._space(lines=True)
            options.append(self._sequence(nested=nested))
        return alt(options)

    def _sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        while True:
            character = self._peek()
            if character and character in "*+?{":
                if not items:
                    self._fail(f"{character} has nothing before it to repeat")
                items[-1] = self._repeated(items[-1], nested=nested)
            elif (item := self._item(character)) is not None:
                items.append(item)
            else:
                return seq(items)
            self._space(lines=nested)

    def _item(self, character: str) -> Node | None:
        """An item that begins with `character`; None if none does."""
        if character == '"':
            return self._literal()
        if character == "[":
            return self._class()
        if character and character in "<!":
            return self._token()
        if character == "(":
            return self._group()
        if character == ".":
            self._at += 1
            return _ANY
        if character in _NAME:
            at = self._at
            name = self._name()
            self._used.setdefault(name, at)
            return Ref(name)
        return None

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > _MOST_DEEP:
            self._fail(f"more than {_MOST_DEEP} parentheses are open")
        self._at += 1
        self._space(lines=True)
        node = self._options(nested=True)
        self._expect(")")
        self._depth -= 1
        return node

    def _literal(self) -> Node:
        self._at += 1
        found: list[Node] = []
        while self._peek() != '"':
            code = self._character()
            found.append(Chars(((code, code),)))
        self._at += 1
        return seq(found)

    def _class(self) -> Node:
        start = self._at
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while self._peek() != "]":
            low = high = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character()
                if high < low:
                    self._fail("a range must not end before it begins")
            ranges.append((low, high))
        self._at += 1
        made = chars(ranges, negated=negated)
        if not ranges or not made.ranges:
            self._at = start
            self._fail("the class has no characters")
        return made

    def _token(self) -> Node:
        negated = self._peek() == "!"
        self._at += negated
        start = self._at
        self._expect("<")
        if self._peek() == "[":
            self._at += 1
            id = self._number()
            self._expect("]>")
            return Token(id, negated)
        end = self._text.find(">", self._at)
        if end < 0:
            self._fail("expected > at the end of the token")
        self._at = end + 1
        return Token(self._text[start : self._at], negated)

    def _repeated(self, item: Node, *, nested: bool) -> Node:
        sign = self._peek()
        self._at += 1
        if sign != "{":
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            return Repeat(item, low, high)
        self._space(lines=nested)
        least = self._number()
        most: int | None = least
        self._space(lines=nested)
        if self._peek() == ",":
            self._at += 1
            self._space(lines=nested)
            most = self._number() if self._peek() in string.digits[:10] and self._peek() else None
            self._space(lines=nested)
        if most is not None and most < least:
            self._fail(f"expected a number of at least {least}")
        self._expect("}")
        return Seq(()) if most == 0 else Repeat(item, least, most)

    # --- characters ---

    def _peek(self) -> str:
        """The next character; "" at the end."""
        return self._text[self._at : self._at + 1]

    def _space(self, *, lines: bool = False) -> None:
        """Skip spaces and comments, with `lines` line breaks too."""
        while (character := self._peek()) and character in (" \t#\r\n" if lines else " \t#"):
            if character == "#":
                while self._peek() and self._peek() not in "\r\n":
                    self._at += 1
            else:
                self._at += 1

    def _name(self) -> str:
        start = self._at
        while self._peek() and self._peek() in _NAME:
            self._at += 1
        if self._at == start:
            self._fail("expected the name of a rule")
        return self._text[start : self._at]

    def _number(self) -> int:
        start = self._at
        while self._peek() and self._peek() in string.digits:
            self._at += 1
        if not start < self._at <= start + 9:
            self._fail("expected a number below 1,000,000,000")
        return int(self._text[start : self._at])

    def _character(self) -> int:
        """A code point of a text or class."""
        character = self._peek()
        if not character:
            self._fail("expected a character, not the end of the grammar")
        self._at += 1
        if character != "\\":
            return ord(character)
        kind = self._peek()
        if kind in _ESCAPES and kind:
            self._at += 1
            return ord(_ESCAPES[kind])
        n = _HEX.get(kind)
        if n is None:
            self._at -= 1
            self._fail("unknown escape")
        self._at += 1
        digits = self._text[self._at : self._at + n]
        if len(digits) < n or not all(digit in string.hexdigits for digit in digits):
            self._fail(f"expected {n} hexadecimal digits")
        self._at += n
        if int(digits, 16) > _MOST:
            self._fail(f"expected a code point of at most {_MOST:X}")
        return int(digits, 16)

    def _expect(self, sign: str) -> None:
        if not self._text.startswith(sign, self._at):
            self._fail(f"expected {sign}")
        self._at += len(sign)

    def _fail(self, what: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        start = self._text.rfind("\n", 0, self._at) + 1
        rest = self._text[self._at :].splitlines()[:1] or [""]
        where = f"line {line}, column {self._at - start + 1}"
        raise GrammarError(f"the grammar, {where}: {what}, at {quoted(rest[0])}")
