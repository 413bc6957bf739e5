"""The model of a repository, or of a URL, as a local path."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ggmlpy.common.own_folder import default_folder
from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import ArgumentError, DownloadError, MissingFile
from ggmlpy.hub.client import Hub, http_of, library
from ggmlpy.hub.names import Repo, choose, match, split_names
from ggmlpy.hub.transfer import Source, transfer

_HUB_URL = re.compile(
    r"/(?P<repo>[^/]+/[^/]+)/(?:resolve|blob|raw)/(?P<revision>[^/]+)/(?P<path>.+)"
)
_HUB_HOSTS = ("huggingface.co", "hf.co")


def model_of_repo(
    repo: str,
    file: str | None = None,
    *,
    more_files: Sequence[str] = (),
    token: str | None = None,
    revision: str | None = None,
    local_dir: str | PathLike[str] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    offline: bool = False,
) -> Path:
    """The local path of a repository's model, of a split one that of its first part.

    repo        `user/repo`, or `user/repo:quant`; without a quantization Q4_K_M is taken, else
                Q8_0, else the first model
    file        the file's name in the repository, or a glob that matches one model
    more_files  names or globs of others to download, into the same folder

    Raises ArgumentError for what is no repository, MissingFile for what it does not have,
    DownloadError, and MissingPackage without huggingface_hub.
    """
    wanted = Repo.parse(repo)
    if file is not None and wanted.quant is not None:
        raise ArgumentError(f"{quoted(repo)} names a quantization, and {quoted(file)} a file")
    hub = Hub(token=token, revision=revision, cache_dir=cache_dir, offline=offline)
    there = hub.files(wanted.id)
    parts = choose(wanted, there) if file is None else match(wanted.id, file, there)
    others = [path for pattern in more_files for path in match(wanted.id, pattern, there)]
    paths = [hub.fetch(wanted.id, path, local_dir) for path in parts]
    for path in others:
        hub.fetch(wanted.id, path, local_dir)
    return paths[0]


def model_of_url(url: str, *, token: str | None = None, offline: bool = False) -> Path:
    """The local path of the model at a URL; of a split model, of its first part.

    A hub's URL gives the file in the hub's cache; others are kept in the package's own cache.
    Raises ArgumentError, MissingFile, DownloadError and MissingPackage.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.endswith("/"):
        raise ArgumentError(f"{quoted(url)} is no URL of a file: it must be http(s)://…/NAME.gguf")
    found = _HUB_URL.fullmatch(parts.path)
    if parts.hostname in _HUB_HOSTS and found is not None:
        hub = Hub(token=token, revision=unquote(found["revision"]), offline=offline)
        names = split_names(unquote(found["path"]))
        paths = [hub.fetch(found["repo"], name) for name in names]
        return paths[0]
    names = split_names(parts.path)
    urls = [urlunsplit(parts._replace(path=name)) for name in names]
    folder = default_folder() / "models" / hashlib.sha256(urls[0].encode()).hexdigest()[:16]
    paths = [_of_plain_url(each, folder, offline) for each in urls]
    return paths[0]


def _of_plain_url(url: str, folder: Path, offline: bool) -> Path:
    name = Path(unquote(urlsplit(url).path)).name
    target, noted = folder / name, folder / f"{name}.etag"
    shown = printable(name)
    if offline:
        if target.is_file():
            return target
        raise MissingFile(
            f"{shown}: it was not downloaded before, and --offline allows no download"
        )
    http = http_of(library())
    try:
        answer = http.client.head(url, follow_redirects=True, timeout=20)
        if answer.status_code in (404, 410):
            raise MissingFile(f"{shown}: there is no such file at {printable(url)}")
        if answer.status_code >= 400 and answer.status_code not in (405, 501):
            raise DownloadError(f"{printable(url)}: the server answers {answer.status_code}")
        source, etag = _described(url, shown, answer)
        if target.is_file() and etag and noted.is_file() and noted.read_text("utf-8") == etag:
            return target
        partial = folder / f"{name}.{hashlib.sha256(etag.encode()).hexdigest()[:16]}.incomplete"
        if not etag:  # nothing tells whether what is there belongs to the same file
            partial.unlink(missing_ok=True)
        transfer(source, target, partial, replace(http, check=_check))
        noted.write_text(etag, encoding="utf-8")
    except http.errors as error:
        if isinstance(error, DownloadError | MissingFile):
            raise
        if target.is_file():
            warnings.warn(f"{shown}: {error}: the copy in the cache is used", stacklevel=2)
            return target
        raise DownloadError(f"{printable(url)}: {error}") from None
    return target


def _described(url: str, name: str, answer: Any) -> tuple[Source, str]:
    headers = answer.headers
    etag = headers.get("ETag") or headers.get("Last-Modified") or ""
    length = headers.get("Content-Length", "")
    n_bytes = int(length) if length.isdecimal() and answer.status_code < 400 else None
    return Source(url, name, n_bytes), etag


def _check(response: Any) -> None:
    response.raise_for_status()
