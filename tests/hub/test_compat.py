"""`from_pretrained` of the interface of llama-cpp-python."""

from __future__ import annotations

import pytest

from ggmlpy.compat.llama_cpp import Llama
from ggmlpy.packaged import packaged_model
from tests.hub.stand_in import StandIn


def test_one_file_matches(hub: StandIn) -> None:
    files = {"s-Q8_0.gguf": packaged_model().read_bytes(), "s-Q4_0.gguf": b"GGUF"}
    hub.repos["me/stories"] = files
    with Llama.from_pretrained("me/stories", "*Q8_0*", verbose=False, n_ctx=64) as llm:
        assert llm("Once", max_tokens=2)["usage"]["completion_tokens"] == 2
    for pattern in ("*Q2_K*", "*.gguf"):
        with pytest.raises(ValueError, match="me/stories"):
            Llama.from_pretrained("me/stories", pattern)
