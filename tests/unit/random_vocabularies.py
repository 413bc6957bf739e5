"""Seeded vocabularies whose pieces are parts of the texts that `random_texts` makes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.unit.charsmaps import charsmap
from tests.unit.random_texts import CLASSES
from tests.unit.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    keyed,
)

REPLACEMENTS = {
    "\t": " ", "\n": " ", "\r": "", "\u00a0": " ", "\u2003": " ", "\u3000": " ", "\ufb01": "fi",
    "\u00c9": "\u00e9", "\u00b2": "2", "\u2026": "...", "e\u0301": "\u00e9", "\u200b": "",
    "\uff76\uff9e": "\u30ac", "\uff76": "\u30ab", "\ufffd": " ", "\U00020000": "\u4e00", "--": "-",
    "\u00bd": "1\u20442",
}  # fmt: skip
"""A few of NFKC's, those of text that vanishes, and some that overlap."""


def _pieces(name: str, n: int) -> list[str]:
    """`n` different parts of up to three pieces of text."""
    rng = random.Random(name)
    parts = [piece for kind in CLASSES if kind != "tokens" for piece in CLASSES[kind]]
    found: dict[str, None] = {}
    while len(found) < n:
        text = "".join(rng.choices(parts, k=rng.randint(1, 3)))
        begin = rng.randrange(len(text))
        piece = text[begin : rng.randint(begin + 1, len(text))]
        if "\0" not in piece:
            found[piece] = None
    return list(found)


def _scored(name: str, tokens: Iterable[tuple[str, int, float]], **more: Any) -> dict[str, Any]:
    texts, types, scores = zip(*tokens, strict=True)
    return keyed(
        model=name,
        tokens=list(texts),
        token_type=np.array(types, np.int32),
        scores=np.array(scores, np.float32),
    ) | keyed(**more)


def ugm_metadata(**overrides: Any) -> dict[str, Any]:
    """A UGM vocabulary with a map of characters and, as in T5's files, unused tokens."""
    rng = random.Random("scores of ugm")
    pieces = dict.fromkeys(piece.replace(" ", SPACE) for piece in _pieces("ugm", 1500))
    pieces |= dict.fromkeys(SPACE + piece for piece in list(pieces)[::3])
    tokens = [("<pad>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<unk>", UNKNOWN, 0.0)]
    tokens += [(piece, NORMAL, rng.uniform(-14, -2)) for piece in [SPACE, *pieces] if piece]
    tokens += [(f"[PAD{i}]", UNUSED, -10_000.0) for i in range(3)]
    tokens += [("<tool>", USER_DEFINED, -1000.0), ("<mask>", CONTROL, 0.0)]
    once = {text: (text, type, score) for text, type, score in reversed(tokens)}
    tokens = list(reversed(once.values()))
    return _scored(
        "t5",
        tokens,
        pre="default",
        add_space_prefix=True,
        remove_extra_whitespaces=True,
        precompiled_charsmap=np.frombuffer(charsmap(REPLACEMENTS), np.uint8),
    ) | keyed(**overrides)


def rwkv_metadata(**overrides: Any) -> dict[str, Any]:
    """All bytes, and parts of text that may begin and end within a character."""
    rng = random.Random("rwkv")
    pieces = {bytes([byte]): None for byte in range(256)}
    for text in _pieces("rwkv", 2000):
        data = text.encode()
        pieces[data[rng.randrange(len(data)) :]] = None
    return keyed(
        model="rwkv",
        tokens=["<s>", *(repr(piece)[2:-1] for piece in pieces)],
        token_type=np.array([CONTROL] + [NORMAL] * len(pieces), np.int32),
        bos_token_id=0,
        eos_token_id=0,
        eot_token_id=11,
    ) | keyed(**overrides)


def plamo2_metadata(**overrides: Any) -> dict[str, Any]:
    """A PLaMo-2 vocabulary; its special tokens' scores keep them out of plain text."""
    rng = random.Random("scores of plamo2")
    names = [("unk", UNKNOWN), ("bos", CONTROL), ("eos", CONTROL), ("pad", CONTROL)]
    tokens = [(f"<|plamo:{name}|>", type, -3000.0) for name, type in names]
    tokens += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    # Some scores are equal, and some pieces cost more than the bytes of their characters.
    tokens += [
        (piece, NORMAL, round(rng.uniform(-14, -1), rng.choice([0, 1, 4])))
        for piece in [*_pieces("plamo2", 2000), "</s>"]
    ]
    tokens += [("zz", NORMAL, -1999.0), ("[PAD1]", UNUSED, -1000.0)]
    return _scored(
        "plamo2", tokens, bos_token_id=1, eos_token_id=2, add_space_prefix=False
    ) | keyed(**overrides)


KINDS = {
    "ugm": ugm_metadata(),
    "ugm-spaces": ugm_metadata(remove_extra_whitespaces=False),
    "rwkv": rwkv_metadata(),
    "plamo2": plamo2_metadata(),
}
"""Vocabularies by kind for which llama.cpp's tokens are recorded."""
