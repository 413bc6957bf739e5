"""The peer's server: how it is started, asked, read and ended. The server here is a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.arrivals import Arrival
from benchmarks.engines import EngineError
from benchmarks.llama_server import LlamaServer, command, note_tokens, version
from benchmarks.serving import Setup

# Answers /completion as llama.cpp does: one event may stand for two tokens, the last one for none.
# After a prompt that begins with 7 it answers a token less than it should, after 8 it ends.
SCRIPT = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--version" in sys.argv:
    print("version: 12 (abc)", file=sys.stderr)
    sys.exit()
options = dict(zip(sys.argv[1:-2:2], sys.argv[2:-2:2]))

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    n_asked = 0

    def do_GET(self):
        Handler.n_asked += 1
        self.send_response(503 if Handler.n_asked == 1 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and asked["stream"] and asked["ignore_eos"]
        assert asked["temperature"] == 0 and asked["cache_prompt"] is False
        if asked["prompt"][0] == 8:
            os.write(2, b"no memory left")
            os._exit(5)
        n = asked["n_predict"] - (asked["prompt"][0] == 7)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in [*range(1, n - 1), n, n]:
            event = {{"content": "x", "tokens": [1], "tokens_predicted": i}}
            self.chunk(b"data: " + json.dumps(event).encode() + b"\\n\\n")
        self.chunk(b"")

    def log_message(self, *_): pass

ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    return written(tmp_path, SCRIPT.format(python=sys.executable))


def written(folder: Path, text: str) -> str:
    path = folder / "llama-server"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path / "m.gguf", n_seqs=3, n_ctx_seq=64, n_threads=2)


def test_requests_are_sent_when_they_arrive(tmp_path: Path, program: str) -> None:
    requests = [Arrival(0.0, (1, 2), 5), Arrival(0.0, (3,), 2), Arrival(0.15, (4,), 3)]
    with LlamaServer(program, setup(tmp_path)) as server:
        times = server.serve(requests, "toy")
        process = server._process
    assert list(map(len, times)) == [5, 2, 3]
    assert all(mine == sorted(mine) for mine in times)
    assert times[0][0] > 0
    assert times[0][3] == times[0][4]  # one event
    assert times[2][0] > 0.15
    assert process.returncode is not None


def test_an_answer_of_another_length_is_refused(tmp_path: Path, program: str) -> None:
    with (
        LlamaServer(program, setup(tmp_path)) as server,
        pytest.raises(EngineError, match=r"^llama-server answered 3 tokens, not 4$"),
    ):
        server.serve([Arrival(0.0, (7,), 4)], "toy")


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path, program: str) -> None:
    said = r"^llama-server: its process ended with 5; its last words: no memory left$"
    with (
        LlamaServer(program, setup(tmp_path)) as server,
        pytest.raises(EngineError, match=said),
    ):
        server.serve([Arrival(0.0, (1,), 4), Arrival(0.01, (8,), 4)], "toy")


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    broken = written(tmp_path, "#!/bin/sh\necho loading\necho no such model >&2\nexit 3\n")
    said = r"^llama-server: its process ended with 3; its last words: no such model$"
    with pytest.raises(EngineError, match=said):
        LlamaServer(broken, setup(tmp_path))
    nowhere = str(tmp_path / "nowhere")
    for start in (lambda: LlamaServer(nowhere, setup(tmp_path)), lambda: version(nowhere)):
        with pytest.raises(EngineError, match=r"^llama-server: cannot run .*: No such file"):
            start()


def test_the_command_and_the_version(tmp_path: Path, program: str) -> None:
    words = command(program, setup(tmp_path), 1234)
    options = dict(zip(words[1:-2:2], words[2:-2:2], strict=True))
    assert words[0] == program
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == "1234"
    assert options["--parallel"] == "3"
    assert options["--ctx-size"] == str(3 * 64)
    assert options["--threads"] == options["--threads-batch"] == "2"
    assert version(program) == "12 (abc)"


def test_lines_of_the_stream() -> None:
    times = [0.5]
    note_tokens(b"\n", 1.0, times)
    note_tokens(b'data: {"tokens_predicted": 3}\n', 2.0, times)
    note_tokens(b'data: {"tokens_predicted": 3, "stop": true}\n', 3.0, times)
    assert times == [0.5, 2.0, 2.0]
    with pytest.raises(EngineError, match=r"^llama-server: \{.*out of memory"):
        note_tokens(b'error: {"message": "out of memory"}\n', 3.0, times)
