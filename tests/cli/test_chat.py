"""`ggmlpy chat`: what the model is shown turn by turn, and the terminal that it runs on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.llama import Llama
from tests.cli.conftest import Outcome, Run, start, write_endless
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.tiny import Tiny, write_model
from tests.processes import running, tells_states, wait_until_it_waits

SETTINGS = ("--backend", "reference", "--temp", "0", "-n", "6")
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template, and without a token that ends an answer."""
    path = tmp_path_factory.mktemp("chat") / "chat.gguf"
    return write_endless(path, Tiny(n_ctx=512), tokenizer__chat_template=TEMPLATE)


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that the engine is given, one conversation a call, as `u:… a:…`."""
    seen: list[str] = []
    complete = Llama.create_chat_completion

    def recorded(self: Llama, messages: Any, **options: Any) -> Any:
        seen.append(" ".join(f"{m['role'][0]}:{m['content']}" for m in messages))
        return complete(self, messages, **options)

    monkeypatch.setattr(Llama, "create_chat_completion", recorded)
    return seen


def conversation(run: Run, model: Path, stdin: str, *args: str) -> Outcome:
    outcome = run("chat", "-m", model, *SETTINGS, *args, stdin=stdin)
    assert outcome.code == 0, outcome
    return outcome


def answers(model: Path, *messages: str) -> list[str]:
    """What the engine itself answers to the messages, one after the other."""
    said: list[dict[str, str]] = []
    with Llama(model, backend="reference") as llm:
        for message in messages:
            said.append({"role": "user", "content": message})
            result = llm.create_chat_completion(said, max_tokens=6, temperature=0)
            assert isinstance(result, dict)
            said.append(result["choices"][0]["message"])
            said[-1]["content"] = said[-1]["content"].strip()
    return [m["content"] for m in said if m["role"] == "assistant"]


def test_piped_messages_are_answered_in_turn(run: Run, model: Path, prompts: list[str]) -> None:
    expected = answers(model, "one", "two words")
    prompts.clear()
    outcome = conversation(run, model, "one\n\n  two words \n", "-q")
    assert [a.strip() for a in outcome.out.split("\n")] == [*expected, ""]
    assert outcome.err == ""
    assert prompts == ["u:one", f"u:one a:{expected[0]} u:two words"]


def test_a_single_turn_from_the_command_line(
    run: Run, model: Path, prompts: list[str], tmp_path: Path
) -> None:
    [expected] = answers(model, "one\ntwo")
    prompts.clear()
    file = tmp_path / "message"
    file.write_text("one\ntwo\n")
    for given in (("-p", r"one\ntwo"), ("-f", file), ("-p", "one\ntwo", "--no-escape")):
        outcome = conversation(run, model, "unread\n", *map(str, given), "-st", "-q")
        assert outcome.out.strip() == expected
    assert prompts == ["u:one\ntwo"] * 3
    prompts.clear()
    conversation(run, model, "first\nsecond\n", "-st", "-q")
    assert prompts == ["u:first"]


def test_a_first_message_comes_before_those_of_a_pipe(
    run: Run, model: Path, prompts: list[str]
) -> None:
    outcome = conversation(run, model, "two\n", "-p", "one", "--no-show-timings")
    first, second = prompts
    assert (first, second[:6], second[-6:]) == ("u:one", "u:one ", " u:two")
    assert outcome.err == ""


def test_the_system_message_of_a_file(
    run: Run, model: Path, prompts: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "system"
    file.write_text("Be brief\n")
    conversation(run, model, "one\n", "-sysf", str(file), "-q")
    conversation(run, model, "one\n", "--system-prompt", "Be brief", "-q")
    assert prompts == ["s:Be brief u:one"] * 2
    both = run("chat", "-m", model, "-sys", "a", "-sysf", file)
    assert both.usage_error == "-sys and -sysf cannot be used together"


def test_chat_templates(run: Run, model: Path, tmp_path: Path) -> None:
    """Of the command line, by name or text, or of a file."""
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}")
    with Llama(model, backend="reference") as llm:
        wanted = llm("[INST] one [/INST]", max_tokens=6, temperature=0)["choices"][0]["text"]
    source = file.read_text()
    for given in (("--chat-template", "llama2"), ("--chat-template", source)):
        assert conversation(run, model, "one\n", *given, "-q").out.strip() == wanted.strip()
    by_file = conversation(run, model, "one\n", "--chat-template-file", str(file), "-q")
    assert by_file.out.strip() == wanted.strip()
    like_overrides = "{# ,tokenizer.chat_template=str:x,a.b=int:no #}" + source
    out = conversation(run, model, "one\n", "--chat-template", like_overrides, "-q").out
    assert out.strip() == wanted.strip()
    unknown = run("chat", "-m", model, "--chat-template", "lama2", "-p", "a").error
    assert unknown.startswith("'lama2' is no chat template, nor the name of one: these are ")


def test_a_stop_string_ends_an_answer(run: Run, model: Path) -> None:
    [whole] = answers(model, "one")
    middle = whole[2:4]
    stopped = conversation(run, model, "one\n", "-r", middle, "-q").out
    assert stopped.rstrip("\n") == whole.partition(middle)[0]


def test_system_message_and_commands(run: Run, model: Path, prompts: list[str]) -> None:
    lines = "one\n/clear\ntwo\n/help\n/nonsense\n/etc/hosts is what?\n/exit\nthree\n"
    outcome = conversation(run, model, lines, "--system", "Be brief", "-q")
    first, second, third = prompts
    assert first == "s:Be brief u:one"
    assert second == "s:Be brief u:two"
    assert third.startswith("s:Be brief u:two a:")
    assert third.endswith("u:/etc/hosts is what?")
    assert outcome.err.splitlines() == [
        "the conversation is cleared",
        "/clear   start a new conversation (the system message stays)",
        "/exit    leave, as Ctrl-D does",
        "/help    this list",
        "Ctrl-C stops an answer; the part that was written stays in the conversation.",
        "there is no command /nonsense; /help lists them",
    ]


def test_speed_is_told_unless_quiet(run: Run, model: Path) -> None:
    outcome = conversation(run, model, "one\ntwo\n")
    assert [line.split()[0] for line in outcome.err.splitlines()] == ["prompt", "prompt"]


def test_a_model_without_a_template_says_so(run: Run, tiny: Path) -> None:
    outcome = conversation(run, tiny, "a\n", "-q")
    assert outcome.err.startswith(
        "ggmlpy: warning: the file has no chat template: a plain one is used"
    )
    assert outcome.err.count("\n") == 1
    assert outcome.out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bert", "generates no text: it has embeddings only: Llama.embed and `ggmlpy embedding`"),
        ("dream", "generates no text: it has logits and embeddings only: Llama.logits and"),
        ("llama", "llama.gguf: the file has no tokenizer"),
        ("llama", "take tokens; `ggmlpy bench -m` needs none"),
        ("t5", "t5.gguf: the file has no tokenizer"),
    ],
)
def test_what_cannot_chat_is_refused_before_all_else(
    run: Run, tmp_path: Path, name: str, reason: str
) -> None:
    path = write_seeded(tmp_path, name, SPECS[name])
    for stdin in ("a\n", ""):
        outcome = run("chat", "-m", path, *SETTINGS, stdin=stdin)
        assert reason in outcome.error
        assert outcome.out == "" and outcome.err.count("\n") == 1


def test_a_damaged_template_is_one_line(run: Run, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), tokenizer__chat_template="{% for %}")
    outcome = run("chat", "-m", path, *SETTINGS, stdin="a\n")
    assert outcome.error.startswith("chat template, line 1: ")


def test_a_conversation_that_fills_the_context_ends_with_one_line(run: Run, model: Path) -> None:
    outcome = run("chat", "-m", model, *SETTINGS, "-q", "-c", 60, stdin="seven b\n" * 20)
    answered = outcome.out.count("\n")
    assert 1 < answered < 20
    assert outcome.error.startswith(f"message {answered + 1}: the prompt is ")
    assert " = 60; -c 128 would do (/clear starts a new conversation)" in outcome.error


def test_a_shifted_context_loses_the_oldest_turns(
    run: Run, model: Path, prompts: list[str]
) -> None:
    args = ("-q", "-c", 60, "--context-shift", "-sys", "be brief")
    outcome = run("chat", "-m", model, *SETTINGS, *args, stdin="seven b\n" * 12)
    assert (outcome.code, outcome.out.count("\n")) == (0, 12)
    assert outcome.err == (
        "ggmlpy: warning: the context of 60 tokens is full: from now on the oldest messages are"
        " left out\n"
    )
    assert prompts[-1].startswith("s:be brief u:seven b a:")
    assert prompts[-1].endswith(" u:seven b")
    alone = run("chat", "-m", model, *SETTINGS, *args, stdin="seven b" * 20 + "\n")
    assert alone.error.startswith("message 1: the prompt is ")


def test_a_full_context_is_a_warning(run: Run, model: Path) -> None:
    outcome = run(
        "chat", "-m", model, "--backend", "reference", "-q", "-c", 40, "-n", -1, stdin="a\n"
    )
    assert outcome.code == 0
    assert outcome.err == (
        "ggmlpy: warning: the context of 40 tokens is full"
        " (-c N makes the context larger, /clear starts a new conversation)\n"
    )


def test_messages_that_are_not_text(run: Run, model: Path) -> None:
    outcome = run("chat", "-m", model, *SETTINGS, "-q", stdin=b"\xff\n")
    assert outcome.error == "standard input: not UTF-8 text at byte 0"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args: object, term: str = "dumb") -> None:
        self._ours, self._theirs = os.openpty()
        # The leader of a session that opens a terminal gets it as its own, with its Ctrl-C.
        on_it = f'exec "$@" <>{os.ttyname(self._theirs)} >&0 2>&0'
        command = ["sh", "-c", on_it, "sh", sys.executable, "-m", "ggmlpy", *map(str, args)]
        env = {**os.environ, "PYTHONUTF8": "1", "TERM": term, "INPUTRC": "/dev/null"}
        self._running = running(command, env=env, start_new_session=True)
        self._shown = ""

    def wait_for(self, text: str) -> str:
        """What is shown up to and including `text`, from where the last wait ended."""
        while text not in self._shown:
            self.wait_for_more()
        before, _, self._shown = self._shown.partition(text)
        return before + text

    def wait_for_more(self) -> None:
        """Until anything is shown that no wait has passed yet."""
        try:
            more = os.read(self._ours, 4096)
        except OSError:  # nobody has the terminal open any more
            pytest.fail(f"the program has ended: {self._shown!r}")
        if self._theirs >= 0:  # the program has opened it
            os.close(self._theirs)
            self._theirs = -1
        self._shown += more.decode(errors="replace")

    def type(self, text: str) -> None:
        """What is typed when the program waits for it, or works."""
        os.write(self._ours, text.encode())

    def answer(self, text: str) -> None:
        """What is typed at a prompt, which is shown shortly before keys are looked at."""
        self.wait_for("> ")
        wait_until_it_waits(self.process)
        self.type(text)

    def __enter__(self) -> Terminal:
        self.process = self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(None, None, None)
        os.close(self._ours)
        if self._theirs >= 0:
            os.close(self._theirs)


@tells_states
def test_a_conversation_on_a_terminal(model: Path) -> None:
    settings = ("--backend", "reference", "-c", 20000, "--temp", 3, "-s", 1)
    with Terminal("chat", "-m", model, *settings) as terminal:
        terminal.wait_for("the model was trained with 512")
        terminal.wait_for("/help lists the commands, Ctrl-D leaves")
        terminal.answer("hello\n")
        terminal.wait_for("hello\r\n")
        terminal.wait_for_more()  # the answer, which would go on for minutes
        terminal.type("\x03")
        terminal.wait_for("prompt 9 tokens, ")  # the answer is over, the program is not
        terminal.wait_for("; text ")  # of one token no rate is shown
        terminal.wait_for("\r\n")
        terminal.answer("\x03")
        terminal.wait_for("/exit or Ctrl-D leaves")
        terminal.answer("/clear\n")
        terminal.wait_for("the conversation is cleared")
        terminal.answer("\x04")
        assert terminal.process.wait() == 0


@tells_states
def test_an_error_on_a_terminal_does_not_end_the_conversation(model: Path) -> None:
    with Terminal("chat", "-m", model, *SETTINGS, "-c", 20) as terminal:
        terminal.answer("this is far more than twenty tokens\n")
        shown = terminal.wait_for("/clear starts a new conversation)")
        assert "ggmlpy: error: the prompt is" in shown
        terminal.answer("/exit\n")
        assert terminal.process.wait() == 0


def test_ctrl_c_in_a_piped_answer_leaves(model: Path) -> None:
    settings = ("--backend", "reference", "-c", 20000, "--temp", 3)
    with start("chat", "-m", model, *settings) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        process.stdout.read(5)  # the first answer has begun, and would go on for minutes
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert err.count(b"\n") == 2, err  # the warning of n_ctx, and:
    assert err.endswith(b"\nggmlpy: stopped\n")


@tells_states
def test_ctrl_c_between_piped_messages_leaves(model: Path) -> None:
    with start("chat", "-m", model, *SETTINGS, "-q") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        wait_until_it_waits(process)  # for the next line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"ggmlpy: stopped\n")
