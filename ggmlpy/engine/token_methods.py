"""The methods of `Llama` for tokens: between them and text, their counts, and their logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import is_list, kind_of
from ggmlpy.engine.state_methods import StateMethods
from ggmlpy.errors import ArgumentError, BadBatch, Unsupported
from ggmlpy.memory.batch import check_tokens
from ggmlpy.models import Model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import room_for


class TokenMethods(StateMethods):
    """A model whose tokens, and the logits of each, are at hand."""

    model: Model
    _context: Context

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The token ids of a text, or of its bytes in UTF-8. `special` parses control tokens.

        Raises TokenizerError for text that cannot be tokenized, ArgumentError for what is no text.
        """
        return self.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of token ids; control tokens are left out unless `special`.

        As in llama-cpp-python, a space that the tokenizer put after a BOS at the beginning is
        removed, so that the text is the one that was tokenized.

        Raises TokenizerError for a token outside the vocabulary, ArgumentError for what is none.
        """
        if not is_list(tokens):
            raise ArgumentError(f"tokens is {kind_of(tokens)}: it must be a list of token ids")
        return self.tokenizer.decode_prompt(tokens, special=special)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits of every token of a new sequence, [n_tokens, n_vocab]. Resets the model.

        Raises ArgumentError for what is no list, BadBatch for tokens outside the vocabulary, or
        more than the context of a sequence, Unsupported for a model with an encoder.
        """
        self._check_open()
        if not self.model.has_logits:
            raise Unsupported(
                f"{self._file.name}: an encoder of architecture {self.model.hparams.architecture}"
                " has no logits: use embed"
            )
        if self.model.encoder is not None:
            raise Unsupported(
                f"{self._file.name}: logits of an encoder-decoder model follow from a source too:"
                " use Context.encode, then Context.decode"
            )
        if not is_list(tokens):
            raise ArgumentError(f"tokens is {kind_of(tokens)}: it must be a list of token ids")
        if len(tokens) > self.n_ctx_seq():
            sizes = self._context.sizes
            raise BadBatch(
                f"{len(tokens)} tokens, a sequence may have n_ctx_seq = {sizes.n_ctx_seq};"
                f" {room_for(sizes, len(tokens))} would do"
            )
        check_tokens(tokens, self.n_vocab())
        with self._answers.exclusive():
            self.reset()
            self._context.use_lora(0, self.engine.adapters.scales())
            logits = self._context.decode(tokens, all_logits=True)[:, : self.n_vocab()].copy()
            self.reset()
        return logits

    def n_ctx(self) -> int:
        """Tokens of all sequences together."""
        return self._context.sizes.n_ctx

    def n_ctx_seq(self) -> int:
        """Tokens that one sequence may have."""
        return self._context.sizes.n_ctx_seq

    def n_vocab(self) -> int:
        """Tokens in the vocabulary, without rows that pad the embedding."""
        return self.engine.n_vocab

    def n_embd(self) -> int:
        """Elements of a token's embedding."""
        return self.model.hparams.n_embd

    def token_bos(self) -> int | None:
        """The token that begins a text."""
        return self.tokenizer.bos_id

    def token_eos(self) -> int | None:
        """The token that ends a text."""
        return self.tokenizer.eos_id

    def token_eot(self) -> int | None:
        """The token that ends a message of a chat (EOT)."""
        return self.tokenizer.eot_id
