"""Grammars for the tokens of one vocabulary."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from ggmlpy.common.log import show
from ggmlpy.errors import GrammarError, TokenizerError
from ggmlpy.grammar.lazy import LazyGrammar, LazyMatcher, started
from ggmlpy.grammar.library import matcher_class, tokenizer_class
from ggmlpy.grammar.matcher import Matcher
from ggmlpy.grammar.spec import Grammar
from ggmlpy.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_N_KEPT = 32  # grammars that stay compiled


class Matchers:
    """Compiles grammars, and starts matchers of them. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def start(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of a text.

        The first one of a vocabulary takes some 4 us a token, the first one of a grammar from 1 ms
        on. Raises GrammarError for a grammar that cannot be used, MissingPackage, TokenizerError
        for a file without a usable vocabulary.
        """
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            base = self._compiled.get(grammar)
            if base is None or base.is_error():
                base = self._compile(grammar, self._vocabulary)
            self._compiled[grammar] = base
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _N_KEPT:
                self._compiled.popitem(last=False)
            return Matcher(base.deep_copy(), self._vocabulary.vocab_size, n_extra=1)

    def lazy(self, lazy: LazyGrammar, shown: Container[int]) -> LazyMatcher:
        """Looks for the trigger of a grammar in an answer in which the tokens `shown` have a text.

        Raises what `start` raises for a grammar that holds to the end of the answer. Another one
        is only compiled where the answer has the trigger: if it cannot be used a looser one holds,
        or the answer stays free, with a warning.
        """
        if lazy.holds:
            self.start(lazy.grammar)
        tokenizer = self._tokenizer

        def start(text: bytes) -> Matcher | None:
            try:
                matcher = self.start(lazy.grammar)
            except GrammarError as error:
                if lazy.looser is None:
                    raise
                show(f"a looser grammar holds: {error}", printed=False, level=logging.WARNING)
                matcher = self.start(lazy.looser())
            assert self._vocabulary is not None
            return started(matcher, [*lazy.begin, *self._vocabulary.tokenize_bytes(text)])

        return LazyMatcher(
            lazy, lambda token: tokenizer.token_bytes(token, special=token in shown), start
        )

    def _compile(self, grammar: Grammar, vocabulary: LLTokenizer) -> LLMatcher:
        source = grammar.source(self._token_of)
        made = matcher_class()(vocabulary, source, log_level=0)
        if made.is_error():
            raise grammar.refusal(made.get_error())
        return made

    def _token_of(self, text: str) -> int | None:
        """The token that a text is; None if it is several."""
        tokens = self._tokenizer.encode_part(text, special=True)
        return tokens[0] if len(tokens) == 1 else None


class _Wrapper:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        n_vocab = tokenizer.n_vocab
        self.tokens = [tokenizer.token_bytes(id) for id in range(n_vocab)]
        # Tokens without a text in answers: only their names can be in a grammar.
        self.special_token_ids = [id for id in range(n_vocab) if not self.tokens[id]]
        for id in self.special_token_ids:
            self.tokens[id] = tokenizer.token_bytes(id, special=True)
        # One that the model does not have: it ends texts if no other does, and stands for bytes
        # that no token has.
        self.tokens.append(b"")
        self.special_token_ids.append(n_vocab)
        self.ends = sorted(tokenizer.eog_ids) or [n_vocab]
        self.eos_token_id = self.ends[0]

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text within another; it must not raise.

        Those that the tokenizer makes of it, unless it would change the text, as some kinds do.
        """
        data = text.encode()
        with suppress(TokenizerError):
            tokens = self._tokenizer.encode_part(text)
            if b"".join(self.tokens[token] for token in tokens) == data:
                return tokens
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token that fits, time and again, up to where none does: nothing follows."""
        tokens: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            found = (self._ids[data[at:end]] for end in ends if data[at:end] in self._ids)
            token = next(found, None)
            if token is None:
                return [*tokens, self._tokenizer.n_vocab]
            tokens.append(token)
            at += len(self.tokens[token])
        return tokens

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {token: id for id, token in enumerate(self.tokens) if id not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """Raises MissingPackage, TokenizerError."""
    made = tokenizer_class()  # before the work that is useless without it
    wrapper = _Wrapper(tokenizer)
    # Its stub declares a class of llguidance; what it needs of it is above.
    return made(wrapper, eos_token=wrapper.ends)  # type: ignore[arg-type]
