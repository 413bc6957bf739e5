"""The page on the server: its Python blocks, which need a server, and its statuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.documents import PYTHON, ROOT, SERVER, rows_of, text_of
from tests.server.conftest import MODEL, Server

BLOCKS = PYTHON.findall(text_of(SERVER))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_blocks_run(server: Server, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    code = block.replace("http://127.0.0.1:8080", server.url).replace(
        'model="model"', f'model="{MODEL}"'
    )
    names: dict[str, Any] = {}
    exec(code, names)
    names["api"].close()
    assert len(capsys.readouterr().out) > 20


def test_statuses_are_those_of_the_server() -> None:
    """Each is raised somewhere in the room, and all that are raised are on the page."""
    sources = [path.read_text() for path in (ROOT / "ggmlpy" / "server").rglob("*.py")]
    raised = {
        int(n) for text in sources for n in re.findall(r"(?:ApiError|_refuse)\(\s*(\d{3})", text)
    }
    listed = {int(n) for row in rows_of(SERVER, "status")[1:] for n in re.findall(r"\d{3}", row[0])}
    assert raised <= listed | {409, 500, 501}
    assert listed - {400, 405} <= raised
