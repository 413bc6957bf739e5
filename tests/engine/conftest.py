"""A tiny random model for the tests of Llama."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ggmlpy import Llama
from tests.models.tiny import Tiny, write_model


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


@pytest.fixture
def tiny(tiny_path: Path) -> Iterator[Llama]:
    with Llama(tiny_path, backend="reference") as llm:
        yield llm
