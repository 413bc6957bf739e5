"""Chat templates that are wrong, or mean harm: a TemplateError, soon, and nothing reached."""

from __future__ import annotations

import re

import pytest

from ggmlpy import template_limits
from ggmlpy.chat import ChatTemplate
from ggmlpy.errors import GgmlpyError, TemplateError
from tests.unit.conversations import USER


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n{% if %}", 2),
        ("a\n\n{{ x", 3),
        ("{% for m in messages %}\n", 1),
        ("{{ 1 | no_such_filter }}", 1),
        ("\n{% generation %}", 2),
    ],
)
def test_syntax_errors_name_the_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"chat template, line {line}: "):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ nothing.here }}", "line 2: 'nothing' is undefined"),
        ("\n\n{{ 1 / 0 }}", "line 3: division by zero"),
        ("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}", "line 2: "),
        ("{{ [1] | tojson(indent='x' * 101) }}", "line 1: it indents by 101"),
        ("{% include 'other' %}", "line 1: "),
        ("{{ raise_exception('no') }}", "line 1: it does not accept the conversation: no"),
        ("{{ nothing | tojson }}", "line 1: .*not JSON serializable"),
    ],
)
def test_errors_while_rendering_name_the_line(source: str, message: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(TemplateError, match=message) as error:
        template.render([USER])
    assert isinstance(error.value, GgmlpyError)


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'].x }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ (''|attr('__class__')).x }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': 1}) }}",
    "{{ [''] | map(attribute='__class__.x') | list }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.x }}",
    "{{ strftime_now.__code__ }}",
    "{% import 'os' as os %}",
]

MUTATIONS = [
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].pop('role') }}",
    "{% set messages[0].role = 'x' %}",
]

TOO_LARGE = [
    "{{ range(100001) | list }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * 'a' }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ [[0] * 10 ** 5] * 10 ** 5 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ 'a'.rjust(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a'.zfill(10 ** 9) }}",
    "{{ '\t'.expandtabs(10 ** 9) }}",
    "{{ 'a'.translate({97: 'b' * 10 ** 6}) }}",
    "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "{{ 'a'.encode().ljust(10 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6) | replace('a', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6).join(range(99999)) }}",
    "{{ range(99999) | join('a' * 10 ** 6) }}",
    "{{ ('a\n' * 10 ** 6) | indent(10 ** 6) }}",
    "{{ ('a\n' * 10 ** 6) | indent('b' * 10 ** 6) }}",
    "{{ [1] | tojson(indent=10 ** 9) }}",
    "{{ range(99999) | list | tojson(separators=('a' * 10 ** 6, ':')) }}",
    "{% set ns = namespace(x=range(9999) | list) %}{% for i in range(30) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=100) }}",
    "{{ range(99999) | join(['a' * 10 ** 6]) }}",
    "{{ ('{0}' * 10 ** 5).format('a' * 10 ** 6) }}",
    "{{ ('%(a)s' * 10 ** 5) % {'a': 'b' * 10 ** 6} }}",
    "{{ ('\n' * 10 ** 7) | indent(100, blank=true) }}",
    "{{ lipsum(10 ** 9) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ 1 | round(10 ** 9, 'ceil') }}",
    "{{ range(9) | batch(10 ** 9, 'x') | list }}",
    "{{ range(9) | slice(10 ** 9) | list }}",
]

DOUBLINGS = [
    "{% set ns.x = ns.x + ns.x %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% set ns.x = [ns.x, ns.x] | join %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
    "{% set ns.x = (ns.x, ns.x) %}",
    "{% set ns.x = dict(a=ns.x, b=ns.x) %}{{ ns.x }}",
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
    "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
    "{% set ns.x = '{0}{0}'.format(ns.x) %}",
    "{% set ns.x = twice(ns.x) %}",
    "{% set ns.x = ns.x.replace('a', 'aa') %}",
]

ENDLESS = [
    "{% set x = range(99999) | list %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    "{% for a in range(99999) %}{% set x = range(99999) | list | length %}{% endfor %}",
    "{{ ([range(99999)] * 99999) | map('list') | map('length') | list }}",
    "{% set x = range(99999) | list %}"
    "{{ ([x] * 99) | map('select', 'in', x) | map('list') | list }}",
    "{% for a in [0, 1] recursive %}{{ loop([0, 1]) if loop.depth < 99 }}{% endfor %}",
]


def refused(source: str) -> str:
    """The message with which a template is refused, be it while compiling or rendering."""
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(TemplateError) as error:
        ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "a"}]
    return str(error.value)


@pytest.mark.parametrize("source", ESCAPES + MUTATIONS)
def test_python_is_out_of_reach(source: str) -> None:
    refused(source)


LIMITS = (
    "text of more than|integer of more than|Range too big|it may not use|width that is too large|"
    "it indents by|No filter named|'lipsum' is undefined"
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", TOO_LARGE)
def test_what_would_be_too_large_is_not_made(source: str) -> None:
    assert re.search(LIMITS, refused(source))


@pytest.mark.parametrize("step", DOUBLINGS)
def test_growth_by_doubling_is_refused(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    macro = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"
    source = "{% set ns = namespace(x='a') %}{% for i in range(60) %}" + step + "{% endfor %}"
    assert "text of more than 65,536 characters" in refused(macro + source)


@pytest.mark.parametrize(
    "source", ["{% set x = ('&' * 30000) | e %}", "{% set x = '{!a}'.format('é' * 30000) %}"]
)
def test_results_of_filters_and_calls_are_measured(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    assert "text of more than 65,536 characters" in refused(source)


def test_much_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    message = refused("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}")
    assert "text of more than 65,536 characters" in message


@pytest.mark.parametrize("body", ["{{ 'a' * 999 }}", "{{ '" + "a" * 999 + "' }}", "a" * 999])
def test_much_captured_output_is_refused(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_WRITTEN", 2**20)
    loop = "{% for i in range(2000) %}" + body + "{% endfor %}"
    for source in (
        "{% set x %}" + loop + "{% endset %}",
        "{% macro m() %}" + loop + "{% endmacro %}{{ m() | length }}",
        "{% filter length %}" + loop + "{% endfilter %}",
    ):
        assert "it writes more than 1,048,576 characters" in refused(source)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", ENDLESS)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "TIME_LIMIT_S", 0.2)
    assert "it runs longer than 0.2 seconds" in refused(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "not " * 5000 + "1 }}",
    ],
)
def test_deep_nesting_is_refused(source: str) -> None:
    assert "too deeply" in refused(source)
