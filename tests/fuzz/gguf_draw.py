"""Drawing mutations of GGUF files, as `gguf_damage` does them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz import values
from tests.fuzz.gguf_base import Source, type_ids
from tests.fuzz.gguf_damage import Mutation, text_of
from tests.fuzz.gguf_fields import fields
from tests.gguf_builder import VALUE_TYPES

_NUMBERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 96, 100, 128, 256, 1000)
_KNOWN = (  # keys that bases lack; {} is the architecture
    "general.alignment", "general.file_type", "{}.rope.scaling.type", "{}.rope.scaling.factor",
    "{}.rope.scaling.attn_factor", "{}.rope.scaling.original_context_length",
    "{}.rope.freq_scale", "{}.rope.dimension_sections", "{}.attention.sliding_window",
    "{}.attention.sliding_window_pattern", "{}.attention.key_length", "{}.attention.value_length",
    "{}.attention.scale", "{}.final_logit_softcapping", "{}.attn_logit_softcapping",
    "{}.vocab_size", "{}.expert_count", "{}.expert_used_count", "{}.expert_weights_scale",
    "{}.logit_scale", "{}.shortconv.l_cache", "{}.rope.freq_base_swa", "split.no", "split.count",
    "split.tensors.count", "tokenizer.chat_template", "tokenizer.ggml.pre",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type", "tokenizer.ggml.scores", "tokenizer.ggml.normalizer.lowercase",
)  # fmt: skip
_CHOICES = {  # values that make sense where these stand in a key
    "tokenizer.ggml.model": ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "none", "no_vocab"),
    "tokenizer.ggml.pre": (
        "default", "gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-llm", "falcon",
        "superbpe", "afmoe", "lfm2", "smollm", "bloom", "chatglm-bpe", "gemma4", "kimi-k2",
    ),
    "scaling.type": ("none", "linear", "yarn", "longrope"),
    "general.architecture": ("llama", "qwen2", "qwen3", "gemma3", "lfm2", "gpt2", "clip"),
}  # fmt: skip


class Sound:
    """A file to be damaged, and what there is in it to be named."""

    def __init__(self, source: Source) -> None:
        encoded = source.encode()
        self.source = source
        self.fields = fields(encoded, source.byte_order)
        self.names = list(self.fields)
        self.n_bytes = len(encoded)
        self.n_header = max(field.at + field.size for field in self.fields.values())


def draw_mutation(rng: random.Random, sound: Sound) -> Mutation:
    """A mutation of one file."""
    makers: list[tuple[int, Callable[[random.Random, Sound], Mutation]]] = [
        (25, _draw_field), (20, _draw_set), (25, _draw_near), (8, _draw_keys), (12, _draw_array),
        (16, _draw_tensor), (12, _draw_bytes),
    ]  # fmt: skip
    maker = rng.choices([m for _, m in makers], [w for w, _ in makers])[0]
    return maker(rng, sound)


def _key(rng: random.Random, sound: Sound) -> str:
    keys = [text_of(key) for key, _ in sound.source.pairs]
    return rng.choice(keys) if keys else "general.architecture"


def _draw_field(rng: random.Random, sound: Sound) -> Mutation:
    name = rng.choice(sound.names)
    value = values.integer(rng, 8 * sound.fields[name].size)
    if rng.random() < 0.3:
        value = rng.randrange(40)
    return ["field", name, value]


def _draw_set(rng: random.Random, sound: Sound) -> Mutation:
    architecture = str(dict(sound.source.pairs).get("general.architecture", "llama"))
    key = _key(rng, sound) if rng.random() < 0.7 else rng.choice(_KNOWN).format(architecture)
    for part, choices in _CHOICES.items():
        if part in key and rng.random() < 0.7:
            return ["set", key, ["str", rng.choice(choices)]]
    return ["set", key, _draw_value(rng)]


def _draw_near(rng: random.Random, sound: Sound) -> Mutation:
    """A number that is there, as another one that may make sense."""
    numbers = [(k, v) for k, v in sound.source.pairs if isinstance(v, int | float)]
    key, value = rng.choice(numbers) if numbers else ("general.alignment", 32)
    if isinstance(value, bool):
        return ["set", text_of(key), ["bool", not value]]
    if isinstance(value, float):
        return ["set", text_of(key), ["f32", value * rng.choice((0.0, 0.5, -1.0, 10.0, 1e6, 1e-6))]]
    near = (value + 1, value - 1, value * 2, value // 2, 0, 1, value * 1000, rng.choice(_SIZES))
    return ["set", text_of(key), ["u32", rng.choice(near)]]


def _draw_value(rng: random.Random) -> list[Any]:
    """[type, value], or ["arr", type of the elements, values]."""
    kind = rng.choice(("size", "number", "float", "bool", "str", "long", "arr", "nested"))
    if kind == "size":
        return ["u32", rng.choice(_SIZES)]
    if kind == "number":
        return [rng.choice(_NUMBERS), rng.choice(values.INTEGERS)]
    if kind == "float":
        return [rng.choice(("f32", "f64")), rng.choice(values.FLOATS)]
    if kind == "bool":
        return ["bool", rng.random() < 0.5]
    if kind == "str":
        return ["str", values.text(rng)]
    if kind == "long":
        return ["str", {"repeat": [values.text(rng), rng.choice(values.LENGTHS)]}]
    if kind == "nested":
        return ["nested", rng.choice((1, 2, 10, 100, 5000))]
    type = rng.choice((*_NUMBERS, "f32", "bool", "str"))
    make = {"f32": lambda: rng.choice(values.FLOATS), "bool": lambda: True}.get(
        type, (lambda: values.text(rng)) if type == "str" else (lambda: rng.choice(_SIZES))
    )
    if rng.random() < 0.5:
        return ["arr", type, {"repeat": [make(), rng.choice((0, 1, 1000, 100_000))]}]
    return ["arr", type, [make() for _ in range(rng.randint(0, 6))]]


def _draw_keys(rng: random.Random, sound: Sound) -> Mutation:
    what = rng.choice(("drop", "drop", "repeat", "swap", "rename", "type"))
    key = _key(rng, sound)
    if what == "swap":
        return [what, key, _key(rng, sound)]
    if what == "rename":
        name = values.text(rng) if rng.random() < 0.5 else _key(rng, sound)
        return [what, key, name]
    if what == "type":
        return [what, key, rng.choice(list(VALUE_TYPES))]
    return [what, key]


def _draw_array(rng: random.Random, sound: Sound) -> Mutation:
    """Changes an array that is there: mostly the tokenizer's."""
    arrays = [text_of(k) for k, v in sound.source.pairs if isinstance(v, list | np.ndarray)]
    key = rng.choice(arrays) if arrays else _key(rng, sound)
    what = rng.choice(("element", "element", "cut", "extend", "reverse", "same"))
    if what == "element":
        value = rng.choice((values.text(rng), rng.choice(values.FLOATS), rng.choice(_SIZES)))
        return [what, key, rng.randrange(800), value]
    if what in ("cut", "extend"):
        return [what, key, rng.choice((0, 1, 2, 100, 300))]
    return [what, key]


