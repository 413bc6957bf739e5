"""-hf and -mu: in every command that takes a model, and never read as other options."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import click
import pytest

import ggmlpy
from ggmlpy import Llama
from ggmlpy.cli import app
from tests.cli.conftest import Run, run, start  # noqa: F401  (a fixture)
from tests.hub.stand_in import StandIn

STORIES = ggmlpy.packaged_model().read_bytes()
TAKE_A_MODEL = [
    name
    for name, command in app.commands.items()
    if any(
        p.name in ("model", "models", "gguf", "file") and "GGUF" in str(p.help)
        for p in command.params
    )
]


@pytest.fixture
def stories(hub: StandIn) -> StandIn:
    """A repository with the packaged model."""
    hub.repos["me/stories"] = {"s-Q8_0.gguf": STORIES, "s-F16.gguf": b"GGUF"}
    return hub


def test_generate(stories: StandIn, run: Run) -> None:  # noqa: F811
    done = run("generate", "-hf", "me/stories", "-n", 4, "--temp", 0, "-q")
    assert done.out.startswith("Once upon a time")
    assert done.err == f"downloading s-Q8_0.gguf, {len(STORIES) / 1e6:.1f} MB …\n"
    again = run("generate", "-hf=me/stories:q8_0", "--offline", "-n", 4, "--temp", 0, "-q")
    assert (again.out, again.err) == (done.out, "")


def test_tokenize_takes_text_after_it(stories: StandIn, run: Run) -> None:  # noqa: F811
    ours = run("tokenize", "-p", "Once upon", "--ids")
    assert run("tokenize", "-hf", "me/stories", "Once upon", "--ids").out == ours.out
    assert run("tokenize", "-hf", "me/stories", "Once upon", "--ids").out == ours.out


def test_inspect_by_url(stories: StandIn, run: Run) -> None:  # noqa: F811
    stories.repos["plain"] = {"m.gguf": STORIES}
    done = run("inspect", "--model-url", f"{stories.url}/m.gguf", "--json")
    assert json.loads(done.out)["file"].endswith("m.gguf")


def test_another_file(stories: StandIn, run: Run) -> None:  # noqa: F811
    done = run("inspect", "-hf", "me/stories", "-hff", "s-F16.gguf")
    assert done.code == 1
    assert "s-F16.gguf: 4 bytes long" in done.err


def test_contradictions(stories: StandIn, run: Run) -> None:  # noqa: F811
    assert run("chat", "-hff", "x").usage_error.startswith("-hff names a file of a repository")
    assert "-hf and -mu" in run("chat", "-hf", "a/b", "-mu", "http://x/y").usage_error
    assert "-hf and a file" in run("chat", "-hf", "a/b", "-m", "x.gguf").usage_error
    assert "is no repository" in run("chat", "-hf", "gemma").error
    assert "there are Q8_0, F16" in run("chat", "-hf", "me/stories:Q2_K").error
    assert not stories.sent


def test_commands_that_take_a_model_take_it_from_a_hub() -> None:
    assert {"generate", "chat", "bench", "batched-bench", "graph", "inspect"} <= set(TAKE_A_MODEL)
    for name in [*TAKE_A_MODEL, "tokenize", "test-ops"]:
        names = {
            n for p in app.commands[name].params if isinstance(p, click.Option) for n in p.opts
        }
        assert {"-hf", "--hf-repo", "-hff", "--hf-file", "--hf-token", "--offline"} <= names, name


def test_it_is_never_help(run: Run) -> None:  # noqa: F811
    assert run("-hf", "a/b").usage_error.startswith("No such option '-hf': a command comes first")
    for name in app.commands:
        done = run(name, "-hf")  # without its value
        assert done.code == 2, name
        assert "Usage" not in done.out + done.err


def test_ctrl_c_is_one_line(stories: StandIn, tmp_path: Path) -> None:
    stories.stall = threading.Event()
    env = {"HF_ENDPOINT": stories.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
    with start("generate", "-hf", "me/stories", env=env) as process:
        assert stories.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""
    assert err.splitlines()[-1] == b"ggmlpy: stopped"
    assert len(err.splitlines()) == 2  # the first says what is downloaded


def test_from_pretrained(stories: StandIn) -> None:
    with (
        ggmlpy.listening(lambda what, share: None),
        Llama.from_pretrained("me/stories", "*Q8_0*", n_ctx=64) as llm,
    ):
        assert llm.n_ctx() == 64
        assert llm.create_completion("Once", max_tokens=2)["choices"][0]["text"]
