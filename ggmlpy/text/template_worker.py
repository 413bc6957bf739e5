"""The program that compiles and renders chat templates, in a process of its own.

A chat template comes out of a model file, so it is a stranger's program. jinja2's sandbox keeps it
from Python's internals and from changing what it is given. It bounds neither time nor memory, and
much of the work happens in C functions that Python cannot interrupt. So the operating system does:
past a limit this process ends, and `template_process.py` says why.

Requests come through stdin, answers leave through stdout: JSON after its length in 8 bytes.
The first rendering waits for the imports: only the standard library and jinja2, never ggmlpy.
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
    """jinja2 as Hugging Face sets it up for chat templates."""

    def __init__(self) -> None:
        extensions = [loopcontrols, _GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters["tojson"] = _to_json

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at the first look, where jinja2 lets a template see that there is something."""
        raise SecurityError(f"it may not use {attribute!r} of {type(obj).__name__}")


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks answers for training: here it is nothing."""

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
    """JSON as Hugging Face writes it: `<` and `&` stay as they are, and so does é."""
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    return Sandbox().from_string(source)


def _answer(request: bytes) -> dict[str, Any]:
    """The text that the template writes, or what is wrong and in which line of it."""
    try:
        source, variables = json.loads(request.decode("utf-8", "surrogatepass"))
        template = _compiled(source)
        return {"text": "" if variables is None else template.render(variables)}
    except MemoryError:
        raise
    except Exception as error:  # whatever a stranger's program makes jinja2 or Python raise
        what = str(error) or type(error).__name__
        if isinstance(error, RecursionError):
            what = "it calls itself or nests too deeply"
        return {"error": what, "line": _line(error)}


def _line(error: Exception) -> int | None:
    """The innermost line of the template: jinja2 puts its lines in place of the compiled code's."""
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
    """Bound memory, and in case that a template leaves the sandbox, what else it can do."""
    limits = {"AS": max_bytes, "CORE": 0, "FSIZE": 0, "NOFILE": 16}
    for name, limit in limits.items():
        # Windows has no such module, OpenBSD no AS, macOS has more mapped from the start.
        with suppress(ImportError, AttributeError, OSError, ValueError):
            import resource

            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))


def _limit_cpu_time(seconds: float) -> None:
    """The system ends the process after so much more CPU time; 0: no more limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    cpu_s, max_bytes = float(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on a terminal is for the parent
    _limit_process(max_bytes)
    gc.freeze()  # what is there now stays
    while head := sys.stdin.buffer.read(8):  # nothing: the parent has ended
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
        gc.collect()  # what one template leaves must not count for the next
