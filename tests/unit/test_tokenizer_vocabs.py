"""Real vocabularies against the tokens that their original tokenizers gave."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ggmlpy.text.tokenizer import Tokenizer
from tests.shared import shared_path

NAMES = ("bert-bge", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")


def path_of(name: str) -> Path:
    return shared_path(f"vocab/ggml-vocab-{name}.gguf")


@cache
def load(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(path_of(name))


def vectors(path: Path) -> list[tuple[str, list[int]]]:
    """Texts and their tokens, from the files beside the vocabulary."""
    with path.with_name(path.name + ".inp").open(encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    lines = path.with_name(path.name + ".out").read_text().split("\n")
    assert len(texts) > 40
    assert len(lines) >= len(texts)
    return [
        (text, [int(id) for id in line.split()]) for text, line in zip(texts, lines, strict=False)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_encodes_exactly(name: str) -> None:
    tokenizer = load(name)
    for text, ids in vectors(path_of(name)):
        assert tokenizer.encode(text) == ids, text


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bert-bge"])
def test_decodes_what_it_encoded(name: str) -> None:
    tokenizer = load(name)
    for text, ids in vectors(path_of(name)):
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode_prompt(tokenizer.encode(text, add_bos=True)) == text


SPECIAL = {  # bos, eos, add_bos, and the tokens that end a generation, all as llama.cpp finds them
    "bert-bge": (101, None, True, {0}),
    "gpt-2": (50256, 50256, False, {50256}),
    "llama-bpe": (128000, 128001, True, {128001, 128009}),
    "llama-spm": (1, 2, True, {2}),
    "phi-3": (1, 32000, True, {2, 32000, 32007}),
    "qwen2": (151643, 151643, False, {128247, 151643, 151645}),
}


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens(name: str) -> None:
    tokenizer = load(name)
    bos, eos, add_bos, ends = SPECIAL[name]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (bos, eos, add_bos)
    assert tokenizer.eog_ids == ends


def test_phi_3_swallows_space_after_a_special_token() -> None:
    tokenizer = load("phi-3")
    ids = tokenizer.encode("<|user|>\n Hi<|end|>\n", special=True)
    assert [tokenizer.text(id) for id in ids] == ["<|user|>", "\u2581Hi", "<|end|>"]


def test_a_file_of_kind_test_opens() -> None:
    tokenizer = Tokenizer.from_gguf(shared_path("reference/archs/qwen2-dense.gguf"))
    assert tokenizer.kind == "test"
    assert tokenizer.n_vocab == 128