def _draw_tensor(rng: random.Random, sound: Sound) -> Mutation:
    names = [text_of(name) for name, _ in sound.source.tensors]
    name = rng.choice(names) if names else "token_embd.weight"
    what = rng.choice(
        ("ne", "tensor type", "drop tensor", "repeat tensor", "rename tensor", "data")
    )
    if what == "ne":
        ne = [rng.choice(_SIZES) for _ in range(rng.randint(0, 5))]
        if rng.random() < 0.5:
            ne[-1:] = [rng.choice(values.INTEGERS) % 2**64]
        return [what, name, ne]
    if what == "tensor type":
        return [what, name, rng.choice(type_ids()) if rng.random() < 0.8 else rng.randrange(50)]
    if what == "rename tensor":
        other = rng.choice(names) if names and rng.random() < 0.5 else values.text(rng)
        return [what, name, other]
    if what == "data":
        return [what, name, rng.choice(("nan", "inf", "ones", "zeros", "random", "huge", "short"))]
    return [what, name]


def _draw_bytes(rng: random.Random, sound: Sound) -> Mutation:
    what = rng.choice(("flip", "flip", "flip", "bytes", "cut file", "insert", "delete", "sparse"))
    at = rng.randrange(sound.n_header if rng.random() < 0.8 else sound.n_bytes)
    if what == "flip":
        return [what, at, rng.randrange(8)]
    if what in ("bytes", "insert"):
        return [what, at, rng.randbytes(rng.choice((1, 2, 4, 8, 40))).hex()]
    if what == "cut file":
        return [what, at]
    if what == "delete":
        return [what, at, rng.choice((1, 4, 8, 100))]
    return [what, rng.choice((2**20, 2**32, 2**36))]
