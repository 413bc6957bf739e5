"""`ggmlpy serve`: its options, and what is refused before anything listens."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click
import pytest

from ggmlpy.cli import app
from ggmlpy.cli.environment import ENVIRONMENT
from ggmlpy.cli.unknown import names_of
from tests.cli.conftest import Run, start

pytest.importorskip("starlette", reason="the extra ggmlpy[server] is not installed")


def test_check_says_what_memory_is_needed(run: Run, tiny: Path) -> None:
    done = run("serve", "-m", str(tiny), "-c", "128", "-np", "2", "--check")
    assert done.code == 0
    assert "host" in done.out
    assert "128 tokens of context" in done.out


@pytest.mark.filterwarnings("ignore::ggmlpy.ContextWarning")
def test_check_refuses_what_cannot_fit(run: Run, tiny: Path) -> None:
    done = run("serve", "-m", str(tiny), "-c", str(2**36), "--check")
    assert done.code == 1
    assert "are needed, there is" in done.err.splitlines()[-1]


def test_a_port_that_is_taken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port))
    assert done.error == (
        f"127.0.0.1:{port}: Address already in use, something listens there already: --port takes"
        " another one"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: there is no such"),
        (["--chat-template", "chatnl"], "'chatnl' is no chat template, nor the name of one"),
        (["--api-key-file", "missing.txt"], "there is no such file"),
        (["--models-dir", "missing"], "--models-dir missing: there is no such folder"),
        (["--slot-save-path", "missing"], "--slot-save-path missing: there is no such folder"),
        (["--ssl-key-file", "a", "--ssl-cert-file", "b"], "there is no such file"),
    ],
)
def test_what_cannot_be_used(run: Run, arguments: list[str], said: str) -> None:
    assert said in run("serve", *arguments).error


@pytest.mark.parametrize(
    ("file", "said"),
    [("missing.gguf", "missing.gguf: there is no such file"), (__file__, "not a GGUF file")],
)
def test_a_model_that_cannot_be_loaded_ends_it(
    run: Run, file: str, said: str, tmp_path: Path
) -> None:
    """One line says why, with the exit code for services; a log in a file has it too."""
    done = run("serve", "--port", "0", "-m", file)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("ggmlpy: error: ")
    assert said in line
    log = tmp_path / "log"
    assert run("serve", "--port", "0", "-m", file, "--log-file", log).err == done.err
    (logged,) = log.read_text().splitlines()
    assert "ERROR" in logged
    assert said in logged


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ssl-key-file", "a"], "--ssl-key-file and --ssl-cert-file are needed together"),
        (["--api-key", ","], "the key is empty"),
        (
            ["--chat-template", "chatml", "--chat-template-file", "a"],
            "--chat-template and --chat-template-file cannot be used together",
        ),
        (["-np", "0"], "0 is not in 1 … 256"),
        (["--port", "70000"], "70000 is not in 0 … 65535"),
        (["--ray", "--models-dir", "."], "--models-dir cannot be used with --ray"),
        (["--ray", "--sleep-idle-seconds", "9"], "--sleep-idle-seconds cannot be used with --ray"),
        (["--ray", "--log-jsonl"], "--log-jsonl cannot be used with --ray"),
    ],
)
def test_a_wrong_command_line(run: Run, arguments: list[str], said: str) -> None:
    assert said in run("serve", *arguments).usage_error


def test_a_certificate_is_not_for_replicas(run: Run, tmp_path: Path) -> None:
    """Without it the answers would go over plain HTTP."""
    for name in ("--ssl-cert-file", "--ssl-key-file", "--log-file"):
        done = run("serve", "--ray", name, tmp_path / "file")
        assert f"{name} cannot be used with --ray" in done.usage_error


def test_keys_that_are_no_certificate(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("nothing")
    done = run("serve", "--ssl-key-file", str(file), "--ssl-cert-file", str(file))
    assert "not a certificate with its key" in done.error


def test_a_server_reloads_its_keys_and_stops(tmp_path: Path) -> None:
    """A process that gets SIGHUP has the keys that are in the file then; SIGTERM ends it. Requests
    are in the log, and keys are not."""
    log = tmp_path / "log"
    keys = tmp_path / "keys.txt"
    keys.write_text("# of the team\nfirst\n")
    options = ["--port", "0", "--api-key-file", keys, "--log-jsonl", "--log-file", log]
    with start("serve", *options, stdout=subprocess.DEVNULL) as server:
        assert server.stderr is not None
        said = server.stderr.readline().decode()
        url = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert url is not None, said

        def status(key: str) -> int:
            body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
            request = Request(f"{url[0]}/v1/completions", body, {"Authorization": f"Bearer {key}"})
            try:
                with urlopen(request, timeout=60) as response:
                    return int(response.status)
            except HTTPError as error:
                with error:
                    return error.code

        def until_logged(text: str) -> None:
            until = monotonic() + 60
            while text not in log.read_text():
                assert monotonic() < until
                sleep(0.02)

        assert (status("first"), status("second")) == (200, 401)
        keys.write_text("second\n")
        server.send_signal(signal.SIGHUP)
        assert "answers at" in server.stderr.readline().decode()  # it is loaded anew
        until_logged("reloaded")
        assert (status("first"), status("second")) == (401, 200)
        keys.write_text("# none\n")  # it keeps those that it has
        server.send_signal(signal.SIGHUP)
        until_logged("not reloaded")
        assert (status("first"), status("second")) == (401, 200)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("status", line.get("message")) for line in lines] == [
        200, 401, "reloaded", 401, 200,
        f"not reloaded: --api-key-file {keys}: there is no key in it", 401, 200,
    ]  # fmt: skip
    assert "first" not in log.read_text()


@contextmanager
def serving(options: str, *more: str) -> Iterator[Callable[..., Any]]:
    """The answers of a server to POST: a path, and the fields of the body. It stops at the end."""
    words = ["--port", "0", "--log-disable", *options.split(), *more]
    with start("serve", *words, stdout=subprocess.DEVNULL) as server:
        assert server.stderr is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline().decode())
        assert url is not None

        def post(path: str, **body: Any) -> Any:
            with urlopen(Request(url[0] + path, json.dumps(body).encode()), timeout=60) as response:
                return json.load(response)

        yield post
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)


def test_a_chat_template_in_place_of_the_files() -> None:
    """By name, and with the pooling of embeddings as another setting of llama-server's."""
    with serving("--chat-template chatml --pooling mean") as post:
        made = post("/apply-template", messages=[{"role": "user", "content": "Hi"}])
        assert made["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        [pooled] = post("/embedding", content="Once upon a time")
        assert len(pooled["embedding"]) == 1  # of all tokens together


def test_what_requests_do_not_say() -> None:
    """Variables of the template, reasoning, and the end of the context, for all requests."""
    template = "{{ day }} {{ enable_thinking }} {{ messages[0].content }}"
    more = "--chat-template", template, "--chat-template-kwargs", '{"day": "Monday"}'
    options = "-c 64 -np 1 --ignore-eos --keep -1 --context-shift -rea off --reasoning-budget 7"
    with serving(options, *more) as post:
        messages = [{"role": "user", "content": "Hi"}]
        assert post("/apply-template", messages=messages)["prompt"] == "Monday False Hi"
        other = {"day": "Sunday"}
        made = post("/apply-template", messages=messages, chat_template_kwargs=other)
        assert made["prompt"] == "Sunday False Hi"
        chat = post("/v1/chat/completions", messages=messages, max_tokens=100)
        assert chat["usage"]["completion_tokens"] == 100  # beyond the context, which was shifted
        asked = {"prompt": "Once", "max_tokens": 100, "context_shift": False}
        assert post("/v1/completions", **asked)["usage"]["completion_tokens"] < 64


def test_variables_are_llama_servers() -> None:
    """Those of all options that we have."""
    recorded = json.loads(Path(__file__).with_name("llama_variables.json").read_text())
    own = {name for name, each in names_of(app.commands["serve"]).items() if not each.hidden}
    wanted = {v: names for v, names in recorded.items() if own & set(names.split())}
    former = {
        "HF_TOKEN",
        "LLAMA_ARG_DRAFT_MAX",
        "LLAMA_ARG_DRAFT_MIN",
    }  # otherwise read, or removed
    assert ENVIRONMENT.keys() == wanted.keys() - former
    for variable, name in ENVIRONMENT.items():
        assert name in wanted[variable].split()
        assert names_of(app.commands["serve"])[name].envvar == variable
        assert names_of(app.commands["generate"]).get(name, click.Option([name])).envvar is None


@pytest.mark.filterwarnings("ignore::ggmlpy.ContextWarning")
def test_a_variable_gives_an_option(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(tiny))
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "128")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "2")
    assert "2 sequences" in run("serve", "--check").out
    assert "128 tokens of context" in run("serve", "--check").out
    assert "4 sequences" in run("serve", "--check", "-np", "4").out
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "0")
    error = run("serve", "--check").usage_error
    assert "($LLAMA_ARG_N_PARALLEL): 0 is not in 1 … 256" in error
    assert "$" not in run("serve", "--check", "-np", "0").usage_error


