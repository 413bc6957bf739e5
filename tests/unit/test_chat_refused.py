"""Chat templates that are wrong or reach for Python: a TemplateError with the template's line."""

from __future__ import annotations

import pytest

from ggmlpy.errors import GgmlpyError, TemplateError
from ggmlpy.text.chat import ChatTemplate
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
        ("{{ range(100001) }}", "line 1: Range too big"),
        ("{% include 'other' %}", "line 1: "),
        ("{{ raise_exception('no') }}", "line 1: it does not accept the conversation: no"),
        ("{{ nothing | tojson }}", "line 1: .*not JSON serializable"),
        ("{{ raise_exception('a\n b\x1b[2J\ud800') }}", r"conversation: a b\\x1b\[2J\\ud800$"),
        ("\n{{ raise_exception('ab' * 10000) }}", "^chat template, line 2: .{400,500}$"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "line 1: .* nests too deeply"),
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
    "{{ messages.extend([1]) }}",
    "{{ messages.insert(0, 1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].pop('role') }}",
    "{% set messages[0].role = 'x' %}",
]


@pytest.mark.parametrize("source", ESCAPES + MUTATIONS)
def test_python_is_out_of_reach(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template, line 1: "):
        ChatTemplate(source).render([USER])
