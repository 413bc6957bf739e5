"""Prompts of chats in the formats that llama-cpp-python knows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Turn = tuple[str, str | None]  # what marks its role, and its text; None: to be written


@dataclass(frozen=True, slots=True)
class ChatFormatterResponse:
    """A prompt, and what ends the answer to it.

    added_special   whether the prompt has BOS if the model wants one
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """A prompt of turns: role, `between`, text, `ends[0]` or, of every second turn, `ends[1]`.

    roles     {role: what marks it}; messages of other roles are left out
    opening   behind the mark of the assistant's turn that is to be written
    system    the beginning, with the text of the first system message as {system}
    default   stands for that text if there is none; with `fixed` always
    """

    roles: Mapping[str, str]
    between: str
    ends: tuple[str, str]
    opening: str
    system: str = "{system}"
    default: str = ""
    fixed: bool = False
    stop: str | None = None
    answers: bool = True  # the prompt ends with the assistant's mark

    def __call__(self, messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        text = self.default if self.fixed else system_text(messages) or self.default
        prompt = self.system.replace("{system}", text)
        turns = turns_of(messages, self.roles)
        if self.answers:
            turns.append((self.roles["assistant"], None))
        for i, (mark, text_of_turn) in enumerate(turns):
            if text_of_turn:
                prompt += mark + self.between + text_of_turn + self.ends[i % 2]
            else:
                prompt += mark + self.opening
        return ChatFormatterResponse(prompt, self.stop)


def system_text(messages: Messages) -> str:
    """The text of the first system message, empty if there is none."""
    for message in messages:
        if message["role"] == "system":
            return message["content"] or ""
    return ""


def turns_of(messages: Messages, roles: Mapping[str, str]) -> list[Turn]:
    """The messages of these roles; of one that is no text, such as parts with images, None."""
    return [
        (roles[message["role"]], text if isinstance(text := message.get("content"), str) else None)
        for message in messages
        if message["role"] in roles
    ]


def _lines(user: str, assistant: str, end: str, **options: Any) -> TurnFormat:
    """Turns of which each has its role on a line of its own."""
    roles = {"user": user, "assistant": assistant}
    return TurnFormat(roles, "\n", (end + "\n", end + "\n"), "\n", **options)


def _colons(user: str, assistant: str, ends: tuple[str, str], **options: Any) -> TurnFormat:
    """Turns `User: text`."""
    return TurnFormat({"user": user, "assistant": assistant}, ": ", ends, ":", **options)


def _marks(user: str, assistant: str, end: str, **options: Any) -> TurnFormat:
    """Turns whose role is marked without anything between."""
    return TurnFormat({"user": user, "assistant": assistant}, "", (end, end), "", **options)


# Published with these models, as what their training began with.
_VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives"
    " helpful, detailed, and polite answers to the user's questions."
)
_SNOOZY = (
    "The prompt below is a question to answer, a task to complete, or a conversation to respond to;"
    " decide which and write an appropriate response."
)
_OPEN_ORCA = (
    "You are a helpful assistant. Please answer truthfully and write out your thinking step by step"
    " to be sure you get the right answer. If you make a mistake or encounter an error in your"
    " thinking, say so out loud and attempt to correct it. If you don't know or aren't sure about"
    " something, say so clearly. You will act as a professional logician, mathematician, and"
    " physicist. You will also act as the most appropriate type of expert to answer any particular"
    " question or solve the relevant problem; state which expert type your are, if so. Also think"
    " of any particular named expert that would be ideal to answer the relevant question or solve"
    " the relevant problem; name and act as them, if appropriate."
)
_OPENBUDDY = (
    "You are a helpful, respectful and honest INTP-T AI Assistant named Buddy. You are talking to a"
    " human User.\nAlways answer as helpfully and logically as possible, while being safe. Your"
    " answers should not include any harmful, political, religious, unethical, racist, sexist,"
    " toxic, dangerous, or illegal content. Please ensure that your responses are socially unbiased"
    " and positive in nature.\nIf a question does not make any sense, or is not factually coherent,"
    " explain why instead of answering something not correct. If you don't know the answer to a"
    " question, please don't share false information.\nYou can speak fluently in many languages,"
    " for example: English, Chinese.\nYou cannot access the internet, but you have vast knowledge,"
    " cutoff: 2021-09.\nYou are trained by OpenBuddy team, (https://openbuddy.ai,"
    " https://github.com/OpenBuddy/OpenBuddy), you are based on LLaMA and Falcon transformers"
    " model, not related to GPT or OpenAI.\n\n"
)

