"""Whole files: types of tensors and bytes are llama.cpp's, which are recorded."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy import packaged_model
from ggmlpy.errors import ArgumentError, FileError, GgmlpyError, Unsupported, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import TYPES
from ggmlpy.quantize import FILE_TYPES, Choices, Imatrix, Planned, Squares, plan, quantize_model
from ggmlpy.quantize.file_types import file_type_of
from tests.gguf_builder import build_gguf
from tests.quantize import peer

REQUANTIZE = Choices(allow_requantize=True)


@pytest.mark.parametrize("name", peer.SKELETONS)
def test_types_are_llama_cpps(tmp_path: Path, name: str) -> None:
    path, expected = peer.write_skeleton(tmp_path, name), peer.recorded()["types"]
    with GGUFFile.open(path) as file:
        for kind in FILE_TYPES:
            wanted = expected[f"{name} {kind}"]
            if wanted == "refused":
                with pytest.raises(Unsupported, match="q1_0 has blocks of 128"):
                    plan(file, kind)
            else:
                types = [tensor.type.name for tensor in plan(file, kind)]
                assert peer.digest_of(types) == wanted, (kind, types)


@pytest.mark.parametrize("kind", ["F16", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ4_XS", "Q5_1"])
def test_files_are_llama_cpps(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out.gguf"
    assert quantize_model(packaged_model(), out, kind, REQUANTIZE, n_threads=2) == [out]
    assert peer.digest(out.read_bytes()) == peer.recorded()["models"][kind]
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_values_are_near(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    quantize_model(packaged_model(), out, "Q6_K", REQUANTIZE)
    with GGUFFile.open(packaged_model()) as before, GGUFFile.open(out) as after:
        assert after.metadata.int("general.file_type") == FILE_TYPES["Q6_K"].id
        assert after.metadata.array("tokenizer.ggml.merges")[:3] == ["h e", "Ġ t", "Ġ a"]
        for name, info in before.tensors.items():
            new = after.tensors[name]
            assert new.ne == info.ne
            x, y = (to_float(t.data, t.type).astype(np.float64) for t in (info, new))
            assert np.square(y - x).sum() <= 4e-4 * np.square(x).sum(), name


def small(folder: Path, **more: Any) -> Path:
    """A model with two tensors of 2 x 256."""
    x = peer.uniform(5, (2, 256))
    tensors = {
        "blk.0.attn_q.weight": ("f32", (256, 2), x.tobytes()),
        "blk.0.ffn_up_exps.weight": ("f32", (256, 2, 3), np.tile(x, (3, 1)).tobytes()),
        "blk.0.attn_norm.weight": ("f32", (256,), bytes(1024)),
        **more,
    }
    keys = {"general.architecture": "llama", "llama.block_count": 1, "a.list": [1, 2]}
    return build_gguf(folder / "small.gguf", keys, tensors)


def types_of(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name: info.type.name for name, info in file.tensors.items()}


def test_choices(tmp_path: Path) -> None:
    path, out = small(tmp_path), tmp_path / "out.gguf"
    named = [("attn_q", TYPES["q8_0"]), ("attn", TYPES["q4_0"]), ("exps", TYPES["f16"])]
    overrides: dict[str, str | int | float] = {
        "general.name": "Mine",
        "llama.context_length": 9,
        "x": 0.5,
        "y": True,
    }
    quantize_model(path, out, "Q4_K", Choices(tensor_types=named, overrides=overrides))
    assert set(types_of(out).values()) == {"q8_0", "f16", "f32"}
    with GGUFFile.open(out) as file:
        assert {key: file.metadata[key] for key in overrides} == overrides
        assert file.metadata.value_type("llama.context_length") == "u32"
        assert file.metadata["a.list"].tolist() == [1, 2]  # type: ignore[union-attr]
    quantize_model(path, out, "q4_k_m", Choices(pure=True))
    assert set(types_of(out).values()) == {"q4_K", "f32"}
    quantize_model(path, out, None)
    assert set(types_of(out).values()) == {"f32"}


def squares(n: int, counts: list[int], sums: float = 3.0) -> Squares:
    return Squares(np.full((len(counts), n), sums, np.float32), np.array(counts))


def test_each_expert_has_its_own_importances(tmp_path: Path) -> None:
    path, out, alone = small(tmp_path), tmp_path / "out.gguf", tmp_path / "alone.gguf"
    sums = np.square(peer.uniform(6, (3, 256))) + np.float32(1e-4)
    name = "blk.0.ffn_up_exps.weight"
    imatrix = Imatrix({name: Squares(sums, np.array([4, 0, 2]))}, ("text",), 3, name="m.gguf")
    quantize_model(path, out, "Q4_K_S", Choices(imatrix=imatrix))
    with GGUFFile.open(out) as file:
        experts = file.tensors[name].data.reshape(3, -1).copy()
        described = {k: v for k, v in file.metadata.items() if k.startswith("quantize.imatrix.")}
    assert described == {
        "quantize.imatrix.file": "m.gguf",
        "quantize.imatrix.dataset": "text",
        "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 3,
    }
    assert len({row.tobytes() for row in experts}) == 3
    for i, count in enumerate((4, 0, 2)):  # without tokens, all columns count as much
        same = sums[i] / count if count else np.ones(256)
        one = Squares(np.tile(same.astype(np.float32), (3, 1)), np.array([1, 1, 1]))
        quantize_model(path, alone, "Q4_K_S", Choices(imatrix=Imatrix({name: one})))
        with GGUFFile.open(alone) as file:
            np.testing.assert_array_equal(file.tensors[name].data.reshape(3, -1)[i], experts[i])


def fails(error: type[GgmlpyError], message: str, folder: Path, *arguments: Any) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(error, match=re.escape(message)):
        quantize_model(*arguments)
    assert sorted(folder.iterdir()) == before


def test_refused(tmp_path: Path) -> None:
    path, out = small(tmp_path), tmp_path / "out.gguf"
    fails(ArgumentError, "unknown file type 'Q7'", tmp_path, path, out, "Q7")
    fails(ArgumentError, "small.gguf is the model itself", tmp_path, path, path, "Q4_0")
    fails(WeightError, "iq2_s needs an importance matrix", tmp_path, path, out, "IQ2_M")
    choices = Choices(tensor_types=[("attn_q", TYPES["iq2_xxs"])])
    fails(WeightError, "iq2_xxs needs an importance", tmp_path, path, out, "Q4_0", choices)
    choices = Choices(tensor_types=[("attn_q", TYPES["nvfp4"])])
    fails(
        Unsupported, "is to be nvfp4, which can be read only", tmp_path, path, out, "Q4_0", choices
    )
    fails(WeightError, "q2_K needs an importance matrix", tmp_path, path, out, "Q2_K_S")
    wrong = Imatrix({"blk.0.attn_q.weight": squares(7, [1])})
    fails(
        WeightError,
        '7 values for tensor "blk.0.attn_q.weight", must have 256',
        tmp_path, path, out, "Q4_0", Choices(imatrix=wrong),
    )  # fmt: skip
    fails(Unsupported, "is q8_0 already", tmp_path, packaged_model(), out, "Q4_0")
    missing = tmp_path / "none" / "out.gguf"
    fails(FileError, "the file cannot be written", tmp_path, path, missing, "Q4_0")
    nan = np.full((2, 256), np.nan, np.float32).tobytes()
    bad = {"blk.0.attn_v.weight": ("f32", (256, 2), nan)}
    fails(FileError, "not finite", tmp_path, small(tmp_path, **bad), out, "Q4_0")
    whole = {"blk.0.ids.weight": ("i32", (256, 2), bytes(2048))}
    fails(Unsupported, "is i32", tmp_path, small(tmp_path, **whole), out, "Q4_0")
    assert file_type_of(15).name == "Q4_K_M"


def test_nothing_is_left_of_an_interrupted_file(tmp_path: Path) -> None:
    path, out = small(tmp_path), tmp_path / "out.gguf"
    out.write_bytes(b"before")
    seen: list[int] = []

    def interrupt(tensor: Planned, n_rows: int) -> None:
        seen.append(n_rows)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_model(path, out, "Q4_0", listener=interrupt)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "small.gguf"]
    assert out.read_bytes() == b"before"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ggmlpy.quantize.writer.os.fsync", full)
    out = tmp_path / "out.gguf"
    fails(FileError, "No space left on device", tmp_path, small(tmp_path), out, "Q4_0")


def test_split_models(tmp_path: Path) -> None:
    x = peer.uniform(7, (4, 256)).tobytes()
    head = {"general.architecture": "llama", "llama.block_count": 2, "a": "b"}
    names = ["blk.1.ffn_up.weight", "blk.0.ffn_up.weight"]
    for i, name in enumerate(names):
        keys: dict[str, Any] = head if i == 0 else {}
        keys = {**keys, "split.no": i, "split.count": 2, "split.tensors.count": 2}
        part = tmp_path / f"m-{i + 1:05}-of-00002.gguf"
        build_gguf(part, keys, {name: ("f32", (256, 4), x)})
    first = tmp_path / "m-00001-of-00002.gguf"
    one, out = tmp_path / "one.gguf", tmp_path / "parts.gguf"
    quantize_model(first, one, "Q8_0")
    parts = quantize_model(first, out, "Q8_0", Choices(keep_split=True))
    assert [path.name for path in parts] == [
        "parts-00001-of-00002.gguf",
        "parts-00002-of-00002.gguf",
    ]
    with GGUFFile.open(one) as whole, GGUFFile.open(parts[0]) as split:
        assert list(whole.tensors) == sorted(names)
        assert list(split.tensors) == names
        assert "split.count" not in whole.metadata and split.metadata["a"] == "b"
        for name in names:
            np.testing.assert_array_equal(whole.tensors[name].data, split.tensors[name].data)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted up to all of them, also where a tensor is written in slabs."""
    monkeypatch.setattr("ggmlpy.quantize.model._SLAB", 256)
    rows: dict[str, list[int]] = {}
    listen: Callable[[Planned, int], None] = lambda tensor, n: rows.setdefault(  # noqa: E731
        tensor.tensor.name, []
    ).append(n)
    out, other = tmp_path / "out.gguf", tmp_path / "other.gguf"
    path = small(tmp_path)
    quantize_model(path, out, "Q4_K_S", listener=listen)
    assert rows["blk.0.ffn_up_exps.weight"] == [0, 1, 2, 3, 4, 5, 6]
    monkeypatch.undo()
    quantize_model(path, other, "Q4_K_S")
    assert out.read_bytes() == other.read_bytes()
