"""Names of repositories and of the GGUF files in them: which files `user/repo:Q4_K_M` means.

The rules are llama.cpp's: without a quantization Q4_K_M, else Q8_0, else the first model; files of
projectors, importance matrices and draft heads are no models; a split model is all its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError, MissingFile

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(r"[-.]([A-Z0-9_]+)$", re.IGNORECASE)
_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_DEFAULTS = ("Q4_K_M", "Q8_0")
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository, and the quantization that is wanted of it; None: the default."""

    id: str  # user/name
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> Repo:
        """Of `user/repo` or `user/repo:quant`. Raises ArgumentError."""
        name, colon, quant = text.partition(":")
        if not is_repo(name) or (colon and not quant):
            raise ArgumentError(
                f"{quoted(text)} is no repository: it must be user/repo, or user/repo:quant as in"
                " ggml-org/gemma-3-1b-it-GGUF:Q8_0"
            )
        return cls(name, quant or None)


def is_repo(name: str) -> bool:
    """Whether a name has the form user/repo."""
    return _REPO.fullmatch(name) is not None and not any(
        part.startswith((".", "-")) or part.endswith((".", "-")) for part in name.split("/")
    )


def is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")


def is_model(path: str) -> bool:
    """Whether a file of a repository is a model, by its name."""
    name = path.rpartition("/")[2]
    return is_gguf(name) and not any(word in name for word in _NO_MODELS)


def quant_of(path: str) -> str:
    """The quantization in a file's name, in capitals, "" where it names none."""
    split = _SPLIT.fullmatch(path)
    stem = split["stem"] if split else re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE)
    found = _QUANT.search(stem)
    return found[1].upper() if found else ""


def choose(repo: Repo, files: Iterable[str]) -> list[str]:
    """The files of the model that `repo` means, the first one first. Raises MissingFile."""
    found = list(files)
    firsts = [path for path in found if is_model(path) and _is_first(path)]
    for quant in (repo.quant,) if repo.quant else _DEFAULTS:
        pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
        for path in firsts:
            if pattern.search(path):
                return parts_of(path, found)
    if not firsts:
        raise MissingFile(f"{repo.id}: the repository has no GGUF model{_listed(found)}")
    if repo.quant:
        there = ", ".join(dict.fromkeys(quant_of(path) or path for path in firsts))
        raise MissingFile(
            f"{repo.id}: there is no model of quantization {quoted(repo.quant)}, there are {there}"
        )
    return parts_of(firsts[0], found)


def match(repo_id: str, pattern: str, files: Iterable[str]) -> list[str]:
    """The files of the model whose name or glob is `pattern`, which may be that of one part.

    Raises MissingFile unless that is one model.
    """
    found = list(files)
    hits = [pattern] if pattern in found else [f for f in found if fnmatchcase(f, pattern)]
    if not hits:
        raise MissingFile(f"{repo_id}: no file matches {quoted(pattern)}{_listed(found)}")
    models = {tuple(parts_of(path, found)) for path in hits}
    if len(models) > 1:
        raise MissingFile(
            f"{repo_id}: {len(models)} files match {quoted(pattern)}, it must be one"
            f"{_listed(hits, all_kinds=True)}"
        )
    return list(models.pop())


def parts_of(path: str, files: Iterable[str]) -> list[str]:
    """All parts of a split model, in their order; of another file itself.

    Raises MissingFile if one is not among `files`.
    """
    split = _SPLIT.fullmatch(path)
    if split is None:
        return [path]
    parts = split_names(path)
    absent = set(parts) - set(files)
    if absent:
        raise MissingFile(f"{min(absent)}: this part of a split model is not there")
    return parts


def split_names(path: str) -> list[str]:
    """The names of all parts of a split model, by that of any; of another file its own."""
    split = _SPLIT.fullmatch(path)
    if split is None:
        return [path]
    count = int(split["count"])
    return [f"{split['stem']}-{i:05}-of-{count:05}{path[-5:]}" for i in range(1, count + 1)]


def _is_first(path: str) -> bool:
    split = _SPLIT.fullmatch(path)
    return split is None or int(split["number"]) == 1


def _listed(files: Sequence[str], *, all_kinds: bool = False) -> str:
    """`; it has a.gguf, b.gguf`: its GGUF files, or else any."""
    shown = [path for path in files if all_kinds or is_gguf(path)] or list(files)
    if not shown:
        return ""
    more = f" and {len(shown) - _MOST_LISTED} others" if len(shown) > _MOST_LISTED else ""
    return f"; there are {', '.join(shown[:_MOST_LISTED])}{more}"