TURN_FORMATS: dict[str, TurnFormat] = {
    "llama-3": TurnFormat(
        {
            role: f"<|start_header_id|>{role}<|end_header_id|>\n\n"
            for role in ("system", "user", "assistant")
        },
        "",
        ("<|eot_id|>", "<|eot_id|>"),
        "",
        system="",
        stop="<|eot_id|>",
    ),
    "alpaca": _colons(
        "### Instruction", "### Response", ("\n\n", "</s>"), system="{system}\n\n", answers=False
    ),
    "qwen": _lines(
        "<|im_start|>user",
        "<|im_start|>assistant",
        "<|im_end|>",
        system="<|im_start|>system\n{system}<|im_end|>\n",
        default="You are a helpful assistant.",
        stop="<|endoftext|>",
    ),
    "vicuna": _colons(
        "USER", "ASSISTANT", (" ", "</s>"), system="{system} ", default=_VICUNA, fixed=True
    ),
    "oasst_llama": _marks(
        "<|prompter|>", "<|assistant|>", "</s>", system="[INST] <<SYS>>\n{system}\n<</SYS>>\n\n"
    ),
    "baichuan-2": _marks("<reserved_106>", "<reserved_107>", ""),
    "baichuan": _marks("<reserved_102>", "<reserved_103>", ""),
    "openbuddy": _colons(
        "User", "Assistant", ("\n", "\n"), system="{system}\n", default=_OPENBUDDY, fixed=True
    ),
    "redpajama-incite": _colons(
        "<human>", "<bot>", ("\n", "\n"), system="{system}\n", stop="<human>"
    ),
    "snoozy": _colons(
        "### Prompt",
        "### Response",
        ("\n", "\n"),
        system="### Instruction:\n{system}\n",
        default=_SNOOZY,
        stop="###",
    ),
    "phind": _colons(
        "### User Message",
        "### Assistant",
        ("\n\n", "\n\n"),
        system="### System Prompt\nYou are an intelligent programming assistant.\n\n",
    ),
    "intel": _colons("### User:", "### Assistant:", ("\n", "\n"), system="### System:\n{system}\n"),
    "open-orca": TurnFormat(
        {"user": "User", "assistant": "Assistant"},
        ": ",
        ("<|end_of_turn|>\n", "<|end_of_turn|>\n"),
        ": ",
        system="{system}<|end_of_turn|>\n",
        default=_OPEN_ORCA,
        fixed=True,
        stop="User",
    ),
    "mistrallite": _marks(
        "<|prompter|>", "</s>\n<|assistant|>", " ", system="<|system|>{system}</s>"
    ),
    "zephyr": TurnFormat(
        {"user": "<|user|>\n", "assistant": "<|assistant|>\n"},
        "\n",
        ("</s>\n", "</s>\n"),
        "\n",
        system="<|system|>\n{system}</s>\n",
        stop="</s>",
    ),
    "pygmalion": _lines("<|user|>", "<|model|>", "\n", system="<|system|>{system}\n\n", stop="\n"),
    "chatml": _lines(
        "<|im_start|>user",
        "<|im_start|>assistant",
        "<|im_end|>",
        system="<|im_start|>system\n{system}<|im_end|>\n",
        stop="<|im_end|>",
    ),
    "chatglm3": TurnFormat(
        {"user": "<|user|>", "assistant": "<|assistant|>"},
        "\n ",
        ("", ""),
        "",
        system="<|system|>\n{system}",
        stop="</s>",
    ),
    "openchat": _lines(
        "GPT4 Correct User: ",
        "<|end_of_turn|>GPT4 Correct Assistant: ",
        "<|end_of_turn|>",
        system="{system}<|end_of_turn|><|end_of_turn|>\n",
        stop="<|end_of_turn|>",
    ),
    "gemma": _marks(
        "<start_of_turn>user\n",
        "<start_of_turn>model\n",
        "<end_of_turn>\n",
        system="",
        stop="<end_of_turn>\n",
    ),
}


def llama_2(messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
    """Llama 2's, whose system message is part of the first turn."""
    system = system_text(messages)
    prompt = f"[INST] <<SYS>>\n{system}\n<</SYS>> " if system else " "
    turns = turns_of(messages, {"user": "<s>[INST]", "assistant": "[/INST]"})
    for i, (mark, text) in enumerate(turns):
        end = (" ", "</s>")[i % 2]
        if system and i == 0:
            prompt += (text or "") + end
        elif text:
            prompt += f"{mark}{text} {end}"
        else:
            prompt += f"{mark} "
    return ChatFormatterResponse(prompt + "[/INST]")


def mistral_instruct(messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
    """Mistral's first one, which has no system message."""
    prompt = ""
    for message in messages:
        text = message.get("content")
        if message["role"] == "user" and isinstance(text, str):
            prompt += f"[INST] {text}"
        elif message["role"] == "assistant" and text is not None:
            prompt += f" [/INST]{text}</s>"
    return ChatFormatterResponse(prompt + " [/INST]", "</s>")


def saiga(messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
    """Saiga's, whose assistant is called bot."""
    roles = {role: role for role in ("user", "bot", "system")}
    turns = turns_of(messages, roles)
    prompt = "".join(f"<s>{role}\n{text}</s>" if text else f"<s>{role}\n" for role, text in turns)
    return ChatFormatterResponse(prompt + "<s>bot")


FORMATTERS: dict[str, Callable[..., ChatFormatterResponse]] = {
    "llama-2": llama_2,
    "mistral-instruct": mistral_instruct,
    "saiga": saiga,
    **TURN_FORMATS,
}
