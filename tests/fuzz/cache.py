"""Damaged files in the kernel cache: results stay what they are, compiled again where need be.

The compiler is not run: what is to be compiled is taken from a sound cache.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ggmlpy import compute, from_numpy, ops
from ggmlpy.backends.cpu import cache as cache_module
from ggmlpy.backends.cpu import compiling, threads
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.common import own_folder
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.tensor import Tensor
from tests.fuzz.case import Kind, Recipe, Wrong


class KernelCache(Kind):
    """One or a few files of a cache of eight objects are changed; then a graph is computed."""

    name = "cache"
    about = "damaged compiled objects: compiled again, with the same results"
    n_quick = 60
    share = 0.5
    parts = ("mutations",)
    _sound: dict[str, bytes]  # by file name
    _want: bytes

    def prepare(self, folder: Path) -> None:
        """Compute once, and note which objects that took."""
        sound = self._sound = {}
        get_all = cache_module.Cache.get_all

        def noting(self: cache_module.Cache, keys: Iterable[str]) -> dict[str, bytes]:
            found = get_all(self, keys)
            for path in map(self.path, found):
                sound[path.name] = path.read_bytes()
            return found

        self._want = _compute()  # in the cache from now on
        cache_module.Cache.get_all = noting  # type: ignore[method-assign]
        _forget_code()
        assert _compute() == self._want
        cache_module.Cache.get_all = get_all  # type: ignore[method-assign]

    def draw(self, rng: random.Random) -> Recipe:
        n = rng.choice((1, 1, 1, 2, 4))
        return {"mutations": [_draw(rng, len(self._sound)) for _ in range(n)]}

    def run(self, recipe: Recipe, folder: Path) -> None:
        objects = folder / "cpu"
        objects.mkdir()
        files = []
        for name, content in sorted(self._sound.items()):
            files.append(objects / name)
            files[-1].write_bytes(content)
        for mutation in recipe["mutations"]:
            _mutate(files, *mutation)
        own_folder._FOLDER = str(folder)
        _forget_code()
        with _compiler(self._sound):
            try:
                got = _compute()
            except GgmlpyError as error:  # a cache is never an error
                raise Wrong("refused", str(error)) from error
        if got != self._want:
            raise Wrong("result differs")


def _compute() -> bytes:
    x = from_numpy(np.linspace(-2, 3, 96, dtype=np.float32).reshape(3, 32))
    w = from_numpy(np.linspace(-1, 1, 32 * 8, dtype=np.float32).reshape(8, 32))
    y: Tensor = ops.silu(ops.mul_mat(w, ops.rms_norm(x, 1e-5)))
    return compute(y, backend=CpuBackend(1)).tobytes()


def _forget_code() -> None:
    shared_jit.cache_clear()
    threads._native.cache_clear()
    threads._forget()


@contextmanager
def _compiler(sound: dict[str, bytes]) -> Iterator[None]:
    """A compile process that has every object ready."""

    @contextmanager
    def worker(isa: Any) -> Iterator[Callable[[Any], bytes]]:
        yield lambda job: _code(sound[f"{job.key}.o"])

    real = compiling.worker
    compiling.worker = worker
    try:
        yield
    finally:
        compiling.worker = real


def _code(content: bytes) -> bytes:
    return cache_module._split(content)[1]


def _draw(rng: random.Random, n_files: int) -> list[Any]:
    i = rng.randrange(n_files)
    what = rng.choice((
        "flip", "flip", "cut", "empty", "swap", "rubbish", "sealed cut", "folder", "gone", "link",
        "unreadable", "append", "sealed append", "noise", "copy",
    ))  # fmt: skip
    if what == "flip":
        return [what, i, rng.randrange(20_000), rng.randrange(8)]
    if what in ("cut", "sealed cut", "append", "sealed append", "noise", "copy", "rubbish"):
        return [what, i, rng.choice((0, 1, 16, 47, 48, 49, 64, 100, 1000, 4000, 100_000))]
    if what in ("swap", "link", "copy"):
        return [what, i, rng.randrange(n_files)]
    return [what, i]


def _seal(file: Path, code: bytes) -> None:
    file.write_bytes(cache_module._start(file.stem, code) + code)


def _mutate(files: list[Path], what: str, i: int, at: int = 0, bit: int = 0) -> None:
    file = files[i % len(files)]
    if file.is_dir() or not file.exists():
        return
    content = bytearray(file.read_bytes()) if os.access(file, os.R_OK) else bytearray()
    code = bytearray(_code(bytes(content)))
    if what == "flip" and content:
        content[at % len(content)] ^= 1 << bit
        file.write_bytes(content)
    elif what == "cut":
        file.write_bytes(content[:at])
    elif what == "sealed cut":
        _seal(file, bytes(code[:at]))
    elif what == "append":
        file.write_bytes(content + bytes(at))
    elif what == "sealed append":
        _seal(file, bytes(code) + b"\xff" * at)
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "rubbish":
        _seal(file, random.Random(at).randbytes(at))
    elif what == "noise":
        file.write_bytes(random.Random(at).randbytes(at))
    elif what == "copy":
        other = files[at % len(files)]
        if other.is_file() and os.access(other, os.R_OK):  # an earlier mutation may have been there
            file.write_bytes(other.read_bytes())
    elif what == "unreadable":
        file.chmod(0)
    else:
        _replace(files, file, what, at)


def _replace(files: list[Path], file: Path, what: str, other: int) -> None:
    """Something else in its place."""
    target = files[other % len(files)]
    if what == "swap" and target.is_file() and target != file:
        a, b = file.read_bytes(), target.read_bytes()
        file.write_bytes(b)
        target.write_bytes(a)
        return
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(target if target != file else file.parent / "nothing")
