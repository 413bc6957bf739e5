"""Embeddings of texts."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.compat import llama_cpp
from tests.compat.models import make


def test_embeddings() -> None:
    with make(embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN) as model:
        one = model.embed("a cat", normalize=True)
        assert len(one) == model.n_embd()
        assert np.isclose(np.linalg.norm(one), 1)
        result = model.create_embedding(["a cat", "a dog"])
        assert [entry["index"] for entry in result["data"]] == [0, 1]
        assert np.allclose(np.array(result["data"][0]["embedding"]) / np.linalg.norm(
            result["data"][0]["embedding"]), one, atol=1e-6)  # fmt: skip
        n = sum(len(model.tokenize(text)) for text in (b"a cat", b"a dog"))
        assert result["usage"] == {"prompt_tokens": n, "total_tokens": n}
        assert model.embed(["a"], return_count=True)[1] == len(model.tokenize(b"a"))
        with pytest.raises(ValueError, match="exceed batch size of 128"):
            model.embed("a " * 200, truncate=False)
    with make(embedding=True) as model:
        assert np.shape(model.embed("a cat")) == (len(model.tokenize(b"a cat")), model.n_embd())
    with make() as model, pytest.raises(RuntimeError, match="embedding=True"):
        model.embed("a cat")
