"""Runs chat templates in a worker process, with limits on time and memory."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ggmlpy.common.limits import starting_threads
from ggmlpy.errors import TemplateError

_PROGRAM = "import sys; sys.path += sys.argv[3:]; from template_worker import main; main()"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one compilation or rendering; real templates take milliseconds.

    There is no limit on CPU time on Windows, where Ctrl-C waits for the answer or for `wall_s`, and
    one on memory only on Linux and BSD.
    """

    cpu_s: float = 10.0
    wall_s: float = 30.0
    max_bytes: int = 3 * 2**28  # of address space; Python itself takes 30 MB and more
    max_text: int = 2**24  # bytes of a result: more than any context holds
    max_source: int = 2**18  # characters of the template: real ones have fewer than 60,000


class TemplateProcess:
    """Runs a model's template in a worker process, which starts with the first request.

    A worker that reached a limit, died or was interrupted is replaced at the next request. It ends
    with this process. May be used from several threads, and in forked processes.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        if hasattr(os, "register_at_fork"):
            own = weakref.ref(self)  # callbacks cannot be unregistered
            os.register_at_fork(after_in_child=lambda: _leave_to_parent(own()))

    def run(self, source: str, variables: Mapping[str, Any] | None = None) -> str:
        """The rendered template; with `variables` None it is only compiled.

        Raises TemplateError, with the line of the template if there is one.
        """
        if len(source) > self.limits.max_source:
            must = f"must be at most {self.limits.max_source:,}"
            raise TemplateError(f"chat template: it has {len(source):,} characters: {must}")
        request = f"[{_as_json(source)}, {_variables_as_json(variables)}]"
        with self._lock:
            try:
                answer = self._ask(self._started(), request.encode("utf-8", "surrogatepass"))
            except BaseException:  # also KeyboardInterrupt: the answer would come later
                self._stop()
                raise
        match answer:
            case {"text": str(text)}:
                return text
            case {"error": str(what), "line": int() | None as line}:
                where = f", line {line}" if line else ""
                raise TemplateError(f"chat template{where}: {_one_line(what)}")
        raise TemplateError("chat template: its process sent an invalid answer")

    def _ask(self, worker: subprocess.Popen[bytes], request: bytes) -> object:
        assert worker.stdin is not None
        assert worker.stdout is not None
        began = time.monotonic()
        timer = threading.Timer(self.limits.wall_s, worker.kill)
        timer.daemon = True
        with starting_threads():
            timer.start()
        try:
            worker.stdin.write(len(request).to_bytes(8, "big") + request)
            worker.stdin.flush()
            n_bytes = int.from_bytes(worker.stdout.read(8), "big")
            if n_bytes > self.limits.max_text:
                most = f"{self.limits.max_text:,}"
                raise TemplateError(f"chat template: its result has more than {most} bytes")
            answer = worker.stdout.read(n_bytes)
        except OSError:  # it has ended
            answer = b""
        finally:
            timer.cancel()
        if answer and len(answer) == n_bytes:
            return _parsed(answer)
        worker.kill()  # it may only have closed its pipe
        cause = self._cause_of_death(worker.wait(), time.monotonic() - began)
        raise TemplateError(f"chat template: {cause}")

    def _cause_of_death(self, status: int, seconds: float) -> str:
        if status == errno.ENOMEM:
            return f"it needs more than {self.limits.max_bytes >> 20} MB of memory"
        if -status == getattr(signal, "SIGPROF", None):
            return f"it takes more than {self.limits.cpu_s:g} seconds of CPU time"
        if seconds >= self.limits.wall_s:
            return f"it runs longer than {self.limits.wall_s:g} seconds"
        return f"its process ended with status {status}"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self._stop()
        # -I and -S: imports come from these folders only, and site, through which packages can run
        # code at the start of every Python, is not imported.
        folders = [_folder("jinja2"), _folder("markupsafe"), str(Path(__file__).parent)]
        limits = [str(self.limits.cpu_s), str(self.limits.max_bytes)]
        try:
            worker = subprocess.Popen(
                [sys.executable or "python", "-I", "-S", "-c", _PROGRAM, *limits, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on a terminal must not reach the worker
            )
        except OSError as error:
            raise TemplateError(f"chat template: its process cannot be started: {error}") from None
        self._end = weakref.finalize(self, _end, worker)
        self._worker = worker
        return worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker = None
            self._end()


def _parsed(answer: bytes) -> object:
    """The JSON of an answer; None if it is not JSON, as from a template outside its sandbox."""
    try:
        return json.loads(answer.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _leave_to_parent(process: TemplateProcess | None) -> None:
    """In a forked child: replace the lock, which may be held, and drop the parent's worker."""
    if process is None:
        return
    process._lock = threading.Lock()
    if process._worker is not None:
        process._end.detach()
        process._worker.returncode = 0  # so that it is not waited for
        _close(process._worker)
        process._worker = None


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    _close(worker)
    worker.wait()


def _close(worker: subprocess.Popen[bytes]) -> None:
    """Close the pipes without flushing their buffers."""
    for pipe in (worker.stdin, worker.stdout):
        assert isinstance(pipe, io.BufferedReader | io.BufferedWriter)
        pipe.raw.close()


def _folder(package: str) -> str:
    """The folder or archive from which this process would import a package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise TemplateError(f"chat templates need {package}, which is not installed")
    return str(Path(spec.origin).absolute().parents[1])


def _variables_as_json(variables: Mapping[str, Any] | None) -> str:
    if variables is None:
        return "null"
    items = []
    for name, value in variables.items():
        try:
            items.append(f"{_as_json(name)}: {_as_json(value)}")
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"variable {name} of the chat template: {error}") from None
    return "{" + ", ".join(items) + "}"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_as_dict)


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _one_line(text: str) -> str:
    r"""Untrusted text on one line, cut if it is long, with control characters escaped."""
    text = " ".join(text[:500].split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
