"""The program that compiles and renders chat templates, in a process of its own.

A chat template comes from a model file, so it is untrusted code. jinja2's sandbox denies it access
to Python's internals, and of its variables, which are copies, it can change lists only. The sandbox
limits neither time nor memory, and much of the work happens in C functions that Python cannot
interrupt. The limits are therefore the operating system's: beyond one this process ends, and
`template_process.py` reports why.

Requests come through stdin, and answers go to stdout: JSON after its length in 8 bytes. The first
request waits for imports, so only the standard library and jinja2 are imported, never ggmlpy.
"""

from __future__ import annotations

import errno
import functools
import gc
import json
import os
import signal
import sys
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import Template, TemplateRuntimeError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2 in Hugging Face's configuration for chat templates, but with lists that can change, as
    in llama.cpp: Kimi K2's template keeps the ids of calls in one."""

    def __init__(self) -> None:
        extensions = [loopcontrols, _GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters["tojson"] = _to_json

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(
            obj, attr, value
        )

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise on the first access; jinja2 would return an undefined value."""
        raise SecurityError(f"it may not use {attribute!r} of {type(obj).__name__}")


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks answers for training; ignored here."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip()
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRuntimeError(f"it does not accept the conversation: {message}")


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face writes it: `<`, `&` and é are not escaped."""
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    return Sandbox().from_string(source)


def _answer(request: bytes) -> dict[str, Any]:
    """The rendered text, or the error and the line of the template."""
    try:
        source, variables = json.loads(request.decode("utf-8", "surrogatepass"))
        template = _compiled(source)
        return {"text": "" if variables is None else template.render(variables)}
    except MemoryError:
        raise
    except Exception as error:  # untrusted code can make jinja2 or Python raise anything
        what = str(error) or type(error).__name__
        if isinstance(error, RecursionError):
            what = "it calls itself or nests too deeply"
        return {"error": what, "line": _line(error)}


def _line(error: Exception) -> int | None:
    """The innermost line of the template, which jinja2 writes into the traceback."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _limit_process(max_bytes: int) -> None:
    """Limit memory, and also files, in case a template escapes from the sandbox."""
    limits = {"AS": max_bytes, "CORE": 0, "FSIZE": 0, "NOFILE": 16}
    for name, limit in limits.items():
        # Windows has no such module, OpenBSD no AS, and macOS maps more from the start.
        with suppress(ImportError, AttributeError, OSError, ValueError):
            import resource

            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))


def _limit_cpu_time(seconds: float) -> None:
    """Let the system end the process after `seconds` of CPU time; 0: remove the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    cpu_s, max_bytes = float(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on a terminal is for the parent
    _limit_process(max_bytes)
    gc.freeze()  # objects that stay
    while head := sys.stdin.buffer.read(8):  # empty: the parent has ended
        try:
            request = sys.stdin.buffer.read(int.from_bytes(head, "big"))
            _limit_cpu_time(cpu_s)
            answer = json.dumps(_answer(request), ensure_ascii=False)
            data = answer.encode("utf-8", "surrogatepass")
        except MemoryError:
            os._exit(errno.ENOMEM)
        _limit_cpu_time(0)
        sys.stdout.buffer.write(len(data).to_bytes(8, "big") + data)
        sys.stdout.buffer.flush()
        del request, answer, data
        gc.collect()  # garbage of this request must not count for the next
