"""What a server writes of its requests: a line each, to the logger "ggmlpy.server".

    2026-01-31 12:00:00 INFO POST /v1/completions 200 in 0.412 s, … id=6f1f…

Neither keys nor queries are in it, and prompts only where they are asked for.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from ggmlpy.common.quoting import printable
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.errors import FileError

logger = logging.getLogger("ggmlpy.server")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_FIELDS = "request"  # the attribute of a record that has them
_CLIENT_GONE = 499  # nginx' status of a request whose client did not wait
_MOST_FRAMES = 12  # of a traceback
_OTHERS = "uvicorn", "asyncio"  # whose warnings are in the log too
_MOST_WAITING = 10_000  # records, while a pipe or a disk takes none


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is complete."""

    model: str
    timings: AnswerTimings
    reason: str  # why it ended


def request_id(given: str) -> str:
    """The id that a client gives a request, or a new one where that is none that could stand in a
    log and in a header."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def id_headers(id: str) -> dict[str, str]:
    """The headers of an answer that tell its request's id, under OpenAI's and Anthropic's name."""
    return {"X-Request-Id": id, "Request-Id": id}


def log_request(
    id: str,
    method: str,
    path: str,
    status: int,
    spent_s: float,
    answers: Sequence[Answered],
    body: Mapping[str, Any] | None = None,
) -> None:
    """Log a request that has ended. `answers` are those that were complete; `body` is logged too,
    unless it is None."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "id": id,
        "method": method,
        "path": printable(path[:200]),
        "status": status,
        "duration_s": round(spent_s, 6),
    }
    if answers:
        timings = [each.timings for each in answers]
        fields |= {
            "model": answers[0].model,
            "answers": len(answers),
            "prompt_tokens": sum(each.n_prompt for each in timings),
            "cached_tokens": sum(each.n_reused for each in timings),
            "completion_tokens": sum(each.n_decoded for each in timings),
            "waited_s": round(max(each.waited_s for each in timings), 6),
            "prompt_s": round(max(each.prompt_s for each in timings), 6),
            "decode_s": round(max(each.decode_s for each in timings), 6),
        }
    if body:
        fields["body"] = dict(body)
    logger.info("%s", _line(fields), extra={_FIELDS: fields})


def _line(fields: Mapping[str, Any]) -> str:
    parts = [
        f"{fields['method']} {fields['path']} {fields['status']} in {fields['duration_s']:.3f} s"
    ]
    if fields["status"] == _CLIENT_GONE:
        parts.append("the client is gone")
    if "model" in fields:
        parts.append(
            f"{fields['prompt_tokens']} prompt tokens ({fields['cached_tokens']} cached),"
            f" {fields['completion_tokens']} tokens, waited {fields['waited_s']:.3f} s"
        )
    line = f"{', '.join(parts)} id={fields['id']}"
    if "body" in fields:
        line += f" body={json.dumps(fields['body'], ensure_ascii=True)}"
    return line


def raised(error: BaseException) -> str:
    """The type of an error and where it was raised, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    places = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in reversed(frames)]
    return f"{type(error).__name__} at {', called at '.join(places) or 'an unknown place'}"


class JsonLines(logging.Formatter):
    """A JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, _FIELDS, None)
        made |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info:
            made["error"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=True, default=str)


class _Queued(QueueHandler):
    """Hands records to the thread that writes them: the event loop does not wait for a terminal,
    nor for a disk. Records beyond `_MOST_WAITING` are lost, which is written once there is room."""

    def __init__(self) -> None:
        self.records: SimpleQueue[Any] = SimpleQueue()
        super().__init__(self.records)
        self._n_lost = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # as it is: the formatter of the other thread wants its fields

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.records.qsize() >= _MOST_WAITING:
            self._n_lost += 1
            return
        if self._n_lost:
            text, self._n_lost = f"{self._n_lost} lines of the log are lost", 0
            lost = logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None)
            super().enqueue(lost)
        super().enqueue(record)


class LogWriter(logging.StreamHandler[IO[str]]):
    """Writes records to a stream, and goes on where that fails, as on a full disk: the first
    failure is told on stderr, and later the log itself says that lines may be missing."""

    def __init__(self, stream: IO[str], name: str) -> None:
        """`name` is what stderr is told."""
        super().__init__(stream)
        self._name = name
        self._is_failing = False

    def emit(self, record: logging.LogRecord) -> None:
        failed, self._is_failing = self._is_failing, False
        super().emit(record)
        if failed and not self._is_failing:
            text = "lines before this one may be missing: they could not be written"
            super().emit(logging.LogRecord(logger.name, logging.WARNING, "", 0, text, None, None))
        elif self._is_failing and not failed:
            self._tell()

    def handleError(self, record: logging.LogRecord) -> None:
        self._error = sys.exception()
        if isinstance(self._error, OSError | ValueError):  # ValueError: the stream is closed
            self._is_failing = True
        else:
            super().handleError(record)

    def _tell(self) -> None:
        reason = getattr(self._error, "strerror", None) or self._error
        with suppress(OSError, ValueError):
            print(f"{self._name}: logs cannot be written: {reason}", file=sys.stderr, flush=True)


@contextmanager
def writing_logs(*, as_json: bool = False, file: Path | None = None) -> Iterator[None]:
    """What the package logs in the block is written to stderr, or behind what a file has. Raises
    FileError."""
    name = "stderr" if file is None else printable(str(file))
    try:
        stream = sys.stderr if file is None else file.open("a", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"{name}: logs cannot be written: {reason}") from None
    handler = LogWriter(stream, name)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    package, level = logging.getLogger("ggmlpy"), logger.level
    queued = _Queued()
    listener = QueueListener(queued.records, handler)
    listener.start()
    packages = [package, *map(logging.getLogger, _OTHERS)]
    for each in packages:
        each.addHandler(queued)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for each in packages:
            each.removeHandler(queued)
        logger.setLevel(level)
        listener.stop()
        handler.close()
        if file is not None:
            with suppress(OSError):  # what is left of lines that could not be written
                stream.close()
