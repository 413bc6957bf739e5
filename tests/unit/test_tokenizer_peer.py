"""Tokens of every pre-tokenizer's name, and of other kinds of vocabularies, are llama.cpp's.

`peer_tokens.json` has digests of llama.cpp 0.3.36's tokens for seeded texts of every kind, written
by `python -m tests.tools.fuzz_tokenizers <folder of llama_cpp> --record <file>`. Names for which
llama.cpp only approximates the published expression are tested with its approximation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ggmlpy.text.tokenizer import PRE_TOKENIZERS, PreTokenizer, Tokenizer
from ggmlpy.text.tokenizer.bpe import BytePairs
from ggmlpy.text.tokenizer.vocabulary import Vocabulary
from tests.unit.peer_splits import PEER_SPLITS
from tests.unit.random_texts import (
    CLASSES,
    byte_pair_metadata,
    char_pair_metadata,
    corpus,
    digest,
)
from tests.unit.random_vocabularies import KINDS

N_RECORDED = 6
"""Texts of each kind that are recorded."""

PEER = json.loads((Path(__file__).parent / "peer_tokens.json").read_text(encoding="utf-8"))


class Tokenizers:
    """Tokenizers by name, which share what takes long to make: the vocabulary and its merges."""

    def __init__(self) -> None:
        self._metadata = {True: byte_pair_metadata(), False: char_pair_metadata()}
        self._vocabs: dict[bool, Vocabulary] = {}
        self._pairs: dict[PreTokenizer, BytePairs] = {}

    def get(self, name: str) -> Tokenizer:
        row = PRE_TOKENIZERS[name]
        row = replace(row, splits=PEER_SPLITS.get(name, row.splits))
        metadata = self._metadata[row.byte_level] | {"tokenizer.ggml.pre": name}
        if name == "whitespace":
            metadata["tokenizer.ggml.model"] = "whitespace"
        tokenizer = Tokenizer.from_metadata(metadata)
        tokenizer.vocab = self._vocabs.setdefault(row.byte_level, tokenizer.vocab)
        if name != "whitespace":
            key = replace(row, clean_spaces=True)
            if key not in self._pairs:
                self._pairs[key] = BytePairs(tokenizer.vocab, row)
            tokenizer.__dict__["_encoder"] = self._pairs[key]
        return tokenizer


TOKENIZERS = Tokenizers()


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.filterwarnings("ignore::ggmlpy.text.tokenizer.TokenizerWarning")
def test_tokens_are_llama_cpps(name: str) -> None:
    assert digests(TOKENIZERS.get(name)) == recorded(name)


@pytest.mark.parametrize("name", KINDS)
def test_tokens_of_other_kinds_are_llama_cpps(name: str) -> None:
    assert digests(Tokenizer.from_metadata(KINDS[name])) == recorded(name)


def test_every_name_is_recorded() -> None:
    assert PEER.keys() == PRE_TOKENIZERS.keys() | KINDS.keys()


def digests(tokenizer: Tokenizer) -> dict[str, str]:
    """The digest of the tokens of each kind of texts."""
    by_kind: dict[str, list[list[int]]] = {}
    for kind, text in corpus(N_RECORDED):
        for flag in (True, False):
            by_kind.setdefault(kind, []).append(tokenizer.encode(text, flag, flag))
    return {kind: digest(ids) for kind, ids in by_kind.items()}


def recorded(name: str) -> dict[str, str]:
    return dict(zip([*CLASSES, "invalid"], PEER[name].split(), strict=True))
