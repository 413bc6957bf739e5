"""Damaged GGUF files: opened, looked at, loaded and asked for two tokens."""

from __future__ import annotations

import contextlib
import io
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ggmlpy import Llama
from ggmlpy.cli import app
from ggmlpy.errors import GgmlpyError
from ggmlpy.gguf import GGUFFile, LazyArray
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.fuzz.gguf_base import NAMES, Source, sources
from tests.fuzz.gguf_damage import damage
from tests.fuzz.gguf_draw import Sound, draw_mutation
from tests.fuzz.kernels import load_kernels

_SMALL = 1 << 24  # a file of which all is read
_TEXTS = ("ab c", "Once upon a time\n\n", "1" * 500, "<s>é▁ 日本😀</s>", " " * 300, "a'll 12345 x",
          ["1", 20_000], ["a", 20_000], [" \n", 5000], ["é日", 5000])  # fmt: skip


@cache
def _sound(name: str) -> list[Sound]:
    return [Sound(source) for source in sources(name)]


class Gguf(Kind):
    """A sound tiny model with some mutations."""

    name = "gguf"
    about = "damaged model files: opened, inspected, loaded, two tokens written"
    n_quick = 900
    share = 6.0
    group = 16
    limits = Limits(cpu_s=5)
    parts = ("mutations",)

    def prepare(self, folder: Path) -> None:
        load_kernels()
        for name in NAMES:
            _sound(name)

    def draw(self, rng: random.Random) -> Recipe:
        name = rng.choice(NAMES)
        files = _sound(name)
        i = rng.randrange(len(files))
        n = rng.choice((1, 1, 1, 1, 2, 2, 3, 5))
        recipe: Recipe = {"base": name, "file": i}
        recipe["mutations"] = [draw_mutation(rng, files[i]) for _ in range(n)]
        recipe["n_ctx"] = rng.choice((0, 32, 64))
        recipe["text"] = rng.choice(_TEXTS)
        if rng.random() < 0.2:
            recipe["inspect"] = rng.choice(([], ["--tensors"], ["--json", "--tensors"]))
        return recipe

    def run(self, recipe: Recipe, folder: Path) -> None:
        path = write(recipe, folder)
        walk(path)
        if "inspect" in recipe:
            inspect(path, recipe["inspect"])
        load(path, recipe)

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        if "inspect" in recipe:
            yield {k: v for k, v in recipe.items() if k != "inspect"}
        yield recipe | {"text": "ab"}
        yield recipe | {"n_ctx": 32}
        yield recipe | {"base": "llama-small", "file": 0}


def write(recipe: Recipe, folder: Path) -> Path:
    """The files of the recipe; the path of the first."""
    files: list[Source] = sources(recipe["base"])
    for i, source in enumerate(files):
        mutations = recipe["mutations"] if i == recipe.get("file", 0) else []
        data, length = damage(source, mutations)
        path = folder / source.name
        path.write_bytes(data)
        if length > len(data):
            with path.open("r+b") as file:
                file.truncate(length)
    return folder / files[0].name


def walk(path: Path) -> None:
    """Look at everything that the file says and holds."""
    try:
        file = GGUFFile.open(path)
    except GgmlpyError as error:
        if not str(error).startswith(path.name.partition("-0")[0]):
            raise Wrong("file not named", str(error)) from error
        raise
    with file:
        for key, value in file.metadata.items():
            file.metadata.value_type(key)
            if isinstance(value, LazyArray):
                _elements(value, whole=path.stat().st_size < _SMALL)
        for tensor in file.tensors.values():
            with contextlib.suppress(GgmlpyError):  # of quantised types in the other byte order
                if len(tensor.data) != tensor.n_bytes:
                    raise Wrong("tensor's length", f"{tensor.name}: {len(tensor.data)} bytes")


def _elements(array: LazyArray, whole: bool) -> None:
    listed: list[Any] = array.tolist() if whole else list(array[:16])
    if whole and len(listed) != len(array):
        raise Wrong("array's length", f"{len(listed)} elements of {len(array)}")


def inspect(path: Path, options: list[str]) -> None:
    """`ggmlpy inspect` shows it, with nothing that would steer a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(["inspect", str(path), *options], prog_name="ggmlpy")
        except SystemExit as exit:
            if exit.code not in (0, 1):
                raise Wrong("exit status", f"inspect ended with {exit.code}") from None
            if exit.code == 1 and err.getvalue().count("\n") != 1:
                raise Wrong("lines on stderr", err.getvalue()) from None
    for c in set(out.getvalue() + err.getvalue()) - {"\n"}:
        if unicodedata.category(c) == "Cc":
            raise Wrong("control characters", f"inspect shows {c!r}")


def load(path: Path, recipe: Recipe) -> None:
    """Load it as a model and write two tokens."""
    with Llama(path, n_ctx=recipe["n_ctx"], n_threads=1, backend="cpu") as llm:
        llm.describe()
        text = recipe["text"]
        tokens = llm.tokenize(text if isinstance(text, str) else text[0] * text[1], special=True)
        result = llm(tokens[:20] or [0], max_tokens=2, temperature=0)
        if not isinstance(result["choices"][0]["text"], str):
            raise Wrong("no text", repr(result))
        if "chat" in recipe:
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=1)
