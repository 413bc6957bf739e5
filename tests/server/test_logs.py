"""The lines of requests in the log: what they have, and what they never have."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import FileError
from ggmlpy.server import Settings
from ggmlpy.server.logs import request_id, writing_logs
from ggmlpy.server.openai import results
from tests.server.conftest import MODEL, n_waiting, running, wait_for

SECRET, PROMPT = "key-that-nobody-sees", "A prompt that nobody sees"
BODY = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record.request for record in caplog.records if hasattr(record, "request")]
    return [each for each in found if each["path"] != "/health"]  # by which the server is awaited


def test_a_request_is_a_line_without_its_prompt_and_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ggmlpy.server")
    headers = {"Authorization": f"Bearer {SECRET}", "X-Request-Id": "abc-1"}
    with running(Settings(api_keys=frozenset({SECRET}))) as server:
        url = f"{server.url}/v1/completions?token={SECRET}"
        answered = httpx.post(url, json=BODY, headers=headers, timeout=60)
        wait_for(lambda: len(lines(caplog)) == 1)
        refused = httpx.post(url, json={**BODY, "top_p": 7}, headers=headers, timeout=60)
        unknown = httpx.post(url, json=BODY, headers={"Authorization": f"Bearer {SECRET}x"})
        wait_for(lambda: len(lines(caplog)) == 3)
    first, second, third = lines(caplog)
    assert answered.headers["x-request-id"] == first["id"] == "abc-1"
    assert first | {"duration_s": 0, "waited_s": 0, "prompt_s": 0, "decode_s": 0} == {
        "id": "abc-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "duration_s": 0,
        "model": MODEL,
        "answers": 1,
        "prompt_tokens": answered.json()["usage"]["prompt_tokens"],
        "cached_tokens": 0,
        "completion_tokens": 3,
        "waited_s": 0,
        "prompt_s": 0,
        "decode_s": 0,
    }
    assert first["duration_s"] >= first["prompt_s"] + first["decode_s"] > 0
    assert (second["status"], refused.headers["x-request-id"]) == (400, "abc-1")
    assert third["status"] == 401
    assert third["id"] == unknown.headers["x-request-id"] != "abc-1"
    assert SECRET not in caplog.text
    assert "nobody sees" not in caplog.text


def test_what_there_is_not_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ggmlpy.server")
    with running() as server:
        missing = httpx.get(f"{server.url}/nothing%0ahere", headers={"X-Request-Id": "a"})
        wrong = httpx.put(f"{server.url}/completion")
        wait_for(lambda: len(lines(caplog)) == 2)
    assert (missing.headers["x-request-id"], missing.status_code) == ("a", 404)
    assert [each["status"] for each in lines(caplog)] == [404, 405]
    assert lines(caplog)[1]["id"] == wrong.headers["x-request-id"]
    assert wrong.headers["allow"] == "POST"
    assert "\n" not in "".join(record.getMessage() for record in caplog.records)


def test_an_error_within_a_stream_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its cause: the event tells the client nothing of it."""

    def broken(timings: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(results, "timings_of", broken)
    with running() as server:
        asked = {**BODY, "stream": True}
        headers = {"X-Request-Id": "abc-2"}
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, headers=headers)
    assert json.loads(answer.text.split("data: ")[-1])["error"]["type"] == "server_error"
    assert "a bug" not in answer.text
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "abc-2" in record.getMessage()
    assert "ZeroDivisionError at test_logs.py:" in record.getMessage()
    assert record.exc_info is None


def test_prompts_are_logged_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ggmlpy.server")
    with running(Settings(log_prompts=True)) as server:
        httpx.post(f"{server.url}/completion", json=BODY, timeout=60)
        wait_for(lambda: len(lines(caplog)) == 1)
    assert lines(caplog)[0]["body"] == BODY
    assert PROMPT in caplog.text


def test_a_client_that_goes_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ggmlpy.server")
    body = {**BODY, "max_tokens": 450, "stream": True, "logit_bias": {"1": -100}}
    with running() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
        wait_for(lambda: len(lines(caplog)) == 1)
        with client.stream("POST", "/v1/completions", json={**body, "max_tokens": 3}) as stream:
            list(stream.iter_lines())
        wait_for(lambda: len(lines(caplog)) == 2)
    assert [each["status"] for each in lines(caplog)] == [499, 200]


@given(st.text(max_size=140))
def test_an_id_is_the_clients_if_it_fits_in_a_line(given: str) -> None:
    id = request_id(given)
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", id)
    assert id == given or len(id) == 32
    assert request_id(id) == id


def test_a_line_of_json_for_each_record(tmp_path: Path) -> None:
    file = tmp_path / "log"
    package, logger = logging.getLogger("ggmlpy"), logging.getLogger("ggmlpy.server")
    handlers = list(package.handlers)
    with writing_logs(as_json=True, file=file):
        logger.info("two\nlines", extra={"request": {"id": "a", "status": 200}})
        package.warning("%s", 'a "quoted"\nline')
        try:
            raise ValueError("wrong")
        except ValueError:
            logger.exception("failed")
    assert package.handlers == handlers
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["level"] for each in found] == ["info", "warning", "error"]
    assert (found[0]["id"], found[0]["status"]) == ("a", 200)
    assert found[1]["message"] == 'a "quoted"\nline'
    assert "ValueError: wrong" in found[2]["error"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", e["time"]) for e in found)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    wanted = "logs cannot be written: Is a directory"
    with pytest.raises(FileError, match=wanted), writing_logs(file=tmp_path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in the file system")
def test_logging_does_not_wait_for_who_reads(tmp_path: Path) -> None:
    pipe, logger = tmp_path / "pipe", logging.getLogger("ggmlpy.server")
    os.mkfifo(pipe)
    reader = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb")
    os.set_blocking(reader.fileno(), True)
    with reader, ThreadPoolExecutor(1) as pool:
        with writing_logs(file=pipe):
            for i in range(12_000):  # more than the pipe and the queue take: nobody reads yet
                logger.info("line %d", i)
            first = reader.readline()
            text = pool.submit(reader.read)
            wait_for(lambda: n_waiting() == 0)
            logger.info("there is room again")
        lines = (first + text.result()).decode().splitlines()
    said = [line.split(" ", 3)[3] for line in lines]
    n_lost = int(said[-2].split(" ")[0])
    assert n_lost > 0
    assert said[-2:] == [f"{n_lost} lines of the log are lost", "there is room again"]
    assert said[:-2] == [f"line {i}" for i in range(12_000 - n_lost)]
