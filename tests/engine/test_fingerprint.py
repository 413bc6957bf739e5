"""Models that make other K and V of the same tokens have other fingerprints, and only these."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.errors import FileError
from ggmlpy.gguf import GGUFFile, TensorInfo
from ggmlpy.gguf.kept_digests import KeptDigests
from ggmlpy.gguf.weights_digest import digest_of
from ggmlpy.memory.fingerprint import Fingerprint
from tests.models.tiny import Tiny, write_model

MODEL = Tiny()


def fingerprint(path: Path, folder: Path | None = None) -> Fingerprint:
    with GGUFFile.open(path) as file:
        return Fingerprint.of(file, KeptDigests(folder or path.parent / "kept"))


OTHERS: dict[str, tuple[Tiny, dict[str, Any], str]] = {
    "rope base": (
        replace(MODEL, freq_base=500_000.0), {},
        r'key "llama.rope.freq_base" is 10000.0 in the state\'s model, 500000.0 here',
    ),
    "eps": (replace(MODEL, eps=0.25), {}, r'"llama.attention.layer_norm_rms_epsilon" is .*, 0.25'),
    "linear scaling": (
        replace(MODEL, linear_factor=2.0), {},
        r'"llama.rope.scaling.type" is missing in the state\'s model, \'linear\' here',
    ),
    "YaRN": (replace(MODEL, yarn_factor=2.0), {}, r"scaling.type.* is missing .*, 'yarn' here"),
    "a key less": (
        MODEL, {"llama.rope.freq_base": None},
        r'"llama.rope.freq_base" is 10000.0 in the state\'s model, missing here',
    ),
    "a list": (
        MODEL, {"llama.attention.head_count_kv": [2, 2]},
        r'"llama.attention.head_count_kv" is 2 in the state\'s model, \[2, 2\] here',
    ),
    "a long list": (
        MODEL, {"llama.some": [7] * 1000},
        r"missing in the state's model, of 3000 characters with SHA-256 [0-9a-f]{64} here",
    ),
    "architecture": (
        replace(MODEL, architecture="qwen3", qk_norm=True), {},
        r"\"general.architecture\" is 'llama' in the state's model, 'qwen3' here",
    ),
    "weights": (replace(MODEL, seed=1), {}, "^weights differ$"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_differ_and_it_is_said_in_what(tmp_path: Path, name: str) -> None:
    model, changes, message = OTHERS[name]
    saved = fingerprint(write_model(tmp_path / "a.gguf", MODEL))
    here = fingerprint(write_model(tmp_path / "b.gguf", model, **changes))
    difference = saved.difference(here)
    assert difference is not None
    assert re.search(message, difference), difference


def test_what_changes_no_k_or_v_does_not_count(tmp_path: Path) -> None:
    plain = fingerprint(write_model(tmp_path / "a.gguf", MODEL))
    changes: dict[str, Any] = {
        "general.name": "another", "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.scores": [0.5] * 288, "tokenizer.ggml.eos_token_id": 3, "other.key": 1,
    }  # fmt: skip
    renamed = fingerprint(write_model(tmp_path / "b.gguf", MODEL, **changes))
    assert plain.difference(renamed) is None
    assert plain == renamed


def test_a_description_is_checked(tmp_path: Path) -> None:
    """It comes from a file that anyone may have written, and is shown in messages."""
    good = fingerprint(write_model(tmp_path / "a.gguf", MODEL))
    assert Fingerprint.parse(json.loads(json.dumps(good.describe()))) == good
    bads: list[object] = [
        None, "0" * 64, [], {"keys": {}}, {"keys": [], "weights": ""}, {"keys": {}, "weights": 3},
        {"keys": {"a": 3}, "weights": ""}, {"keys": {"a": "1\n2"}, "weights": ""},
        {"keys": {"a": "1" * 10_000}, "weights": ""},
    ]  # fmt: skip
    for bad in bads:
        assert Fingerprint.parse(bad) is None, bad


def test_weights_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the file is as it was."""
    monkeypatch.setattr("ggmlpy.memory.fingerprint.WORTH_KEEPING", 1)
    monkeypatch.setattr("ggmlpy.gguf.kept_digests._SETTLED_NS", 0)
    read: list[str] = []

    def counted(tensors: Iterable[TensorInfo]) -> str:
        read.append("once more")
        return digest_of(tensors)

    monkeypatch.setattr("ggmlpy.memory.fingerprint.digest_of", counted)
    path = write_model(tmp_path / "a.gguf", MODEL)
    first = fingerprint(path)
    assert (fingerprint(path), len(read)) == (first, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))  # whatever its times are now
    assert fingerprint(path).difference(first) == "weights differ"
    assert len(read) == 2


@pytest.mark.parametrize("keep", [1, 1 << 30])
def test_a_file_that_was_written_to_is_not_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    monkeypatch.setattr("ggmlpy.memory.fingerprint.WORTH_KEEPING", keep)
    path = write_model(tmp_path / "a.gguf", MODEL)
    kept = KeptDigests(tmp_path)
    with GGUFFile.open(path) as file:
        os.utime(path, ns=(5, 5))
        with pytest.raises(FileError, match=r"a\.gguf: the file was written to since"):
            Fingerprint.of(file, kept)
    with GGUFFile.open(path) as file:
        path.unlink()  # another may take its name: this one is still open
        Fingerprint.of(file, kept)
        write_model(path, replace(MODEL, seed=1))
        Fingerprint.of(file, kept)
