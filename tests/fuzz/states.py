"""Damaged saved states: loaded, or refused with nothing changed; states that cannot be saved."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import resource
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ggmlpy import Llama
from ggmlpy.errors import FileError, GgmlpyError
from ggmlpy.gguf import GGUFFile
from tests.fuzz import values
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.fuzz.models import with_convolutions, with_windows
from tests.models.tiny import Tiny, write_model

_PREFIX = struct.Struct("<13sIQ")
_DIGEST_BYTES = 32
_SMALL = Tiny(n_layer=2, n_embd=64, n_head=2, n_head_kv=1, n_ff=32, n_ctx=128)
_WINDOW = with_windows(_SMALL)
_STEPS = with_convolutions(_SMALL)
_SETUPS: dict[str, tuple[Tiny, dict[str, Any]]] = {
    "plain": (_SMALL, {}),
    "many": (_SMALL, {"n_seq_max": 3, "n_ctx": 96}),
    "unified": (_SMALL, {"n_seq_max": 3, "n_ctx": 64, "kv_unified": True}),
    "paged": (_SMALL, {"n_seq_max": 3, "n_ctx": 64, "kv_layout": "paged"}),
    "q8_0": (_SMALL, {"type_k": "q8_0", "type_v": "f32"}),
    "short": (_SMALL, {"n_ctx": 16}),
    "window": (_WINDOW, {"n_seq_max": 2, "n_ctx": 128}),
    "recurrent": (_STEPS, {"n_seq_max": 2, "n_ctx": 128}),
    # models that differ from the plain one: no state of theirs fits it, nor its them
    "other weights": (replace(_SMALL, seed=1), {}),
    "other base": (replace(_SMALL, freq_base=500.0), {}),
    "other eps": (replace(_SMALL, eps=0.1), {}),
    "other scaling": (replace(_SMALL, linear_factor=4.0), {}),
    "other bit": (_SMALL, {}),  # of one weight
}
_PROMPTS = ("Once upon a time there was", "a little dog", "b")
_HELD = "what was held"


@dataclass
class _Model:
    """A loaded model that holds something, and what it wrote before anything was loaded."""

    identity: tuple[str, Tiny]  # what its states belong to
    llm: Llama
    text: str
    saved: bytes


class States(Kind):
    """States of seven layouts, loaded into one another."""

    name = "states"
    about = "damaged saved states: loaded or refused, and nothing changed then"
    n_quick = 250
    group = 16
    limits = Limits(memory_mb=512)
    parts = ("mutations",)
    _models: dict[str, _Model]

    def prepare(self, folder: Path) -> None:
        self._models = {}
        for name, (weights, options) in _SETUPS.items():
            path = write_model(folder / f"{name}.gguf", weights)
            if name == "other bit":
                _change_a_weight(path)
            self._models[name] = _model(path, _identity(name), options)

    def draw(self, rng: random.Random) -> Recipe:
        if rng.random() < 0.05:
            return {"from": rng.choice(list(_SETUPS)), "most_bytes": rng.choice((0, 1, 100, 4096))}
        # Mostly of the same weights, else all are refused for that alone.
        source = rng.choice(list(_SETUPS))
        into = rng.choice([name for name in _SETUPS if _fits(source, name) or rng.random() < 0.2])
        recipe: Recipe = {"from": source, "into": into, "sealed": rng.random() < 0.9}
        data = self._models[source].saved
        n = rng.choice((0, 1, 1, 1, 1, 2, 3))
        recipe["mutations"] = [_draw(rng, data) for _ in range(n)]
        recipe["seq"] = rng.choice((None, None, 0, 1, 7))
        recipe["as_file"] = rng.random() < 0.3
        return recipe

    def run(self, recipe: Recipe, folder: Path) -> None:
        source = self._models[recipe["from"]]
        if "most_bytes" in recipe:
            _save(source, recipe["most_bytes"], folder)
            return
        into = self._models[recipe["into"]]
        data = damaged(source.saved, recipe["mutations"], recipe["sealed"])
        given: bytes | Path = data
        if recipe["as_file"]:
            given = folder / "some.state"
            given.write_bytes(data)
        _load(into, given, recipe["seq"])
        if source.identity != into.identity:
            raise Wrong("foreign state accepted", f"{recipe['from']} by {recipe['into']}")
        _use(into, sound=data == source.saved)

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        yield recipe | {"as_file": False}
        yield recipe | {"seq": None}
        yield recipe | {"from": "plain", "into": "plain"}


def _identity(name: str) -> tuple[str, Tiny]:
    return name if name.startswith("other") else "", _SETUPS[name][0]


def _fits(source: str, into: str) -> bool:
    return _identity(source) == _identity(into)


def _change_a_weight(path: Path) -> None:
    """One bit of the first element of the first tensor."""
    data = bytearray(path.read_bytes())
    with GGUFFile.open(path) as file:
        first = next(iter(file.tensors.values())).data[:64].tobytes()
    data[data.index(first) + 2] ^= 1
    path.write_bytes(data)


def _model(path: Path, identity: tuple[str, Tiny], options: dict[str, Any]) -> _Model:
    llm = Llama(path, backend="cpu", n_threads=1, **{"n_ctx": 64, **options})
    n = options.get("n_seq_max", 1)
    text = _write(llm)
    llm.reset()
    prompts = list(_PROMPTS[:n]) if options.get("n_ctx") != 16 else ["ab"]
    list(llm.generate(prompts, max_tokens=3, temperature=0))
    saved = llm.save_state().to_bytes()
    llm.reset()
    llm(_HELD[:8], max_tokens=1, temperature=0)
    return _Model(identity, llm, text, saved)


def _write(llm: Llama) -> str:
    return str(llm("abc", max_tokens=4, temperature=0)["choices"][0]["text"])


def _load(into: _Model, given: bytes | Path, seq: int | None) -> None:
    before = into.llm.save_state().to_bytes()
    try:
        into.llm.load_state(given, seq=seq)
    except GgmlpyError:
        if into.llm.save_state().to_bytes() != before:
            raise Wrong("changed by a refused state") from None
        raise


def _use(into: _Model, sound: bool) -> None:
    """Go on from what was loaded; and be as before after a reset."""
    llm = into.llm
    written = {}
    try:
        for seq, tokens in llm.held_tokens.items():
            most = llm.n_ctx_seq() - len(tokens)
            if most > 1:
                result = llm([*tokens, 70], max_tokens=min(2, most), temperature=0)
                written[seq] = ([*tokens, 70], result["choices"][0]["text"])
    except GgmlpyError:
        if sound:
            raise Wrong("sound state fails") from None
    llm.reset()
    if _write(llm) != into.text:
        raise Wrong("model changed for good", "it writes something else after a reset")
    for tokens, text in written.values() if sound else ():
        llm.reset()
        want = llm(tokens, max_tokens=min(2, llm.n_ctx_seq() - len(tokens) + 1), temperature=0)
        if want["choices"][0]["text"] != text and "q8_0" not in str(llm.describe()):
            raise Wrong(
                "text differs", f"{text!r} from a state, else {want['choices'][0]['text']!r}"
            )


def _save(source: _Model, most_bytes: int, folder: Path) -> None:
    """A file that cannot be written whole is not written, and what was there stays."""
    path = folder / "some.state"
    path.write_bytes(b"older")
    most_bytes = min(most_bytes, len(source.llm.save_state().to_bytes()) - 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    try:
        with contextlib.suppress(FileError):
            source.llm.save_state(path)
            raise Wrong("half a file written")
    finally:
        unlimited = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    if path.read_bytes() != b"older" or len(list(folder.iterdir())) > 1:
        raise Wrong("half a file left", str(list(folder.iterdir())))


# ---- mutations


def _split(data: bytes) -> tuple[dict[str, Any], bytearray]:
    _, _, n = _PREFIX.unpack_from(data)
    header = json.loads(data[_PREFIX.size : _PREFIX.size + n])
    return header, bytearray(data[_PREFIX.size + n : -_DIGEST_BYTES])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list
    ) else ()  # fmt: skip
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _draw(rng: random.Random, data: bytes) -> list[Any]:
    header, arrays = _split(data)
    what = rng.choice(("set", "set", "set", "drop", "copy", "fill", "fill", "flip", "cut", "add"))
    held = [path for path in _paths(header) if path[0] == "sequences"]
    paths = [list(path) for path in (held if rng.random() < 0.8 else _paths(header))]
    if what == "set":
        path = rng.choice(paths)
        return [what, path, _value_for(rng, header, path)]
    if what == "drop":
        return [what, rng.choice(paths)]
    if what == "copy":
        return [what, rng.choice(paths), rng.choice(paths)]
    if what == "fill":
        return [what, rng.randrange(max(len(arrays), 1)), rng.choice((1, 4, 64, 10**6)),
                rng.choice(("00", "ff", "0000c07f", "007e", "01"))]  # fmt: skip
    if what == "flip":
        return [what, rng.randrange(len(data)), rng.randrange(8)]
    if what == "cut":
        return [what, rng.randrange(len(data))]
    return [what, rng.choice((1, 32, 1000))]


def _value_for(rng: random.Random, header: dict[str, Any], path: list[Any]) -> Any:
    """A value like the one that is there, or anything."""
    old = _at(header, path)
    if rng.random() < 0.3:
        return values.anything(rng)
    if isinstance(old, str):
        return rng.choice(("f32", "f16", "q8_0", "q4_0", "q4_K", "i32", "iq1_s", values.text(rng)))
    if isinstance(old, int):
        near = (old + 1, old - 1, old * 2, old // 2, -old, 0)
        return rng.choice((*near, rng.choice(values.INTEGERS)))
    return values.anything(rng)


def damaged(data: bytes, mutations: list[list[Any]], sealed: bool) -> bytes:
    """The state after the mutations; `sealed` ones have the digest that belongs to them."""
    header, arrays = _split(data)
    whole: list[list[Any]] = []
    for name, *arguments in mutations:
        if name in ("flip", "cut", "add"):
            whole.append([name, *arguments])
        else:
            with contextlib.suppress(KeyError, IndexError, TypeError):
                _change(header, arrays, name, arguments)
    if not mutations:
        return data
    text = json.dumps(header).encode()
    _, version, _ = _PREFIX.unpack_from(data)
    body = bytearray(_PREFIX.pack(data[:13], version, len(text)) + text + arrays)
    for name, *arguments in whole:
        at = arguments[0]
        if name == "flip" and at < len(body):
            body[at] ^= 1 << arguments[1]
        elif name == "cut":
            del body[at:]
        elif name == "add":
            body += bytes(at)
    digest = hashlib.sha256(body).digest() if sealed else data[-_DIGEST_BYTES:]
    return bytes(body) + digest


def _change(header: dict[str, Any], arrays: bytearray, name: str, arguments: list[Any]) -> None:
    if name == "fill":
        at, n, digits = arguments
        n = min(n, len(arrays) - at)
        unit = bytes.fromhex(digits)
        if n > 0:
            arrays[at : at + n] = np.resize(np.frombuffer(unit, np.uint8), n).tobytes()
        return
    path = arguments[0]
    holder = _at(header, path[:-1])
    if name == "drop":
        del holder[path[-1]]
    elif name == "copy":
        holder[path[-1]] = copy.deepcopy(_at(header, arguments[1]))
    else:
        holder[path[-1]] = arguments[1]


def _at(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value