def test_saved_slots_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    options = ["--port", "0", "-np", "1", "--slot-save-path", tmp_path, "--log-disable"]
    prompt = {"prompt": "Once upon a time " * 8, "n_predict": 1, "temperature": 0}
    kept = {"filename": "kept"}

    def ask(server: subprocess.Popen[bytes], *calls: tuple[str, object]) -> list[Any]:
        assert server.stderr is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline().decode())
        assert url is not None
        found = []
        for path, body in calls:
            request = Request(f"{url[0]}{path}", json.dumps(body).encode())
            with urlopen(request, timeout=60) as response:
                assert response.headers["X-Request-Id"]
                found.append(json.load(response))
        return found

    save, restore = "/slots/0?action=save", "/slots/0?action=restore"
    with start("serve", *options, stdout=subprocess.DEVNULL) as server:
        first, saved = ask(server, ("/completion", prompt), (save, kept))
        server.send_signal(signal.SIGKILL)
        assert server.wait(60) == -signal.SIGKILL
    with start("serve", *options, stdout=subprocess.DEVNULL) as server:
        restored, second = ask(server, (restore, kept), ("/completion", prompt))
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert restored["n_restored"] == saved["n_saved"] > 30
    assert second["content"] == first["content"]
    assert second["timings"]["prompt_n"] == 1
