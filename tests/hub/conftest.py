"""A stand-in of the hub, and a cache of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.stand_in import StandIn, serving


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    constants = pytest.importorskip("huggingface_hub.constants")
    from ggmlpy.hub import fetch, transfer

    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "_WAIT_S", 0.01)
    monkeypatch.setattr(fetch, "default_folder", lambda: tmp_path / "own")
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
