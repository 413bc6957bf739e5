"""Embeddings in llama-cpp-python's form."""

from __future__ import annotations

from typing import Any, cast

from ggmlpy.compat.llama_cpp.completions import Completions
from ggmlpy.compat.llama_cpp.llama_types import CreateEmbeddingResponse, Embedding
from ggmlpy.engine.embeddings import Pooling, pooling_of


class EmbeddingMethods(Completions):
    """A model that embeds texts, if it was made with `embedding=True`."""

    _embedding = False
    _pooling_type = -1  # LLAMA_POOLING_TYPE_UNSPECIFIED: what the file says

    def pooling_type(self) -> int:
        """How the embeddings of tokens are pooled: one of LLAMA_POOLING_TYPE_…"""
        if self._pooling_type >= 0:
            return self._pooling_type
        return int(pooling_of(self._model_in_use.model))

    def create_embedding(
        self, input: str | list[str], model: str | None = None
    ) -> CreateEmbeddingResponse:
        """The embeddings of one or more texts, in OpenAI's form."""
        texts = input if isinstance(input, list) else [input]
        embeddings, n_tokens = cast(tuple[list[Any], int], self.embed(texts, return_count=True))
        data: list[Embedding] = [
            {"object": "embedding", "embedding": embedding, "index": i}
            for i, embedding in enumerate(embeddings)
        ]
        return {
            "object": "list",
            "data": data,
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The embedding of a text as a list of floats, or of each of a list of texts.

        Without pooling it is a list of such lists, one for each token. Texts longer than `n_batch`
        are cut, or with `truncate=False` raise ValueError. With `return_count` the result is a
        tuple with the number of tokens.
        """
        if not self._embedding:
            raise RuntimeError(
                "Llama model must be created with embedding=True to call this method"
            )
        texts = [input] if isinstance(input, str) else input
        tokens = [self.tokenize(text.encode()) for text in texts]
        if truncate:
            tokens = [each[: self.n_batch] for each in tokens]
        for each in tokens:
            if len(each) > self.n_batch:
                raise ValueError(
                    f"Requested tokens ({len(each)}) exceed batch size of {self.n_batch}"
                )
        pooling = Pooling(self.pooling_type()).name.lower()
        found = self._model_in_use.embed(tokens, pooling=pooling, normalize=normalize)
        lists = [each.tolist() for each in found]
        output = lists[0] if isinstance(input, str) else lists
        return (output, sum(map(len, tokens))) if return_count else output
