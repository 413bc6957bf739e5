"""Chat templates, written by chance: rendered, or refused, in little time and memory."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ggmlpy.text import template_process
from ggmlpy.text.chat import ChatTemplate
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.unit.test_chat_formats import GEMMA, LLAMA_3, MISTRAL, ZEPHYR
from tests.unit.test_chat_limits import EITHER, MEMORY, SOURCES, TIME
from tests.unit.test_chat_refused import ESCAPES, MUTATIONS

_PROCESS_LIMITS = template_process.Limits(cpu_s=0.3)
_COUNTS = (0, 1, 2, 7, 30, 100, 1000, 10**4, 10**5, 10**6, 10**7, 10**9, 2**31, 2**63, -1)
_FILTERS = (
    "abs", "attr('a')", "batch(3)", "capitalize", "center(80)", "count", "d('x')", "default('y')",
    "dictsort", "e", "escape", "filesizeformat", "first", "float", "format(1)", "groupby('role')",
    "indent(4)", "int", "items", "join(',')", "last", "length", "list", "lower", "map('upper')",
    "map(attribute='role')", "max", "min", "pprint", "random", "reject('none')",
    "rejectattr('role')", "replace('a', 'bb')", "reverse", "round", "safe", "select",
    "selectattr('role', 'equalto', 'user')", "slice(3)", "sort", "string", "striptags", "sum",
    "title", "tojson", "tojson(indent=2)", "trim", "truncate(9)", "unique", "upper", "urlencode",
    "urlize", "wordcount", "wordwrap(3)", "xmlattr",
)  # fmt: skip
_METHODS = (
    "capitalize()", "casefold()", "center(9)", "count('a')", "encode()", "endswith('a')",
    "expandtabs(9)", "find('ab')", "format(1, a=2)", "format_map({'a': 1})", "index('a')",
    "isalnum()", "join(['a', 'b'])", "ljust(9)", "lower()", "lstrip()", "maketrans({})",
    "partition('a')", "removeprefix('a')", "replace('a', 'aa')", "rfind('ab')", "rjust(9)",
    "rpartition('a')", "rsplit('a')", "split('a')", "split()", "splitlines()", "startswith('a')",
    "strip()", "swapcase()", "title()", "translate({97: 'bb'})", "upper()", "zfill(9)", "items()",
    "keys()", "values()", "get('role')", "append(1)", "pop()", "sort()", "copy()", "__class__",
    "update({})", "bit_length()", "to_bytes(9, 'big')", "as_integer_ratio()", "hex()", "real",
)  # fmt: skip
_TESTS = (
    "defined", "none", "string", "mapping", "sequence", "iterable", "odd", "even", "number",
    "divisibleby(3)", "equalto(x)", "in(x)", "lower", "sameas(x)", "callable", "gt(1)", "filter",
)  # fmt: skip
_ATOMS = (
    "x", "y", "ns.x", "ns", "messages", "messages[0]", "messages[0].content", "loop", "loop.index",
    "bos_token", "tools", "undefined", "none", "true", "'a'", "'é\\n'", "''", "[]", "{}", "1",
    "0", "-1", "2.5", "range(9)", "namespace(x=1)", "dict(a=1)", "cycler('a', 'b')", "joiner(',')",
    "strftime_now('%Y')", "raise_exception('no')", "self", "caller", "varargs", "m", "'%s'", "'{}'",
    "'{0:9}'", "'%(a)s'", "1e308", "10 ** 20", "lipsum()", "(1, 2)",
)  # fmt: skip
_GROWING = (
    "{% set x = x ~ x %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set ns.x = {1: ns.x, 2: ns.x}.values() %}",
    "{% set ns.x = namespace(a=ns.x, b=ns.x) %}",
)
_WHOLE = (
    *(source for table in (TIME, MEMORY, EITHER, SOURCES) for source in table.values()),
    *ESCAPES, *MUTATIONS, *_GROWING, LLAMA_3, GEMMA, MISTRAL, ZEPHYR,
)  # fmt: skip


class Templates(Kind):
    """Statements and expressions, with numbers large enough to hurt."""

    name = "templates"
    about = "chat templates: rendered or refused, with little time and memory"
    n_quick = 120
    group = 8
    limits = Limits(memory_mb=1024, cpu_s=5, wall_s=60.0)
    parts = ("source",)

    def prepare(self, folder: Path) -> None:
        self._process = template_process.TemplateProcess(_PROCESS_LIMITS)

    def draw(self, rng: random.Random) -> Recipe:
        if rng.random() < 0.1:
            source = [_damaged(rng, rng.choice(_WHOLE))]
        else:
            source = [
                "{% set ns = namespace(x='a') %}{% set x = 'ab' %}{% set y = [1, 'b'] %}"
                "{% macro m(x) %}({{ x }}){% endmacro %}",
                "{% macro c() %}[{{ caller() }}]{% endmacro %}",
            ]
            source += [_statement(rng, 2) for _ in range(rng.randint(1, 5))]
        recipe: Recipe = {"source": source, "messages": _messages(rng)}
        if rng.random() < 0.2:
            recipe["extra"] = {"tools": [{"name": "f", "arguments": {"a": [1, None]}}]}
        return recipe

    def run(self, recipe: Recipe, folder: Path) -> None:
        messages = recipe["messages"]
        before = copy.deepcopy(messages)
        source = "".join(map(_expanded, recipe["source"]))
        try:
            text = ChatTemplate(source, "<s>", "</s>", self._process).render(
                messages, **recipe.get("extra", {})
            )
        finally:
            if messages != before:
                raise Wrong("messages changed", repr(messages)[:200])
        if not isinstance(text, str) or len(text) > _PROCESS_LIMITS.max_text:
            raise Wrong("result", f"{type(text).__name__} of {len(text)}")


def _expanded(part: str | list[Any]) -> str:
    """A part of a source; a list is a text and how often it is repeated."""
    return part if isinstance(part, str) else str(part[0]) * int(part[1])


def _messages(rng: random.Random) -> list[dict[str, Any]]:
    contents = ("Hello", "", "a\nb", "{{ x }}", "é😀", "a" * 1000, "<|im_end|>")
    roles = ("user", "assistant", "system", "user", "tool")
    return [
        {"role": rng.choice(roles), "content": rng.choice(contents)}
        for _ in range(rng.randint(1, 4))
    ]


def _damaged(rng: random.Random, source: str) -> str:
    """The source with a stretch left out, doubled, or moved."""
    i, j = sorted(rng.randrange(len(source) + 1) for _ in range(2))
    j = min(j, i + 20)
    return rng.choice((source, source[:i] + source[j:], source[:j] + source[i:], source[i:]))


def _count(rng: random.Random) -> str:
    return str(rng.choice(_COUNTS))


def _expression(rng: random.Random, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(_ATOMS)

    def inner() -> str:
        return _expression(rng, depth - 1)

    forms: tuple[Callable[[], str], ...] = (
        lambda: f"({inner()} * {_count(rng)})",
        lambda: f"({inner()} {rng.choice(('+', '-', '*', '/', '//', '%', '**', '~'))} {inner()})",
        lambda: (
            f"({inner()} {rng.choice(('==', '!=', '<', '>=', 'in', 'not in', 'and', 'or'))}"
            f" {inner()})"
        ),
        lambda: f"({inner()}) | {rng.choice(_FILTERS)}",
        lambda: f"({inner()}).{rng.choice(_METHODS)}",
        lambda: f"({inner()})[{rng.choice(('0', '-1', ':', '1:', ':-1', '::2', _count(rng)))}]",
        lambda: f"({inner()} is {rng.choice(_TESTS)})",
        lambda: f"({inner()} if {inner()} else {inner()})",
        lambda: f"[{inner()}, {inner()}]",
        lambda: "{" + f"{rng.choice(('1', inner()))}: {inner()}" + "}",
        lambda: f"range({_count(rng)})",
        lambda: (
            f"('a' * {_count(rng)} + 'b').{rng.choice(('find', 'rfind', 'count', 'split'))}"
            f"('a' * {_count(rng)} + 'c')"
        ),
        lambda: f"m({inner()})",
    )
    return rng.choice(forms)()


def _size(rng: random.Random) -> str:
    """A number that is mostly not too large."""
    return str(rng.choice((0, 1, 2, 3, 9, 30, 30, 300, 5000, 10**5, 10**6, *_COUNTS)))


def _text(rng: random.Random, depth: int) -> str:
    """An expression that gives a text, if it gives anything."""
    if depth <= 0:
        return rng.choice(("x", "ns.x", "'ab'", "'a\\n'", "messages[0].content", "bos_token"))

    def text() -> str:
        return _text(rng, depth - 1)

    forms: tuple[Callable[[], str], ...] = (
        lambda: f"({text()} * {_size(rng)})",
        lambda: f"({text()} ~ {_any(rng, depth - 1)})",
        lambda: f"({text()} + {text()})",
        lambda: f"{text()}.{rng.choice(('upper()', 'strip()', 'title()', 'lower()'))}",
        lambda: f"{text()}.replace({text()}, {text()})",
        lambda: f"({_any(rng, depth - 1)} | string)",
        lambda: f"({_any(rng, depth - 1)} | tojson)",
        lambda: f"({_list(rng, depth - 1)} | join({text()}))",
        lambda: f"({text()} | {rng.choice(('e', 'indent(4)', 'trim', 'urlencode', 'reverse'))})",
        lambda: f"{text()}[{rng.choice(('1:', ':-1', '::2', '::-1', '0'))}]",
        lambda: f"({text()} if {_bool(rng, depth - 1)} else {text()})",
        lambda: f"('%s%s' % ({text()}, {text()}))",
        lambda: "'{0}{1}'" + f".format({text()}, {_any(rng, depth - 1)})",
    )
    return rng.choice(forms)()


def _list(rng: random.Random, depth: int) -> str:
    if depth <= 0:
        return rng.choice(("y", "messages", "[]", "[1, 2]", "(range(9) | list)", "['b', 'a']"))

    def listed() -> str:
        return _list(rng, depth - 1)

    forms: tuple[Callable[[], str], ...] = (
        lambda: f"(range({_size(rng)}) | list)",
        lambda: f"[{_any(rng, depth - 1)}, {_any(rng, depth - 1)}]",
        lambda: f"{_text(rng, depth - 1)}.{rng.choice(('split()', 'splitlines()'))}",
        lambda: f"{_text(rng, depth - 1)}.split({_text(rng, depth - 1)})",
        lambda: f"({listed()} + {listed()})",
        lambda: f"({listed()} * {_size(rng)})",
        lambda: f"({listed()} | map('string') | {rng.choice(('sort', 'unique', 'list'))} | list)",
        lambda: f"({listed()} | select('string') | list)",
        lambda: f"{listed()}[{rng.choice(('1:', ':-1', '::2'))}]",
        lambda: f"({_text(rng, depth - 1)} | list)",
        lambda: "({'a': " + _any(rng, depth - 1) + "}.items() | list)",
    )
    return rng.choice(forms)()


def _number(rng: random.Random, depth: int) -> str:
    forms: tuple[Callable[[], str], ...] = (
        lambda: _size(rng),
        lambda: f"({_list(rng, depth - 1)} | length)",
        lambda: (
            f"{_text(rng, depth - 1)}.{rng.choice(('find', 'rfind', 'count'))}("
            f"{_text(rng, depth - 1)})"
        ),
        lambda: f"({_size(rng)} {rng.choice(('+', '*', '-', '//', '**', '%'))} {_size(rng)})",
    )
    return rng.choice(forms)()


def _bool(rng: random.Random, depth: int) -> str:
    compared = rng.choice((_text, _list, _number))
    forms: tuple[Callable[[], str], ...] = (
        lambda: (
            f"({compared(rng, depth - 1)} {rng.choice(('==', '!=', '<', '>='))}"
            f" {compared(rng, depth - 1)})"
        ),
        lambda: f"({_text(rng, depth - 1)} in {_text(rng, depth - 1)})",
        lambda: f"({_any(rng, depth - 1)} in {_list(rng, depth - 1)})",
        lambda: f"({_any(rng, depth - 1)} is {rng.choice(_TESTS[:6])})",
    )
    return rng.choice(forms)()


def _any(rng: random.Random, depth: int) -> str:
    return rng.choice((_text, _text, _list, _number, _bool))(rng, depth)


def _statement(rng: random.Random, depth: int) -> str:
    def value() -> str:
        depth = rng.choice((1, 1, 2, 3))
        return _any(rng, depth) if rng.random() < 0.75 else _expression(rng, depth)

    def body() -> str:
        return "".join(_statement(rng, depth - 1) for _ in range(rng.randint(1, 2)))

    if rng.random() < 0.02:
        return (
            "{%- " + rng.choice(("break", "continue", "generation", "endfor", "raw", "")) + " -%}"
        )
    if depth <= 0 or rng.random() < 0.3:
        return rng.choice((
            "{{ " + value() + " }}",
            "{% set x = " + _text(rng, 2) + " %}",
            "{% set y = " + _list(rng, 2) + " %}",
            "{% set ns.x = " + value() + " %}",
            rng.choice(_GROWING),
            "text\n",
            "{# a comment #}",
        ))  # fmt: skip
    over = rng.choice(("messages", "range(3)", "y", "ns.x", value(), f"range({_count(rng)})"))
    return rng.choice((
        "{% for y in " + over + " %}" + body() + "{% endfor %}",
        "{% for i in range(30) %}" + body() + "{% endfor %}",
        "{% if " + value() + " %}" + body() + "{% else %}" + body() + "{% endif %}",
        "{% macro m(x) %}" + body() + "{% endmacro %}{{ m(" + value() + ") }}",
        "{% set x %}" + body() + "{% endset %}",
        "{% filter " + rng.choice(_FILTERS) + " %}" + body() + "{% endfilter %}",
        "{% call c() %}" + body() + "{% endcall %}",
        "{% with x = " + value() + " %}" + body() + "{% endwith %}",
    ))  # fmt: skip
