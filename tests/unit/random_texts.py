"""Seeded texts of every script, for comparing tokenizers, and vocabularies that show every cut.

In a vocabulary of all pairs of bytes (or of characters) any two neighbours of a word merge, in an
order that is random: where two tokenizers cut text into other words, their tokens differ too.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ggmlpy.text.tokenizer.bpe import BYTE_CHARS
from tests.unit.vocabularies import BYTE, CONTROL, NORMAL, SPACE, USER_DEFINED, keyed

ADDED = (
    ("<|begin|>", CONTROL),
    ("<|endoftext|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<tool>", USER_DEFINED),
    ("<mask>", CONTROL),
    ("[MASK]", CONTROL),
)

CLASSES: dict[str, tuple[str, ...]] = {
    "words": ("Hello", " world", "The", " quick", "camelCase", " HTTPServer", "XMLHttp", "x", " I"),
    "contractions": ("'s", "'S", "don't", "DON'T", "I'll", "we'VE", " 'd", "'re", "'M", "'\u017f",
                     "\u2019s", "''", "'lL", " 't"),
    "digits": ("1", "12", "123", "1234", "12345", "1234567", " 42", "3.14", "0x1F", "\u0661\u0662",
               "\u0967\u0968\u0969\u096a", "\u00b2\u00bd", "\u2167", "1,000,000"),
    "spaces": (" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0",
               "\u2003", "\u3000", "\v", "\f", "\u2028", "\u1680", "\u202f", "    ", "        "),
    "signs": ("!", "?!", "...", "==", "$", "+", "<=", "^", "~", "|", "`", "/", "//", "#", "(", ")",
              "-", "--", "_", "\\", "\u20ac", "\u00a7", "\u00b1", "\u2026", "\u2014", "\u201c"),
    "latin": ("\u00e9t\u00e9", "\u00c9T\u00c9", "stra\u00dfe", "\u00dcber", "na\u00efve", "\u0131",
              "\u0130", "\u01c5", "\u02b0", "\u00aa", "\u1e9e", "\ufb01", "\u0192"),
    "greek": ("\u03b1\u03b2\u03b3", "\u0391\u0392", "\u03a9", "\u0416\u0438", "\u043c\u0438\u0440",
              " \u041c\u0418\u0420", "\u0451", "\u10d0\u10d1", "\u1c90", "\u0561\u0562"),
    "east": ("\u4eca\u65e5", "\u6c49\u5b57", "\u3042\u3044", "\u30ab\u30bf", "\uff76\uff9e",
             "\ud55c\uad6d\uc5b4", "\u3131", "\u3105", "\u3002", "\uff0c", "\u300c\u300d", "\u30fc",
             "\u3005", "\u3007", "\uff11\uff12", "\U00020000", "\u3400", "\uff21\uff42", "\u30fb",
             "\u4e00", "\u9fff"),
    "south": ("\u0e01\u0e33\u0e48", " \u0e44\u0e17\u0e22", "\u0928\u092e\u0938\u094d\u0924\u0947",
              "\u0995\u09bf", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd", "\u1780\u17d2\u1798", "\u0e81",
              "\u1000\u103b", "\u0f40\u0f72", "\u0915\u093f"),
    "right": ("\u0645\u0631\u062d\u0628\u0627", " \u0645\u064e", "\u05e9\u05dc\u05d5\u05dd",
              "\u05e9\u05c1", "\u060c", "\u061f", "\u06d4", "\u0964", "\u200f", "\u0640"),
    "marks": ("e\u0301", "\u0301", "a\u0308\u0323", "\u20e3", "\u0302x", "1\u0301", " \u0301",
              "n\u0303o", "\u1ab0", "\u0483"),
    "emoji": ("\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f",
              "\u2603", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3", "\u00a9", "\u2190", "\u2500"),
    "controls": ("\0", "\x01", "\x1b", "\x7f", "\u0085", "\u200b", "\u200d", "\ufeff", "\u00ad",
                 "\ufffd", "\ue000", "\U000e0001", "\uffff", "\x1c", "\u0378"),
    "tokens": ("<|begin|>", "<|endoftext|>", "<tool>", "<|im_end|>", "<|im", "_end|>", "<mask>",
               " <mask>", "[MASK]", "<", "|>", "<sentinel:12>", "IMGIMGABZ", "<0x41>", SPACE),
}  # fmt: skip
"""Pieces of text by kind."""

_INVALID = (b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"\xfe", b"\xbf")


def texts(kind: str, n: int, seed: int = 0) -> Iterator[str]:
    """`n` texts, two thirds of whose pieces are of one kind."""
    rng = random.Random(f"{kind} {seed}")
    others = [piece for pieces in CLASSES.values() for piece in pieces]
    for _ in range(n):
        pieces = (
            rng.choice(CLASSES[kind] if rng.random() < 0.66 else others)
            for _ in range(rng.randint(1, 12))
        )
        joint = " " if rng.random() < 0.3 else ""
        yield joint.join(pieces)


def invalid_texts(n: int, seed: int = 0) -> Iterator[bytes]:
    """`n` texts with bytes that are not UTF-8."""
    rng = random.Random(f"invalid {seed}")
    others = [piece.encode() for pieces in CLASSES.values() for piece in pieces]
    for _ in range(n):
        yield b"".join(
            rng.choice(_INVALID if rng.random() < 0.3 else others)
            for _ in range(rng.randint(1, 10))
        )


def corpus(n: int, seed: int = 0) -> Iterator[tuple[str, str | bytes]]:
    """`n` texts of each kind, with the kind."""
    for kind in CLASSES:
        for text in texts(kind, n, seed):
            yield kind, text
    for raw in invalid_texts(n, seed):
        yield "invalid", raw


def digest(tokens: Iterable[list[int]]) -> str:
    """A short digest of the tokens of some texts."""
    crc = 0
    for ids in tokens:
        crc = zlib.crc32(np.array([*ids, -1], "<i4").tobytes(), crc)
    return f"{crc:08x}"


def byte_pair_metadata(**overrides: Any) -> dict[str, Any]:
    """A byte-level vocabulary of the 256 bytes and all their pairs, merged in a random order."""
    return _pairs(BYTE_CHARS, [NORMAL] * 256) | keyed(**overrides)


def char_pair_metadata(**overrides: Any) -> dict[str, Any]:
    """A vocabulary of plain characters and their pairs, with tokens for bytes and newlines."""
    rng = random.Random("characters")
    found = sorted({char for pieces in CLASSES.values() for piece in pieces for char in piece})
    chars = rng.sample([char for char in found if char not in " \0"], 200)
    chars = [*dict.fromkeys([*chars, SPACE, "\n", "a", "e", "1"])]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    made = _pairs(chars, [NORMAL] * len(chars), [*tokens, "\n\n\n"], [BYTE] * 256 + [NORMAL])
    return made | keyed(**overrides)


def _pairs(
    chars: list[str], types: list[int], more: list[str] | None = None, more_types: Any = ()
) -> dict[str, Any]:
    # Merges are "left right", so neither half may be a space or hold a newline.
    mergeable = [char for char in chars if char not in " \n"]
    pairs = [(a, b) for a in mergeable for b in mergeable]
    random.Random("pairs").shuffle(pairs)
    tokens = [*chars, *(more or []), *(a + b for a, b in pairs)]
    first = len(tokens)
    return keyed(
        model="gpt2",
        pre="gpt-2",
        tokens=[*tokens, *(text for text, _ in ADDED)],
        token_type=[
            *types,
            *more_types,
            *[NORMAL] * len(pairs),
            *(type for _, type in ADDED),
        ],
        merges=[f"{a} {b}" for a, b in pairs],
        bos_token_id=first,
        eos_token_id=first + 1,
    )
