"""The methods of `Llama` that give embeddings and scores of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

from ggmlpy.common.arguments import is_list, kind_of
from ggmlpy.engine.embeddings import Embedder, Pooling, Vector, pooling_of
from ggmlpy.engine.scoring import ScoringMethods
from ggmlpy.errors import ArgumentError
from ggmlpy.runtime.context import Context
from ggmlpy.text.pairs import pair_tokens

N_SEQ_MAX = 32  # texts of a batch

Text = str | bytes | Sequence[int]  # or its tokens


class EmbeddingMethods(ScoringMethods):
    """A model that embeds texts too. Results are the same whatever texts are embedded together."""

    _embedder: Embedder | None = None

    @overload
    def embed(
        self, texts: str | bytes, *, pooling: str | None = ..., normalize: bool = ...
    ) -> Vector: ...
    @overload
    def embed(
        self,
        texts: list[str] | list[bytes] | list[list[int]] | list[Text] | tuple[Text, ...],
        *,
        pooling: str | None = ...,
        normalize: bool = ...,
    ) -> list[Vector]: ...
    def embed(
        self,
        texts: str | bytes | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: bool = True,
    ) -> Vector | list[Vector]:
        """The embedding of a text [n_embd], or of each of a list of texts. Of a decoder it is what
        logits are computed from. Does not change what the memory holds.

        texts      text or its bytes, in which control tokens are parsed; in a list also tokens
        pooling    "mean", "cls" (the first token), "last", "none" (the embeddings of all tokens,
                   [n_tokens, n_embd]), "rank" (the scores of a reranker's labels); None: what the
                   file says, or else "none"
        normalize  scale embeddings to the length 1; scores are left as they are

        Raises BadBatch for a text that is longer than the context, or of an encoder than n_ubatch;
        Unsupported for scores of a model without a classifier.
        """
        self._check_open()
        model = self.engine.context.model
        chosen = pooling_of(model) if pooling is None else Pooling.named(pooling)
        if not isinstance(texts, Sequence):
            raise ArgumentError(f"texts is {texts!r:.60}: it must be a text or a list of texts")
        if isinstance(texts, str | bytes):
            return self._embedded([self._tokens(texts)], chosen, normalize)[0]
        return self._embedded([self._tokens(text) for text in texts], chosen, normalize)

    def embed_batches(
        self,
        texts: Sequence[Sequence[int]],
        *,
        pooling: str | None = None,
        normalize: bool = True,
    ) -> Iterator[list[Vector]]:
        """The embeddings of texts, given as tokens, in batches, each of which is run when it is
        asked for: others can use the model between them.

        Options and errors are those of `embed`; all texts are checked before the first is run.
        """
        self._check_open()
        model = self.engine.context.model
        chosen = pooling_of(model) if pooling is None else Pooling.named(pooling)
        with self._embedding() as embedder:
            embedder.check(texts)
            batches = list(embedder.batches(texts))
        return (self._embedded(batch, chosen, normalize) for batch in batches)

    def rank(self, query: str | bytes, documents: Sequence[str | bytes]) -> list[float]:
        """How well each document answers a query: the first score of a reranker.

        Raises what `embed` raises.
        """
        self._check_open()
        if not is_list(documents):
            raise ArgumentError(f"documents is {kind_of(documents)}: it must be a list of texts")
        pairs = [pair_tokens(self.tokenizer, self.metadata, query, text) for text in documents]
        return [float(scores[0]) for scores in self._embedded(pairs, Pooling.RANK, False)]

    def _tokens(self, text: Text) -> list[int]:
        if isinstance(text, str | bytes):
            return self.tokenizer.encode(text, add_bos=True, special=True)
        tokens = list(text) if isinstance(text, Sequence) else [None]
        if not all(isinstance(token, int) for token in tokens):
            raise ArgumentError(
                f"texts has {text!r:.60}: each text must be str, bytes, or a list of tokens; tokens"
                " of one text go into a list of lists, as [[1, 2, 3]]"
            )
        return [token for token in tokens if isinstance(token, int)]

    def _embedded(
        self, texts: Sequence[Sequence[int]], pooling: Pooling, normalise: bool
    ) -> list[Vector]:
        with self._embedding() as embedder:
            return embedder.embed(texts, pooling, normalise=normalise)

    @contextmanager
    def _embedding(self) -> Iterator[Embedder]:
        """What embeds texts, for one thread at a time."""
        with self._answers.exclusive():
            self._check_open()
            self.engine.check_idle_step()
            if self._embedder is None:
                self._embedder = Embedder(self._embedding_context())
            self._embedder.use_lora(self.engine.adapters.scales())
            self._embedder.use_control_vector(self.engine.context.control_vector)
            yield self._embedder

    def _embedding_context(self) -> Context:
        """A context of the model that gives embeddings of up to N_SEQ_MAX texts."""
        raise NotImplementedError
