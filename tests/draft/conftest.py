"""Models that a file's tests share: the packaged one, and a random one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ggmlpy import Llama, packaged_model
from tests.models.tiny import Tiny, write_model


@pytest.fixture(scope="module")
def plain() -> Iterator[Llama]:
    with Llama(packaged_model(), n_ctx=128, n_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())
