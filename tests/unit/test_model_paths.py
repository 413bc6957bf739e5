"""Names of models as users give them: expanded, or with a hint at what they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import GGUFFile, Llama, Tokenizer
from ggmlpy.errors import ArgumentError, BadBatch, MissingFile, WeightError
from tests.gguf_builder import gguf_bytes
from tests.models.tiny import Tiny, byte_vocabulary, write_model


def test_paths_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for given in (path, str(path), os.fsencode(path), "~/tiny.gguf", Path("~/tiny.gguf")):
        with GGUFFile.open(given) as file:
            assert file.path == path
    assert Tokenizer.from_gguf("~/tiny.gguf").n_vocab
    with Llama("~/tiny.gguf", backend="reference") as llm:
        assert llm.model_path == str(path)
    with pytest.raises(ArgumentError, match="must be a string, bytes or a path"):
        GGUFFile.open(3)  # type: ignore[arg-type]


def test_a_folder_that_is_called_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "~").mkdir()
    write_model(tmp_path / "~" / "tiny.gguf", Tiny())
    monkeypatch.chdir(tmp_path)
    with GGUFFile.open("~/tiny.gguf") as file:
        assert file.path == Path("~/tiny.gguf")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name of the model file is empty"),
        (b"", "the name of the model file is empty"),
        ("https://x.org/a/m.gguf", r"https://x\.org/a/m\.gguf: this is a URL, not a file: -mu"),
        (Path("http://x.org/m.gguf"), r"http://x\.org/m\.gguf: this is a URL"),
        ("user/repo-GGUF", "; -hf user/repo-GGUF or Llama.from_pretrained.'user/repo-GGUF'."),
        ("user/repo:Q8_0", "; -hf user/repo:Q8_0 or"),
        ("user/model.gguf", "model.gguf: there is no such file in user$"),
        ("~nobody-of-this-name/m.gguf", "m.gguf: there is no such file in ~nobody"),
        ("~/no-such/m.gguf", f"m.gguf: there is no such file in {Path.home()}"),
        (".", r"\. is a folder"),
    ],
)
def test_names_that_lead_nowhere(
    name: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFile, match=message):
        GGUFFile.open(name)


VOCABULARY = byte_vocabulary(300)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"general.type": "adapter", "general.architecture": "llama"}, "a LoRA adapter"),
        ({"general.architecture": "llama", "adapter.type": "lora"}, "a LoRA adapter"),
        ({"general.type": "mmproj", "general.architecture": "clip"}, r"a projector \(mmproj\)"),
        ({"general.architecture": "clip"}, r"a projector \(mmproj\)"),
        ({"general.type": "imatrix"}, "an importance matrix"),
        ({"general.architecture": "controlvector"}, "a control vector"),
        ({"general.architecture": "llama", **VOCABULARY}, "a vocabulary and no weights"),
    ],
)
def test_files_that_are_no_models_say_what_they_are(
    keys: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(gguf_bytes(keys))
    with pytest.raises(WeightError, match=rf"other\.gguf: this .*{what}.*: it must be "):
        Llama(path)


@pytest.mark.parametrize(
    ("options", "prompt", "limit"),
    [
        ({"n_ctx": 16}, 40, "n_ctx=64"),
        ({"n_ctx": 16, "n_seq_max": 2}, 40, "n_ctx=128"),
        ({"n_ctx": 100, "n_ctx_seq": 20, "n_seq_max": 2, "kv_unified": True}, 40, "n_ctx_seq=64"),
    ],
)
def test_a_prompt_that_is_too_long_names_a_size_that_would_do(
    options: dict[str, Any], prompt: int, limit: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    with Llama(path, backend="reference", **options) as llm:
        for use in (lambda: llm([5] * prompt, max_tokens=9), lambda: llm.logits([5] * prompt)):
            with pytest.raises(BadBatch, match=f"n_ctx_seq = .*; {limit} would do"):
                use()
    name, _, n = limit.partition("=")
    both = {key: value for key, value in options.items() if key != name} | {name: int(n)}
    with Llama(path, backend="reference", **both) as llm:
        assert llm([5] * prompt, max_tokens=9)
