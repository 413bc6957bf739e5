"""Values in place of a file's metadata."""

from __future__ import annotations

from typing import Any

import pytest

from ggmlpy import GGUFFile, Llama, RopeOverrides, packaged_model
from ggmlpy.errors import ArgumentError, WeightError
from ggmlpy.gguf.overrides import parse_overrides


def test_values_are_replaced_and_added() -> None:
    changes = {"llama.context_length": 64, "llama.rope.freq_base": 5, "my.key": True}
    with GGUFFile.open(packaged_model(), changes) as file:
        metadata = file.metadata
        assert metadata.int("llama.context_length") == 64
        assert metadata.float("llama.rope.freq_base") == 5.0
        assert metadata.bool("my.key") is True
        assert metadata.value_type("my.key") == "bool"
        assert metadata.value_type("llama.context_length") == "u32"
        assert metadata.str("general.architecture") == "llama"
        assert len(metadata.array("tokenizer.ggml.tokens")) == 2048


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.context_length", 1.5, "is 1.5: it must be an integer, as in the file"),
        ("llama.context_length", True, "must be an integer"),
        ("general.name", 7, "must be a text"),
        ("tokenizer.ggml.add_bos_token", 1, "must be true or false"),
        ("tokenizer.ggml.tokens", "a", "is an array"),
        ("my.key", [1], "must be a text, a number"),
        ("", 1, "a key is ''"),
    ],
)
def test_values_of_another_kind_are_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GGUFFile.open(packaged_model(), {key: value})  # type: ignore[dict-item]


def test_overrides_as_the_command_line_has_them() -> None:
    texts = ["a=int:-3", "b.c=float:1e-5", "d=bool:false", "e=str:x=y: z", "f=str:"]
    joined = ["a=int:-3,b.c=float:1e-5,d=bool:false", "e=str:x=y: z,1,f=2,f=str:"]
    assert parse_overrides(joined) == {
        "a": -3, "b.c": 1e-5, "d": False, "e": "x=y: z,1,f=2", "f": ""
    }  # fmt: skip
    assert parse_overrides(texts) == {"a": -3, "b.c": 1e-5, "d": False, "e": "x=y: z", "f": ""}
    for wrong in ("a", "a=3", "a=u32:3", "=int:3", "a=int:x", "a=bool:1", "a=float:"):
        with pytest.raises(ArgumentError, match="override-kv is"):
            parse_overrides([wrong])


@pytest.mark.parametrize("key", ["head_count", "head_count_kv"])
def test_a_number_that_no_model_can_have_is_named(key: str) -> None:
    changes = {f"llama.attention.{key}": 0}
    with pytest.raises(WeightError, match=f'key "llama.attention.{key}" is 0, must be at least 1'):
        Llama(packaged_model(), kv_overrides=changes, backend="null")


def test_rotary_embeddings() -> None:
    rope = RopeOverrides(scaling="yarn", freq_base=500, freq_scale=0.25, n_ctx_orig=128)
    assert rope.as_metadata("llama") == {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.freq_base": 500.0,
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    with pytest.raises(ArgumentError, match="none, linear, yarn, longrope"):
        RopeOverrides(scaling="ntk")
    with pytest.raises(ArgumentError, match="freq_base is -1"):
        RopeOverrides(freq_base=-1)
    wrong: list[dict[str, Any]] = [
        {"freq_base": "1"},
        {"n_ctx_orig": 1.5},
        {"ext_factor": "0"},
        {"scaling": ["yarn"]},
    ]
    for options in wrong:
        with pytest.raises(ArgumentError, match=f"{next(iter(options))} is .*: it must be "):
            RopeOverrides(**options)
