"""Jinja for chat templates: what Hugging Face provides to them, and limits on what they may do.

A chat template comes out of a model file, so it is a stranger's program. jinja2's sandbox keeps it
from Python's internals, from changing what it is given, and from ranges over 100,000. It bounds
neither time nor memory: a few nested loops run for years, a text doubled 40 times fits no machine.
So here every turn of a loop, every call, filter and test looks at the clock, what is written is
counted, and values are measured wherever they could grow by a factor.

Loops, literals and `~` are no calls in the code that jinja2 compiles: `_Limits` changes them in
the syntax tree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, do_join
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ggmlpy.template_limits import (
    Refused,
    bounded,
    check_format,
    check_indent,
    check_join,
    check_operator,
    check_replace,
    check_text,
    depth,
    limits,
    measured,
    size,
    tick,
    written,
)

# Left out of jinja2's own: what pads, wraps or repeats by a number, and what is for web pages.
_FILTERS = (
    "abs attr capitalize count d default dictsort e escape first float groupby int items last "
    "length list lower map max min reject rejectattr reverse safe select selectattr sort string "
    "title trim unique upper urlencode wordcount"
)

_STR_METHODS = (
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal "
    "isdigit islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix "
    "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip "
    "swapcase title upper"
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are compiled and rendered in."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=written,
        )
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        known: dict[str, Callable[..., Any]] = {name: FILTERS[name] for name in _FILTERS.split()}
        known |= {"tojson": _to_json, "indent": _indent, "join": _join, "replace": _replace}
        self.filters = {name: _limited(function) for name, function in known.items()}
        self.tests = {name: _limited(cast(Any, test)) for name, test in self.tests.items()}
        self.tick = tick
        self.measured = measured

    def compile_limited(self, source: str) -> jinja2.Template:
        """The template with its limits built in."""
        with limits():
            return self.from_string(_Limits().visit(self.parse(source)))

    @staticmethod
    def concatenated(*values: Any) -> str:
        """What `~` gives."""
        return "".join(map(str, check_join("", values)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of text only the methods that chat templates use, of numbers and bytes none."""
        if isinstance(obj, str) and attr not in _STR_METHODS.split():
            return False
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at the first look, where jinja2 lets a template see that there is something."""
        raise SecurityError(f"it may not use {attribute!r} of {type(obj).__name__}")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        tick()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            if method.__name__ == "replace" and len(args) >= 2:
                check_replace(text, args[0], args[1])
            elif method.__name__ == "join" and args:
                args = (check_join(text, args[0]), *args[1:])
            elif method.__name__ == "format":
                check_format(text, (args, kwargs))
        return bounded(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Limits(NodeTransformer):
    """Puts the clock and the measure where jinja2 compiles to plain Python."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        constants = node.find_all((nodes.TemplateData, nodes.Const))
        n_chars = sum(len(c.as_const()) for c in constants if isinstance(c.as_const(), str))
        tick_ = _call("tick", [nodes.Const(n_chars)], node)
        node.body.insert(0, nodes.ExprStmt(tick_, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node)

    def _literal(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if is_target else _call("measured", [node], node)

    visit_List = visit_Dict = visit_Tuple = _literal


def _call(name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    """A call of the environment's own method, which a template cannot replace."""
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(function, args, [], None, None, lineno=at.lineno)


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks answers for training: here it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip()
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test with a look at the clock before it and at the size of its result."""

    @functools.wraps(function)  # also copies the marks of functions that want the context
    def limited(*args: Any, **kwargs: Any) -> Any:
        tick()
        return bounded(function(*args, **kwargs))

    return limited


def _raise_exception(message: object) -> None:
    raise Refused(f"it does not accept the conversation: {message}")


def _strftime_now(format: str) -> str:
    check_format(format, ())
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face writes it: `<` and `&` stay as they are, and so does é."""
    n_values = size(value)
    check_text(n_values * (1 + sum(map(len, separators or ()))))
    check_indent(indent or 0, n_values * depth(value))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check_indent(width, text.count("\n"))
    return do_indent(text, width, first, blank)


def _replace(text: object, old: str, new: str, count: int | None = None) -> str:
    check_replace(str(text), old, new)
    return str(text).replace(old, new, -1 if count is None else count)


@pass_eval_context
def _join(
    context: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None
) -> str:
    separator = str(d)
    return str(do_join(context, check_join(separator, value), separator, attribute))
