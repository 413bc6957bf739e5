"""`ggmlpy batch`: files of requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama, packaged_model
from ggmlpy.errors import FileError
from tests.cli.conftest import Run
from tests.processes import largest_file

pytest.importorskip("starlette", reason="the extra ggmlpy[server] is not installed")
from ggmlpy.server.batch import read_done, read_requests


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    return path


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    made = {"prompt": f"The cat {custom_id}", "max_tokens": 6, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": made}


def answers_in(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["response"] for line in lines}


def test_every_request_has_its_answer(run: Run, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    lines = [
        *(request(f"r{i}") for i in range(20)),
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        request("hot", temperature="hot"),
        {"custom_id": "nowhere", "method": "POST", "url": "/v1/nothing", "body": {}},
        {"custom_id": "list", "method": "GET", "url": "/v1/models", "body": {}},
    ]
    source = write(tmp_path / "in.jsonl", lines)
    out = tmp_path / "out.jsonl"
    done = run("batch", str(source), str(out), "-np", "4")
    assert done.code == 0, done.err
    found = answers_in(out)
    assert {name: each["status_code"] for name, each in found.items()} == {
        **{f"r{i}": 200 for i in range(20)},
        "chat": 200,
        "hot": 400,
        "nowhere": 404,
        "list": 200,
    }
    assert found["hot"]["body"]["error"]["param"] == "temperature"
    assert "24 requests answered, 2 of them refused" in done.err
    with Llama(packaged_model()) as llm:
        for i in range(20):
            wanted = llm.create_completion(f"The cat r{i}", max_tokens=6, temperature=0)
            text = found[f"r{i}"]["body"]["choices"][0]["text"]
            assert text == wanted["choices"][0]["text"]


def test_it_goes_on_where_it_was_cut(run: Run, tmp_path: Path) -> None:
    """Whole lines stay as they are, the cut one is run again."""
    source = write(tmp_path / "in.jsonl", [request(f"r{i}") for i in range(6)])
    out = tmp_path / "out.jsonl"
    assert run("batch", str(source), str(out)).code == 0
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:2]) + whole[2][:40])
    done = run("batch", str(source), str(out))
    assert "2 of 6 requests have their answers already" in done.err
    again = out.read_bytes().splitlines(keepends=True)
    assert again[:2] == whole[:2]
    texts = {name: each["body"]["choices"][0]["text"] for name, each in answers_in(out).items()}
    for line in whole:
        data = json.loads(line)
        assert texts[data["custom_id"]] == data["response"]["body"]["choices"][0]["text"]
    assert run("batch", str(source), str(out)).code == 0
    assert out.read_bytes().splitlines(keepends=True) == again


def test_cut_at_any_byte(tmp_path: Path) -> None:
    """What kill -9 leaves: the whole lines are kept, the rest is removed."""
    lines = [
        b'{"id": "batch_req_%d", "custom_id": "%d", "response": {}}\n' % (i, i) for i in range(2)
    ]
    out = tmp_path / "out.jsonl"
    for n in range(len(b"".join(lines)) + 1):
        out.write_bytes(b"".join(lines)[:n])
        n_whole = (n >= len(lines[0])) + (n == len(b"".join(lines)))
        assert read_done(out) == {str(i) for i in range(n_whole)}
        assert out.read_bytes() == b"".join(lines[:n_whole])


def test_answers_that_are_no_objects(run: Run, tmp_path: Path) -> None:
    """Lists, pages and streams without an end stop nothing."""
    message = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    lines = [
        {"custom_id": "list", "url": "/embedding", "body": {"content": "Hello"}},
        {"custom_id": "page", "method": "GET", "url": "/", "body": {}},
        {"custom_id": "stream", "method": "GET", "url": "/engine", "body": {}},
        {"custom_id": "message", "url": "/v1/messages", "body": message},
    ]
    out = tmp_path / "out.jsonl"
    done = run("batch", str(write(tmp_path / "in.jsonl", lines)), str(out))
    assert done.code == 0, done.err
    found = answers_in(out)
    assert isinstance(found["list"]["body"], list)
    assert found["page"]["body"].startswith("<!doctype html>")
    assert found["stream"]["status_code"] == 400
    assert "/engine is a stream" in found["stream"]["body"]["error"]["message"]
    assert "4 requests answered, 1 of them refused: 2 tokens" in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{\n", "line 2: it is not JSON"),
        ([1], "line 2: it is a list"),
        ({"custom_id": 3, "url": "/v1/completions", "body": {}}, "line 2: custom_id is 3"),
        ({"custom_id": "b", "url": "/v1/completions"}, "line 2: body is null"),
        ({"custom_id": "b", "body": {}}, "line 2: url is null"),
        (request("a"), 'line 2: custom_id "a" is that of line 1'),
        (request("b", stream=True), "line 2: body.stream is true"),
        ({**request("b"), "method": "PUT"}, 'line 2: method is "PUT"'),
    ],
    ids=str,
)
def test_a_line_that_is_no_request(run: Run, tmp_path: Path, line: Any, said: str) -> None:
    """Nothing is run, and nothing written."""
    source = write(tmp_path / "in.jsonl", [request("a"), line])
    with pytest.raises(FileError) as raised:
        list(read_requests(source))
    assert said in str(raised.value)
    done = run("batch", str(source), str(tmp_path / "out.jsonl"))
    assert done.code == 1
    assert said in done.err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("a\nb")
    with pytest.raises(FileError, match="line 1: not an answer"):
        read_done(other)
    assert other.read_text() == "a\nb"
    for text in (
        "one line without its end",
        json.dumps(request("a")),
        '{"custom_id": [], "response": 1}\n',
    ):
        other.write_text(text)
        with pytest.raises(FileError, match="line 1: not an answer"):
            read_done(other)
        assert other.read_text() == text
    with pytest.raises(FileError, match="No such file"):
        list(read_requests(tmp_path / "missing.jsonl"))


def test_answers_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [request(f"r{i}") for i in range(4)])
    done = run("batch", str(source), str(tmp_path / "none" / "out.jsonl"))
    assert done.code == 1
    assert "cannot be written" in done.err
    if Path("/dev/full").exists():
        full = tmp_path / "out.jsonl"
        full.symlink_to("/dev/full")
        done = run("batch", str(source), str(full))
        assert done.code == 1
        assert "No space left" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for files")
def test_answers_on_a_full_disk(run: Run, tmp_path: Path) -> None:
    """Lines are whole or not there, and the same command goes on behind them."""
    source = write(tmp_path / "in.jsonl", [request(f"r{i}") for i in range(12)])
    out = tmp_path / "out.jsonl"
    n_done = 0
    for i in range(3):
        with largest_file(1500 * (i + 1)):
            said = run("batch", str(source), str(out), "-np", "2").err
        n = len(answers_in(out))
        assert out.read_bytes().endswith(b"}\n")
        assert n_done < n < 12
        assert said.splitlines()[-1] == (
            f"ggmlpy: error: the answers cannot be written: File too large; {n - n_done} of this"
            " run are whole in the file, behind which the same command goes on"
        )
        n_done = n
    said = run("batch", str(source), str(out)).err
    assert f"{n_done} of 12 requests have their answers already" in said
    assert len(answers_in(out)) == 12
