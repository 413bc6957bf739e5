"""Chat templates that would take all the time or memory: the system ends them, soon.

Most of their work is one call of a C function, or hides in how jinja2 compiles what they say.
"""

from __future__ import annotations

import re
import tracemalloc

import pytest

from ggmlpy.errors import TemplateError
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.template_process import Limits, TemplateProcess
from tests.unit.conversations import USER

PROCESS = TemplateProcess(Limits(cpu_s=0.03, max_bytes=2**29, max_text=2**20))
X = "{% set x = range(99999) | list %}"


def grown(step: str, first: str = "1") -> str:
    """ns.x after 60 steps, each of which doubles what it is as text or when it is compared."""
    loop = f"{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={first}) %}}{loop}"


TIME = {
    "find": "{{ ('a' * 8000000).rfind('ab' ~ 'a' * 4000000) }}",
    "sort": "{{ (['a' * 99999 ~ 'c', 'a' * 99999 ~ 'b'] * 99999) | sort | length }}",
    "unique": X + "{{ (x * 99) | unique | list | length }}",
    "in": "{{ ('a' * 99999 ~ 'b') in ['a' * 99999 ~ 'c'] * 9999999 }}",
    "compare lists": grown("[ns.x, ns.x]") + "{% set y = ns.x %}" + grown("[ns.x, ns.x]")
    + "{% if ns.x == y %}{% endif %}",
    "hash": grown("(ns.x, ns.x)") + "{{ {ns.x: 1} | length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(99) }}",
    "recursive loop": "{% for a in [0, 1] recursive %}{{ loop([0, 1]) if loop.depth < 99 }}"
    "{% endfor %}",
    "sum": "{{ ([[1] * 999] * 99999) | sum(start=[]) | length }}",
    "cycler": "{% set c = cycler(1, 2) %}" + X + "{% for i in x %}{% for j in x %}{{ c.next() }}"
    "{% endfor %}{% endfor %}",
    "tojson": grown("[ns.x, ns.x]") + "{{ ns.x | tojson }}",
    "split": "{{ ('a ' * 40000000).split() | length }}",
    "wordwrap": "{{ ('a ' * 999999) | wordwrap(1) | length }}",
    "urlize": "{{ ('www.' ~ 'a.com ' * 999999) | urlize | length }}",
    "striptags": "{{ ('<a>' * 9999999) | striptags | length }}",
    "slice": "{{ range(9) | slice(10 ** 9) | list }}",
}  # fmt: skip

MEMORY = {
    "repeat": "{{ 'a' * 10 ** 9 }}",
    "repeat a list": "{{ [[0] * 10 ** 5] * 10 ** 9 }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "% with a width": "{{ '%999999999d' % 1 }}",
    "% with any width": "{{ '%*d' % (2000000000, 1) }}",
    "format with any width": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "replace": "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
    "join": "{{ ('a' * 10 ** 6).join('b' * 99999) }}",
    "join filter": "{{ range(9999) | join('a' * 10 ** 6) }}",
    "tojson with an indent": "{{ [1] | tojson(indent=10 ** 10) }}",
    "batch": "{{ range(9) | batch(10 ** 10, 'x') | list }}",
    "capture": "{% macro m() %}{% for i in range(99999) %}" + "a" * 9999
    + "{% endfor %}{% endmacro %}{{ m() | length }}",
}  # fmt: skip

# Memory that fills in many small steps: which limit it meets first depends on the machine.
EITHER = {
    "formats": "{{ ('{0:99999}' * 100000).format(1) }}",
    "format_map": "{{ ('{a:99999}' * 100000).format_map({'a': 1}) }}",
    "% of a dict": "{{ ('%(a)s' * 10 ** 5) % {'a': 'b' * 10 ** 6} }}",
    "indent": "{{ ('a\n' * 10 ** 6) | indent(10 ** 6) }}",
    "doubling": grown("ns.x ~ ns.x"),
    "namespaces": grown("namespace(a=ns.x, b=ns.x)") + "{{ ns.x }}",
    "dict views": grown("{1: ns.x, 2: ns.x}.values()") + "{{ ns.x }}",
    "slices": "{% set ns = namespace() %}{% set a = 'a' * 10 ** 7 %}{% for i in range(99999) %}"
    "{% set ns.x = [ns.x, a[i:]] %}{% endfor %}",
    "nested tuples": "{% set ns = namespace() %}{% for i in range(99999) %}"
    "{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}" * 9,
    "joiner": "{% set j = joiner('a' * 99999) %}{% for i in range(99999) %}{{ j() }}{% endfor %}",
    "loop.cycle": "{% for i in range(99999) %}{{ loop.cycle('a' * 9999, 'b') }}{% endfor %}",
}

SOURCES = {
    "outputs": "{{a}}" * 50000,
    "sums": "{{ " + "1+" * 60000 + "1 }}",
    "attributes": "{{ a" + ".a" * 90000 + " }}",
    "constants": "{{ " + "'a' * 99999999 ~ " * 9 + "1 }}",
}

NESTED = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "not": "{{ " + "not " * 5000 + "1 }}",
    "lists": "{{ " + "[" * 50000 + "]" * 50000 + " }}",
    "if": "{% if a %}" * 9000 + "{% endif %}" * 9000,
    "sets": "{% set a %}" * 9000 + "{% endset %}" * 9000,
}


def refused(source: str, process: TemplateProcess = PROCESS) -> str:
    """The message that a template ends with; an ordinary one works after it as before."""
    with pytest.raises(TemplateError) as error:
        ChatTemplate(source, process=process).render([USER])
    ordinary = ChatTemplate("<{{ messages[0].content }}>", process=process)
    assert ordinary.render([USER]) == "<Hi there>"
    return str(error.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", TIME.values(), ids=TIME)
def test_endless_work_is_ended(source: str) -> None:
    assert refused(source) == "chat template: it takes more than 0.03 seconds of CPU time"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", MEMORY.values(), ids=MEMORY)
def test_too_much_memory_is_not_to_be_had(source: str) -> None:
    assert re.search("it needs more than 512 MB of memory|it takes more than", refused(source))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [*EITHER.values(), *SOURCES.values()], ids=[*EITHER, *SOURCES])
def test_what_grows_is_ended(source: str) -> None:
    assert re.search("it needs more than|it takes more than|its result has more", refused(source))


@pytest.mark.parametrize("source", NESTED.values(), ids=NESTED)
def test_deep_nesting_is_refused(source: str) -> None:
    assert "nests too deeply" in refused(source)


def test_long_templates_are_refused_unread() -> None:
    message = "chat template: it has 1,000,000 characters: must be at most 262,144"
    assert refused("{{a}}" * 200_000) == message


def test_long_texts_are_refused_unread() -> None:
    process = TemplateProcess(Limits(max_text=2**16))
    tracemalloc.start()
    try:
        message = refused("{{ messages[0].content * 2 ** 21 }}", process)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message == "chat template: its result has more than 65,536 bytes"
    assert peak < 2**20


def test_the_clock_ends_what_uses_no_cpu_time_of_its_own() -> None:
    process = TemplateProcess(Limits(cpu_s=3600, wall_s=0.01))
    with pytest.raises(TemplateError, match=r"it runs longer than 0.01 seconds"):
        process.run(TIME["power"], {})
