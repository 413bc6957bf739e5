"""One file over HTTP, which goes on where it was cut: in this process or in a later one.

What has arrived is kept as `NAME.incomplete` until the file is whole, whatever ends the process.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ggmlpy.common import progress
from ggmlpy.errors import DownloadError

Report = Callable[[int], None]  # how many bytes there are

_N_ATTEMPTS = 6  # that bring nothing, one after the other
_WAIT_S = 1.0  # after the first of them, then twice as long each time
_TIMEOUT_S = 20.0  # without any byte
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file comes from. `n_bytes` and `sha256` are None where the server does not say."""

    url: str
    name: str  # for messages
    n_bytes: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Http:
    """The HTTP library in use: a client, its exceptions, and what raises for a bad status."""

    client: Any
    errors: tuple[type[Exception], ...]
    check: Callable[[Any], None]


def size_text(n_bytes: int) -> str:
    """`4.1 GB`"""
    for unit, bytes_of_it in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= bytes_of_it:
            return f"{n_bytes / bytes_of_it:.1f} {unit}"
    return f"{n_bytes} bytes"


def transfer(source: Source, target: Path, partial: Path, http: Http) -> None:
    """Download `source` to `target`, by way of `partial`.

    Raises DownloadError, and for a status that ends it what `http.check` raises.
    """
    with _space_checked(source, partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as file:
            resumed = file.tell() > 0
            _check_space(source, partial.parent, file.tell())
            with _reported(source, file.tell()) as report:
                _fill(source, file, http, report)
        if resumed and source.sha256 is not None and _sha256(partial) != source.sha256:
            with partial.open("wb") as file, _reported(source, 0) as report:
                _fill(source, file, http, report)  # what was there before was damaged
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)


def _fill(source: Source, file: BinaryIO, http: Http, report: Report) -> None:
    """Download what `file` lacks. Raises DownloadError after too many attempts without a byte."""
    if source.n_bytes is not None and file.tell() > source.n_bytes:
        _empty(file)
    n_failed = 0
    while True:
        begin = file.tell()
        try:
            if begin == source.n_bytes:
                return
            is_whole = _stream(source, file, http, report)
            if file.tell() == source.n_bytes or (is_whole and source.n_bytes is None):
                return
            reason = "the connection was closed"
        except http.errors as error:
            response = getattr(error, "response", None)
            if response is None and isinstance(error, OSError):  # of the disk
                raise
            if response is not None and response.status_code not in _TRY_AGAIN:
                raise
            reason = str(error).strip() or type(error).__name__
        n_failed = 1 if file.tell() > begin else n_failed + 1
        if n_failed >= _N_ATTEMPTS:
            got = size_text(file.tell())
            raise DownloadError(
                f"{source.name}: the download stopped after {got}: {reason}; those are kept, and"
                " the next attempt goes on from there"
            )
        time.sleep(_WAIT_S * 2 ** (n_failed - 1))


def _stream(source: Source, file: BinaryIO, http: Http, report: Report) -> bool:
    """Append what the server sends to `file`; whether it has sent all."""
    begin = file.tell()
    headers = {**source.headers, "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    with http.client.stream(
        "GET", source.url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
    ) as response:
        if response.status_code == 416:  # more is there than the server has
            _empty(file)
            return False
        http.check(response)
        if begin and response.status_code != 206:  # the server sends all of it
            _empty(file)
        for chunk in response.iter_bytes():
            file.write(chunk)
            report(file.tell())
    file.flush()
    return True


def _empty(file: BinaryIO) -> None:
    file.truncate(0)
    file.seek(0)


@contextmanager
def _reported(source: Source, begin: int) -> Iterator[Report]:
    """Progress, to the listener if there is one, else as the hub's library shows it."""
    total = source.n_bytes
    if progress.is_heard() or total is None:
        what = f"downloading {source.name}"
        if total is not None:
            what += f", {size_text(total)}"
            progress.tell(what, begin / max(total, 1))
        yield lambda done: progress.tell(what, done / max(total, 1) if total else 0.0)
        return
    from huggingface_hub import utils

    bar_of: Any = utils.tqdm  # type: ignore[attr-defined]
    with bar_of(total=total, initial=begin, unit="B", unit_scale=True, desc=source.name) as bar:
        yield lambda done: bar.update(done - bar.n)


@contextmanager
def _space_checked(source: Source, partial: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        needs = "" if source.n_bytes is None else f": it has {size_text(source.n_bytes)}"
        raise DownloadError(
            f"{source.name}: the disk of {partial.parent} is full{needs}; what has arrived is kept"
        ) from None


def _check_space(source: Source, folder: Path, n_done: int) -> None:
    """Raise DownloadError before anything is sent if the rest cannot fit the disk."""
    if source.n_bytes is None:
        return
    free, left = shutil.disk_usage(folder).free, source.n_bytes - n_done
    if free < left:
        raise DownloadError(
            f"{source.name}: {size_text(left)} are to be downloaded, but the disk of {folder} has"
            f" only {size_text(free)} free (HF_HUB_CACHE names another folder)"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
