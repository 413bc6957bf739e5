"""Models that a file's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ggmlpy import Llama as Own
from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import Llama
from tests.compat.models import make


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with make() as model:
        yield model


@pytest.fixture(scope="module")
def scored() -> Iterator[Llama]:
    with make(logits_all=True) as model:
        yield model


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with Own(packaged_model(), n_ctx=128) as model:
        yield model
