"""What a hub has and what its cache holds, through the package huggingface_hub.

Its errors become ours. The cache is the one that the package keeps, so that other programs find
the files too; $HF_ENDPOINT, $HF_TOKEN, $HF_HUB_CACHE and $HF_HUB_OFFLINE are those of the package.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import DownloadError, MissingFile, MissingPackage
from ggmlpy.hub.transfer import Http, Source, transfer

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMEOUT_S = 10.0
_TRUE = ("1", "ON", "YES", "TRUE")
_LOGIN = "give a token by --hf-token, token=… or $HF_TOKEN, or run `hf auth login`"


def library() -> Any:
    """The package huggingface_hub. Raises MissingPackage."""
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.file_download
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingPackage(
            "downloading needs the package huggingface_hub, version 1 or later:"
            f" pip install 'ggmlpy[hub]' ({error})"
        ) from None
    return huggingface_hub


def http_of(library: Any) -> Http:
    """The client that the package uses, and its exceptions."""
    errors = library.errors.HfHubHTTPError.__bases__  # of the HTTP package, and OSError
    return Http(library.utils.get_session(), errors, library.utils.hf_raise_for_status)


class Hub:
    """A hub, as far as a token opens it. With `offline` only its cache is used."""

    def __init__(
        self,
        *,
        token: str | None = None,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        offline: bool = False,
    ) -> None:
        """Raises MissingPackage."""
        self._hub = library()
        self._token = token or None
        self._revision = revision or "main"
        self._cache_dir = Path(cache_dir or self._hub.constants.HF_HUB_CACHE).expanduser()
        self._offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
        self._endpoint = os.environ.get("HF_ENDPOINT") or self._hub.constants.ENDPOINT

    def files(self, repo: str) -> list[str]:
        """The paths of a repository's files: as the hub lists them, or the cached ones.

        Raises MissingFile if there is no such repository, DownloadError.
        """
        if self._offline:
            return self._cached_files(repo, "and --offline allows no download")
        try:
            with self._translated(repo):
                return self._listed(repo)
        except _Unreachable as error:
            try:
                cached = self._cached_files(repo, str(error))
            except MissingFile:
                raise DownloadError(f"{repo}: {error}, and the cache has no copy") from None
            warnings.warn(f"{repo}: {error}: the copy in the cache is used", stacklevel=2)
            self._offline = True
            return cached

    def fetch(self, repo: str, path: str, local_dir: str | os.PathLike[str] | None = None) -> Path:
        """The local path of a repository's file, downloaded unless the cache has its newest one.

        With `local_dir` it is put there. Raises MissingFile, DownloadError.
        """
        where = None if local_dir is None else Path(local_dir).expanduser()
        try:
            with self._translated(repo, path):
                if not self._offline and where is None:
                    self._to_cache(repo, path)
                found = self._hub.hf_hub_download(
                    repo,
                    path,
                    revision=self._revision,
                    token=self._token,
                    endpoint=self._endpoint,
                    cache_dir=self._cache_dir,
                    local_dir=where,
                    local_files_only=self._offline,
                )
                return Path(found)
        except _Unreachable as error:
            raise DownloadError(f"{repo}: {printable(path)}: {error}") from None

    def _listed(self, repo: str) -> list[str]:
        """The hub's list. The package's own function asks for 20 s if there is no connection."""
        revision = quote(self._revision, safe="")
        url = f"{self._endpoint}/api/models/{repo}/tree/{revision}?recursive=true"
        headers = self._hub.utils.build_hf_headers(token=self._token)
        http = http_of(self._hub)
        found: list[str] = []
        while url:  # a page at a time
            page = http.client.get(url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True)
            http.check(page)
            found += [entry["path"] for entry in page.json() if entry["type"] == "file"]
            url = page.links.get("next", {}).get("url", "")
        return found

    def _to_cache(self, repo: str, path: str) -> None:
        """Put a file's content where the package looks for it, unless it is there."""
        hub = self._hub
        revision, endpoint = self._revision, self._endpoint
        url = hub.hf_hub_url(repo, path, revision=revision, endpoint=endpoint)
        about = hub.get_hf_file_metadata(url, token=self._token, endpoint=endpoint)
        if not about.etag or not about.commit_hash or not re.fullmatch(r"[\w.-]+", about.etag):
            return  # the package says what is wrong
        folder = hub.file_download.repo_folder_name(repo_id=repo, repo_type="model")
        blob = self._cache_dir / folder / "blobs" / about.etag
        lock = self._cache_dir / ".locks" / folder / f"{about.etag}.lock"
        if blob.exists():
            return
        from filelock import FileLock

        source = Source(
            url=hub.hf_hub_url(repo, path, revision=about.commit_hash, endpoint=endpoint),
            name=printable(path.rpartition("/")[2]),
            n_bytes=about.size,
            sha256=about.etag if _SHA256.fullmatch(about.etag) else None,
            headers=hub.utils.build_hf_headers(token=self._token),
        )
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):  # another process may download the same
            if not blob.exists():
                transfer(source, blob, blob.with_name(f"{blob.name}.incomplete"), http_of(hub))

    def _cached_files(self, repo: str, why: str) -> list[str]:
        name = self._hub.file_download.repo_folder_name(repo_id=repo, repo_type="model")
        folder = self._cache_dir / name
        ref = folder / "refs" / self._revision
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else self._revision
        snapshot = folder / "snapshots" / commit
        found = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
        if not found:
            raise MissingFile(f"{repo}: the cache in {self._cache_dir} has no copy of it, {why}")
        return [path.relative_to(snapshot).as_posix() for path in found]

    @contextmanager
    def _translated(self, repo: str, path: str | None = None) -> Iterator[None]:
        """Turn the package's exceptions into ours."""
        errors = self._hub.errors
        at = repo if path is None else f"{repo}: {printable(path)}"
        page = f"{self._endpoint}/{repo}"
        try:
            yield
        except (DownloadError, MissingFile):
            raise
        except errors.GatedRepoError as error:
            raise DownloadError(
                f"{at}: access to this repository is granted at {page}, to those who accept its"
                f" terms; then {_LOGIN}{_status(error)}"
            ) from None
        except errors.RepositoryNotFoundError as error:
            raise MissingFile(
                f"{at}: there is no such repository at {self._endpoint}, or it is private: check"
                f" its name, or {_LOGIN}{_status(error)}"
            ) from None
        except errors.RevisionNotFoundError:
            raise MissingFile(f"{at}: the repository has no revision {self._revision!r}") from None
        except errors.LocalEntryNotFoundError as error:
            if self._offline:
                raise MissingFile(
                    f"{at}: the cache in {self._cache_dir} does not have this file, and --offline"
                    " allows no download"
                ) from None
            raise _Unreachable(_reason(error.__cause__ or error)) from None
        except errors.EntryNotFoundError:
            raise MissingFile(f"{at}: the repository has no such file") from None
        except errors.HFValidationError as error:
            raise MissingFile(f"{quoted(repo)} is no repository: {_reason(error)}") from None
        except errors.HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if status in (401, 403):
                raise DownloadError(
                    f"{at}: the hub refuses access{_status(error)}: {_LOGIN} that may read it"
                ) from None
            if status == 429 or status >= 500:
                raise _Unreachable(f"the hub answers with status {status}") from None
            raise DownloadError(f"{at}: {_reason(error)}") from None
        except errors.HfHubHTTPError.__bases__ as error:
            if isinstance(error, OSError) and error.errno is not None:
                what = printable(str(error.filename or self._cache_dir))
                raise DownloadError(f"{at}: {what} cannot be written: {error.strerror}") from None
            raise _Unreachable(
                f"the hub at {self._endpoint} cannot be reached ({_reason(error)})"
            ) from None


class _Unreachable(Exception):
    """No answer, or one that says to try later: the cache may help."""


def _status(error: Any) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return "" if code is None else f" (status {code})"


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0]) if lines else type(error).__name__
