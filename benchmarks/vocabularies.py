"""Vocabularies of random-weight models: as large as real ones, of made-up words."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ggmlpy.text.tokenizer.bpe import BYTE_CHARS

_LETTERS = (BYTE_CHARS[ord(" ")], *"abcdefghijklmnopqrstuvwxyz")
_LONGEST_RIGHT = 4  # letters of the right half of a merge


def vocabulary(n_vocab: int, pre: str | None, n_merges: int) -> dict[str, Any]:
    """The keys of a vocabulary: BPE that cuts words as `pre` says, or SentencePiece without it."""
    return _sentence_pieces(n_vocab) if pre is None else _byte_level(n_vocab, pre, n_merges)


def _byte_level(n_vocab: int, pre: str, n_merges: int) -> dict[str, Any]:
    """A BPE vocabulary: 256 bytes, made-up words with the merges that make them, control tokens."""
    controls = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokens = _words(n_vocab - len(controls))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + controls,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(controls),
        "tokenizer.ggml.merges": _merges(tokens, n_merges),
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
    }


def _words(n: int) -> list[str]:
    """The bytes, all pairs of letters, then earlier words with a letter more.

    Of 128,000, one has 6.1 letters on average; Llama 3's have 6.5.
    """
    rng = np.random.default_rng(0)
    words = [*BYTE_CHARS, *map("".join, product(_LETTERS, repeat=2))][:n]
    known = set(words)
    while len(words) < n:
        before = words[rng.integers(len(BYTE_CHARS), len(words) * 3 // 4)]
        word = before + _LETTERS[rng.integers(len(_LETTERS))]
        if word not in known:
            known.add(word)
            words.append(word)
    return words


def _merges(words: list[str], n: int) -> list[str]:
    """`n` pairs that make these words; one for each if that is more, and as many as there are."""
    known = set(words)
    made = words[len(BYTE_CHARS) :]
    n_more = max(0, n - len(made))
    merges = []
    for word in made:
        merges.append(f"{word[:-1]} {word[-1]}")
        for n_right in range(2, min(_LONGEST_RIGHT, len(word) - 1) + 1):
            left, right = word[:-n_right], word[-n_right:]
            if n_more and left in known and right in known:
                merges.append(f"{left} {right}")
                n_more -= 1
    return merges


def _sentence_pieces(n_vocab: int) -> dict[str, Any]:
    """An SPM vocabulary of control tokens, bytes, and what fills it up."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
    types = [2, 3, 3, *[6] * 256, 1]  # unknown, control, byte, normal
    n_more = n_vocab - len(tokens)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + [f"<{i}>" for i in range(n_more)],
        "tokenizer.ggml.scores": [float(-i) for i in range(n_vocab)],
        "tokenizer.ggml.token_type": types + [1] * n_more,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
