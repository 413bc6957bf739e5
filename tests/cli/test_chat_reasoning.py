"""`ggmlpy chat` with a template that knows reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggmlpy.llama import Llama
from tests.cli.conftest import Outcome, Run, write_endless
from tests.cli.test_chat import Terminal
from tests.models.tiny import Tiny
from tests.processes import tells_states

pytest.importorskip("llguidance")

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    "{{ day }}{{ reasoning_effort }}{% if enable_thinking is not false %}<think>{% endif %}"
)
# Of the tiny model's own it would be noise.
ANSWER = ("--grammar", 'root ::= "so.\\n</think>\\n\\nYes."')
SETTINGS = ("--backend", "reference", "-q", *ANSWER)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "chat.gguf"
    return write_endless(path, Tiny(n_ctx=512), tokenizer__chat_template=TEMPLATE)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages and options of each call of the engine."""
    seen: list[dict[str, Any]] = []
    complete = Llama.create_chat_completion

    def recorded(self: Llama, messages: Any, **options: Any) -> Any:
        seen.append({"messages": messages, **options})
        return complete(self, messages, **options)

    monkeypatch.setattr(Llama, "create_chat_completion", recorded)
    return seen


def chat(run: Run, model: Path, *args: object) -> Outcome:
    outcome = run("chat", "-m", model, *SETTINGS, *args, stdin="one\ntwo\n")
    assert outcome.code == 0, outcome
    return outcome


def test_a_pipe_gets_the_answer_alone(run: Run, model: Path, given: list[dict[str, Any]]) -> None:
    assert chat(run, model).out == "Yes.\nYes.\n"
    assert given[1]["messages"][1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "so.",
    }


def test_reasoning_as_the_model_writes_it(run: Run, model: Path) -> None:
    whole = "so.\n</think>\n\nYes.\n"
    assert chat(run, model, "--reasoning-format", "none").out == 2 * whole
    # The prompt begins no reasoning, so this is all content.
    assert chat(run, model, "-rea", "off").out == 2 * whole
    assert chat(run, model, "-rea", "on", "--reasoning-format", "deepseek").out == "Yes.\nYes.\n"


def test_variables_of_the_template(run: Run, model: Path, given: list[dict[str, Any]]) -> None:
    options = ("--chat-template-kwargs", '{"day": "Monday"}', "--reasoning-effort", "high")
    chat(run, model, *options, "-rea", "off", "--reasoning-budget", 9)
    assert given[0]["reasoning_budget"] == 9
    expected = {"day": "Monday", "reasoning_effort": "high", "enable_thinking": False}
    assert given[0]["chat_template_kwargs"] == expected
    chat(run, model, "--reasoning-effort", "default")
    assert given[-1]["chat_template_kwargs"] == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [("{", "--chat-template-kwargs is not JSON"), ("[]", "must be a JSON object: {…}")],
)
def test_variables_that_are_no_object(run: Run, model: Path, value: str, message: str) -> None:
    outcome = run("chat", "-m", model, "--chat-template-kwargs", value)
    assert message in outcome.usage_error


def test_variables_that_have_another_option(run: Run, model: Path) -> None:
    outcome = run("chat", "-m", model, "--chat-template-kwargs", '{"tools": []}', stdin="one\n")
    assert "chat_template_kwargs has 'tools'" in outcome.error


@tells_states
def test_reasoning_is_dim_on_a_terminal(model: Path) -> None:
    with Terminal("chat", "-m", model, *SETTINGS, "-p", "one", "-st", term="xterm") as terminal:
        shown = terminal.wait_for("Yes.\r\n")
        thoughts, _, answer = shown.partition("\r\n\r\n")
        assert "\x1b[2m" in thoughts
        assert "so." in thoughts.replace("\x1b[0m", "").replace("\x1b[2m", "")
        assert answer == "Yes.\r\n"
        assert terminal.process.wait() == 0
