"""The vocabulary of a GGUF file: the text, type and score of every token, and special tokens.

Opening reads and checks only lengths and single values. Texts, types and scores are decoded at
their first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import special
from ggmlpy.text.tokenizer.keys import PREFIX, Keys
from ggmlpy.text.tokenizer.special import TokenType


class TokenizerWarning(UserWarning):
    """Text can be encoded, but its tokens may differ from those of the model's training."""


class Vocabulary:
    """Tokens by id, ids by text, and which tokens are special.

    Raises TokenizerError, naming the key, if an array has fewer elements than there are tokens, or
    BOS or EOS is outside the vocabulary. Other special ids outside it are ignored, because many
    files have such a padding id.
    """

    def __init__(self, keys: Keys, default_ids: Mapping[str, int]) -> None:
        self.keys = keys
        self._tokens: Sequence[Any] = keys.array("tokens") or ()
        self.n_vocab = len(self._tokens) or _n_vocab_without_tokens(keys.metadata)
        self._types = self._per_token("token_type")
        self._scores = self._per_token("scores")
        self.declared_ids = self._declared_ids(default_ids)

    @property
    def has_tokens(self) -> bool:
        return len(self._tokens) > 0

    @property
    def has_scores(self) -> bool:
        return self._scores is not None

    @cached_property
    def texts(self) -> list[str]:
        """The stored text of every token: "▁the", "Ġthe", "<|im_end|>", "<0x0A>"."""
        return self.keys.strings("tokens", self._tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by text: the first one of tokens with the same text, without empty texts."""
        n = len(self.texts)
        ids = dict(zip(reversed(self.texts), range(n - 1, -1, -1), strict=True))
        ids.pop("", None)
        return ids

    @cached_property
    def types(self) -> list[int]:
        """The type of every token in the file, but as llama.cpp sets it for known texts."""
        types: list[int] = [TokenType.NORMAL] * len(self._tokens)
        if self._types is not None:
            types = self._numbers("token_type", self._types).tolist()
        for token, type in self.special.types.items():
            types[token] = type
        return types

    @cached_property
    def scores(self) -> list[float]:
        """The score of every token. Raises TokenizerError if they are missing or one is NaN."""
        if self._scores is None:
            raise self.keys.error("scores", "is missing")
        scores = self._numbers("scores", self._scores).astype(np.float32)
        if np.isnan(scores).any():
            i = int(np.isnan(scores).argmax())
            raise self.keys.error("scores", f"is not a number at {i}")
        listed: list[float] = scores.tolist()
        return listed

    @cached_property
    def special(self) -> special.SpecialTokens:
        """The special tokens by name, declared or recognised by their text."""
        markup = set()  # tokens that the file declares as part of plain text
        if self._types is not None:
            stored = self._numbers("token_type", self._types)
            markup = set(np.flatnonzero(stored == TokenType.USER_DEFINED).tolist())
        return special.find_special_tokens(self.ids, self.declared_ids, markup)

    def check_texts(self) -> None:
        """Raise TokenizerError if a text is not UTF-8, or occurs twice."""
        try:
            "".join(self.texts).encode()
        except UnicodeEncodeError as error:
            i = next(i for i, text in enumerate(self.texts) if not _is_unicode(text))
            raise self.keys.error(
                "tokens", f"holds {quoted(self.texts[i])} at {i}, not UTF-8"
            ) from error
        n_empty = self.texts.count("")
        if len(self.ids) + n_empty == len(self.texts):
            return
        second = next(i for i, text in enumerate(self.texts) if text and self.ids[text] != i)
        text = self.texts[second]
        raise self.keys.error(
            "tokens", f"has {quoted(text)} twice, at {self.ids[text]} and {second}"
        )

    def _per_token(self, key: str) -> Sequence[Any] | None:
        array = self.keys.array(key)
        if array is None or len(self._tokens) == 0:
            return None
        if len(array) >= len(self._tokens):
            return array
        raise self.keys.error(key, f"has {len(array)} elements for {len(self._tokens)} tokens")

    def _numbers(self, key: str, array: Sequence[Any]) -> NDArray[Any]:
        """One number per token; arrays may have more elements than there are tokens."""
        return self.keys.numbers(key, array)[: len(self._tokens)]

    def _declared_ids(self, defaults: Mapping[str, int]) -> dict[str, int]:
        ids = {name: id for name, id in defaults.items() if id < self.n_vocab}
        for name, keys in special.KEYS.items():
            for key in keys:
                id = self.keys.token(key)
                if id is None:
                    if PREFIX + key in self.keys.metadata:
                        ids.pop(name, None)  # the file declares that there is none
                    continue
                if 0 <= id < self.n_vocab:
                    ids[name] = id
                    break
                if name in ("bos", "eos") and self.n_vocab:
                    tokens = f"the vocabulary has {self.n_vocab} tokens"
                    raise self.keys.error(key, f"is {id}, {tokens}")
        return ids


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _n_vocab_without_tokens(metadata: Mapping[str, Any]) -> int:
    """The vocabulary size in a file without a vocabulary."""
    size = metadata.get(f"{metadata.get('general.architecture')}.vocab_size", 0)
    if isinstance(size, int) and size >= 0:
        return size
    raise TokenizerError(f"vocab_size is {size!r:.40}, must be a count")
