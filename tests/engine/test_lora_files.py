"""Files of LoRA adapters: what is read, and the one line that says why another is not."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy import Llama
from ggmlpy.errors import ArgumentError, FileError, Unsupported, WeightError
from ggmlpy.models.weights import WeightWarning
from tests.adapters import write_adapter
from tests.engine.lora import shared_context, write_files
from tests.gguf_builder import Typed, build_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("lora"))


def written(folder: Path, tmp_path: Path, **metadata: Any) -> Path:
    return write_adapter(tmp_path / "bad.gguf", folder / "tiny.gguf", **metadata).path


@pytest.mark.parametrize(
    ("metadata", "error", "match"),
    [
        ({"general.type": "model"}, WeightError, "this is a LoRA adapter.*must be a LoRA adapter"),
        (
            {"general.architecture": "gemma3"},
            WeightError,
            'is for architecture "gemma3", the model',
        ),
        ({"adapter.type": "ia3"}, Unsupported, '"adapter.type" is "ia3"'),
        ({"adapter.lora.alpha": "8"}, WeightError, '"adapter.lora.alpha" has type str'),
        ({"adapter.lora.alpha": float("nan")}, WeightError, "is nan, must be finite"),
        (
            {"adapter.alora.invocation_tokens": Typed("arr", [1, 2])},
            Unsupported,
            "an activated LoRA",
        ),
    ],
)
def test_metadata_that_does_not_fit(
    folder: Path, tmp_path: Path, metadata: dict[str, Any], error: type[Exception], match: str
) -> None:
    run, _ = shared_context(folder, "many")
    with pytest.raises(error, match=match) as raised:
        run.load_lora(written(folder, tmp_path, **metadata))
    assert "\n" not in str(raised.value)


def zeros(*ne: int, type: str = "f32") -> tuple[str, tuple[int, ...], bytes]:
    return type, ne, bytes(4 * int(np.prod(ne)))


Q = "blk.0.attn_q.weight"


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({}, "the adapter has no tensors"),
        ({f"{Q}.lora_a": zeros(64, 4)}, r'"blk\.0\.attn_q\.weight\.lora_b" is missing'),
        ({f"{Q}.lora_b": zeros(4, 64)}, r'"blk\.0\.attn_q\.weight\.lora_a" is missing'),
        (
            {f"{Q}.lora_a": zeros(32, 4), f"{Q}.lora_b": zeros(4, 64)},
            r'lora_a" is \[32, 4\], it must be \[64, 4\]: the model',
        ),
        (
            {f"{Q}.lora_a": zeros(64, 4), f"{Q}.lora_b": zeros(4, 32)},
            r'lora_b" is \[4, 32\], it must be \[4, 64\]',
        ),
        (
            {f"{Q}.lora_a": zeros(64, 4), f"{Q}.lora_b": zeros(5, 64)},
            r'lora_a" is \[64, 4\], it must be \[64, 5\]',
        ),
        (
            {f"{Q}.lora_a": zeros(64, 4), f"{Q}.lora_b": zeros(4, 64, type="i32")},
            "is of type i32",
        ),
        (
            {
                "blk.9.attn_q.weight.lora_a": zeros(64, 4),
                "blk.9.attn_q.weight.lora_b": zeros(4, 64),
            },
            r'changes "blk\.9\.attn_q\.weight", which is not in the model',
        ),
        ({Q: zeros(64, 64)}, r"names of an adapter's tensors end in \.lora_a or \.lora_b"),
    ],
)
def test_tensors_that_do_not_fit(
    folder: Path, tmp_path: Path, tensors: dict[str, Any], match: str
) -> None:
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    path = build_gguf(tmp_path / "bad.gguf", keys, tensors)
    run, _ = shared_context(folder, "many")
    with pytest.raises(WeightError, match=match):
        run.load_lora(path)


def test_other_files_say_what_they_are(folder: Path, tmp_path: Path) -> None:
    run, _ = shared_context(folder, "many")
    with pytest.raises(
        WeightError, match=r"tiny\.gguf: this is a model: it must be a LoRA adapter"
    ):
        run.load_lora(folder / "tiny.gguf")
    keys = {"general.architecture": "clip", "general.type": "mmproj"}
    with pytest.raises(WeightError, match=r"this is a projector"):
        run.load_lora(build_gguf(tmp_path / "mmproj.gguf", keys, {}))
    with pytest.raises(WeightError, match="this is a LoRA adapter"):
        Llama(folder / "0.gguf")
    with pytest.raises(FileError, match="no such file"):
        run.load_lora(tmp_path / "missing.gguf")


def test_norms_of_an_adapter_have_no_effect(folder: Path, tmp_path: Path) -> None:
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    pair = {f"{Q}.lora_a": zeros(64, 4), f"{Q}.lora_b": zeros(4, 64)}
    tensors = pair | {"blk.0.attn_norm.weight": zeros(64)}
    path = build_gguf(tmp_path / "norm.gguf", keys, tensors)
    run, _ = shared_context(folder, "many")
    with pytest.warns(
        WeightWarning, match=r'norm\.gguf: "blk\.0\.attn_norm\.weight" have no effect'
    ):
        adapter = run.load_lora(path)
    assert repr(adapter) == "LoraAdapter('norm.gguf', 1 weight, rank 4, alpha=0, scale=1)"
    assert adapter.n_bytes == 4 * 2 * 4 * 64


@settings(max_examples=60)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_files(folder: Path, at: float, byte: int, cut: bool) -> None:
    """A file that is cut, or has another byte in its header, is refused or read; nothing else."""
    data = bytearray((folder / "1.gguf").read_bytes())
    header = struct.calcsize("<4sIQQ") + 2500
    if cut:
        data = data[: int(at * len(data))]
    else:
        data[int(at * header)] = byte
    path = folder / "damaged.gguf"
    path.write_bytes(data)
    run, _ = shared_context(folder, "many")
    try:
        adapter = run.load_lora(path)
    except (FileError, Unsupported) as error:
        assert "\n" not in str(error)
    else:
        adapter.close()


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ("a.gguf", "lora_adapters is a str: it must be a list"),
        ([7], "is an int: it must be a string, bytes, a path or a tuple"),
        ([("a.gguf", "x")], "is a str: it must be a number"),
        ([("a.gguf", float("nan"))], "the scale of 'a.gguf' is nan"),
    ],
)
def test_bad_lists_of_files(folder: Path, files: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        Llama(folder / "tiny.gguf", lora_adapters=files)
