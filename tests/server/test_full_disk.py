"""A full disk: slots that are saved, and logs. And processes that are killed while they save."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggmlpy.memory.state import SequenceState
from ggmlpy.memory.state_file import read_file, remove_unfinished, write_file
from ggmlpy.server import Settings
from ggmlpy.server.logs import writing_logs
from tests.processes import largest_file
from tests.processes import running as running_process
from tests.server.conftest import n_waiting, open_model, running, wait_for

BODY = {"prompt": "Once upon a time " * 8, "n_predict": 1, "temperature": 0}
OTHER = {**BODY, "prompt": "The cat sat on the mat. " * 8}
SAVE, RESTORE = "/slots/0?action=save", "/slots/0?action=restore"
CAT = {"filename": "cat"}
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.mark.parametrize("where", ["write", "fsync", "rename"])
def test_a_slot_that_cannot_be_saved(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was saved before stays, and nothing else; the next request is answered."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        running(Settings(slot_save_path=str(tmp_path)), lambda: open_model(n_seq_max=1)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        first = client.post("/completion", json=BODY).json()
        saved = client.post(SAVE, json=CAT).json()
        before = (tmp_path / "cat").read_bytes()
        client.post("/completion", json=OTHER)
        for _ in range(3):
            with monkeypatch.context() as patch, largest_file(2000 if where == "write" else 2**30):
                if where == "fsync":
                    patch.setattr(os, "fsync", full)
                elif where == "rename":
                    patch.setattr(Path, "replace", full)
                refused = client.post(SAVE, json=CAT)
            assert refused.status_code == 500
            error = refused.json()["error"]
            reason = os.strerror(errno.EFBIG if where == "write" else errno.ENOSPC)
            assert error["message"] == f"cat cannot be saved: {reason}"
            assert (error["type"], error["param"]) == ("server_error", "filename")
            assert list(tmp_path.iterdir()) == [tmp_path / "cat"]
            assert (tmp_path / "cat").read_bytes() == before
        assert client.post("/completion", json=OTHER).json()["timings"]["prompt_n"] == 1
        assert client.post(RESTORE, json=CAT).json()["n_restored"] == saved["n_saved"]
        again = client.post("/completion", json=BODY).json()
        assert again["content"] == first["content"]
        assert again["timings"]["prompt_n"] == 1


N_VALUES = 50_000  # of the states that are written: 200 KB, which say all over which one it is
WRITER = f"""
import sys
import numpy as np
from ggmlpy.memory.state import SequenceState
from ggmlpy.memory.state_file import write_file
print("begins", flush=True)
for n in range(10**6):
    state = SequenceState([n], {{}}, {{(0, 0): np.full({N_VALUES}, n, np.float32)}})
    write_file(sys.argv[1], {{0: state}})
"""


def test_a_process_that_is_killed_while_it_saves(tmp_path: Path) -> None:
    """At any moment: the file is one that was written whole, not older than any before. What the
    process leaves beside it is removed when a server starts."""
    file = tmp_path / "cat"
    rng = random.Random(1)
    newest, n_left = -1.0, 0
    for _ in range(10):
        command = [sys.executable, "-c", WRITER, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.random() / 40)
            writer.kill()
        others = {each.name for each in tmp_path.iterdir()} - {"cat"}
        assert all(re.fullmatch(r"\.cat\.\w{8}\.unfinished", name) for name in others)
        assert len(others) in (n_left, n_left + 1)
        n_left = len(others)
        if file.exists():
            found = read_file(file)[0][0]
            assert found.recurrent[0, 0].tolist() == [float(found.tokens[0])] * N_VALUES
            newest = found.tokens[0]
    assert newest >= 0
    (tmp_path / ".cat.abcdefgh.unfinished").write_bytes(file.read_bytes()[:1000])
    (tmp_path / ".mine").touch()
    with running(Settings(slot_save_path=str(tmp_path)), lambda: open_model(n_seq_max=1)):
        assert {each.name for each in tmp_path.iterdir()} == {"cat", ".mine"}


def test_what_is_being_written_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another server that starts meanwhile."""
    removed = []
    monkeypatch.setattr(os, "fsync", lambda _: removed.append(remove_unfinished(tmp_path)))
    (tmp_path / ".old.abcdefgh.unfinished").touch()
    write_file(tmp_path / "cat", {0: SequenceState([7], {}, {})})
    assert removed == [0]
    assert read_file(tmp_path / "cat")[0][0].tokens == [7]
    assert remove_unfinished(tmp_path) == 1
    assert remove_unfinished(tmp_path) == 0


@needs_full
def test_logs_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr, not one for each; the log says later that there is a gap."""
    file = tmp_path / "log"
    logger = logging.getLogger("ggmlpy.server")
    with writing_logs(file=Path("/dev/full")):
        for _ in range(3):
            logger.info("lost")
    assert capsys.readouterr().err == (
        "/dev/full: logs cannot be written: No space left on device\n"
    )
    with writing_logs(file=file):
        logger.info("first")
        wait_for(lambda: file.stat().st_size > 0)  # a thread writes
        told: list[str] = []

        def said() -> str:
            told.append(capsys.readouterr().err)
            return "".join(told)

        with largest_file(file.stat().st_size):
            for _ in range(1000):
                logger.info("lost %s", "x" * 50)
            wait_for(lambda: n_waiting() == 0 and bool(said()))
        logger.info("last")
        logger.info("and more")
    assert said() == f"{file}: logs cannot be written: File too large\n"
    lines = [line.split(" ", 3)[3] for line in file.read_text().splitlines()]
    assert lines[0] == "first"
    assert lines[-3:] == [
        "last",
        "lines before this one may be missing: they could not be written",
        "and more",
    ]
    assert len(lines) < 200  # what the stream still had when there was room again


@needs_full
@pytest.mark.parametrize("closed", [False, True])
def test_a_server_answers_whatever_becomes_of_its_logs(tmp_path: Path, closed: bool) -> None:
    """With stderr on a full disk, or closed, and --log-file on a full disk."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "-np", "1", "--log-file", "/dev/full"]
    command = f'exec "$@" {"2>&-" if closed else "2>/dev/full"} >&-'
    python = [sys.executable, "-m", "ggmlpy", "serve", *options]
    with running_process(["sh", "-c", command, "sh", *python]) as server:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: httpx.get(f"{url}/health").status_code != 503, errors=True)
        for _ in range(3):
            found = httpx.post(f"{url}/completion", json=BODY, timeout=60)
            assert found.status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
