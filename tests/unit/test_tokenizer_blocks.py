"""Long text in blocks: all of it, none too long, and the words that the whole text has."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from ggmlpy.text.tokenizer import PRE_TOKENIZERS, Tokenizer
from ggmlpy.text.tokenizer.blocks import WORD_END, blocks
from ggmlpy.text.tokenizer.bpe import BytePairs, word_splitter
from tests.unit.vocabularies import SENTENCES, WPM_TOKENS, bpe_metadata, wpm_metadata

ALPHABET = (
    "aslA\u01c5\u02b0\u6c49\uac00\u0301\U0001f600 \u00a0\n\t\r.,\u3002'!/_1\u0661\u2160\u00bd"
)


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(ALPHABET) * rng.choice((1, 1, 2, 5)) for _ in range(60))


def cut_at(seam: re.Pattern[str], text: str) -> list[str]:
    places = [0, *(match.start() for match in seam.finditer(text)), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_seams_change_no_words(name: str) -> None:
    row = PRE_TOKENIZERS[name]
    splitter, rng = word_splitter(row), random.Random(name)
    n_seams = 0
    for _ in range(20):
        text = random_text(rng)
        parts = cut_at(row.seam, text)
        n_seams += len(parts) - 1
        words = [word for word, _ in splitter.pre_tokenize_str(text)]
        assert words == [word for part in parts for word, _ in splitter.pre_tokenize_str(part)]
    assert n_seams > 5


def test_word_ends_change_no_tokens_of_wpm() -> None:
    tokenizer, rng = Tokenizer.from_metadata(wpm_metadata()), random.Random(1)
    pieces = [*(token.strip("\u2581") for token in WPM_TOKENS), *" ,.!'\n\u0301\u6c49A"]
    for _ in range(50):
        text = "".join(rng.choices(pieces, k=100))
        parts = cut_at(WORD_END, text)
        assert len(parts) > 1
        assert tokenizer.encode(text) == [id for part in parts for id in tokenizer.encode(part)]


def test_blocks_end_at_seams_where_there_are_some() -> None:
    rng = random.Random(2)
    for _ in range(200):
        text = random_text(rng)[: rng.randrange(120)]
        cut = list(blocks(text, WORD_END, n_chars=10, max_chars=25))
        assert "".join(cut) == text
        assert "" not in cut
        assert all(len(block) <= 25 for block in cut)
        for before, after in pairwise(cut):
            assert len(before) == 25 or WORD_END.match(before + after, len(before))
            assert len(before) >= 10


def test_long_text_has_the_tokens_of_its_sentences() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    text = " ".join(SENTENCES[:2])
    n = 200_000 // len(text)
    assert tokenizer.encode(f" {text}" * n) == tokenizer.encode(f" {text}") * n


class Recorder:
    """A splitter that tells how much it was given at once."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def pre_tokenize_str(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        self.lengths.append(len(text))
        return []


def test_the_engine_is_given_little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be interrupted, and panics where it goes back for each of 10,000,000 spaces."""
    recorder = Recorder()
    encoder = BytePairs(Tokenizer.from_metadata(bpe_metadata()).vocab, PRE_TOKENIZERS["gpt-2"])
    monkeypatch.setattr(encoder, "_splitter", recorder)
    encoder.encode(" " * 10_000_001 + "a")
    assert sum(recorder.lengths) == 10_000_002
    assert max(recorder.lengths) < 200_000
