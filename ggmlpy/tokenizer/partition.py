"""Cutting text at the tokens that are matched in it literally, before any other rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ggmlpy.tokenizer.vocabulary import TokenType, Vocabulary

_SPACES = " \t\n\v\f\r"
_LITERAL = frozenset(map(int, (TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)))


@dataclass(frozen=True, slots=True)
class Literal:
    """A token matched by its text, and whether it swallows the spaces before or after it."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class Partition:
    """The literal tokens of a vocabulary.

    User-defined tokens are matched in any text, control and unknown tokens only where the caller
    wants special tokens parsed: otherwise a user's text could end a message or start a new one.
    """

    def __init__(self, vocab: Vocabulary, pre: str | None) -> None:
        strips = _strip_rule(vocab, pre)
        literals = [
            Literal(id, vocab.texts[id], *strips(vocab.texts[id]))
            for id, type in enumerate(vocab.types)
            if type in _LITERAL and vocab.texts[id]
        ]
        literals.sort(key=lambda literal: len(_utf8(literal.text)), reverse=True)
        self._all = literals
        self._plain = [
            literal for literal in literals if vocab.types[literal.id] == TokenType.USER_DEFINED
        ]

    def split(self, text: str, special: bool) -> list[str | int]:
        """Texts and token ids in order; no text is empty.

        A longer token is matched before a shorter one, even one that begins further left.
        """
        parts: list[str | int] = [text] if text else []
        for literal in self._all if special else self._plain:
            if literal.text in text:
                parts = list(_cut(parts, literal))
        return parts


def _cut(parts: Iterable[str | int], literal: Literal) -> Iterator[str | int]:
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        left, *rights = part.split(literal.text)
        for right in rights:
            left = left.rstrip(_SPACES) if literal.lstrip else left
            if left:
                yield left
            yield literal.id
            left = right.lstrip(_SPACES) if literal.rstrip else right
        if left:
            yield left


def _strip_rule(vocab: Vocabulary, pre: str | None) -> Callable[[str], tuple[bool, bool]]:
    """(lstrip, rstrip) of a special token by its text.

    GGUF has no such flags, so the few models that need them are known by name, as in llama.cpp.
    """
    name = str(vocab.keys.metadata.get("general.name", "")).lower()
    architecture = vocab.keys.metadata.get("general.architecture")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        return lambda text: (text == "<mask>", False)
    if "phi-3" in name or "phi3" in name:
        return lambda text: (False, text not in ("<unk>", "<s>", "<|endoftext|>"))
    if "modern-bert" in name:
        return lambda text: (text == "[MASK]", False)
    return lambda text: (False, False)


def _utf8(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
