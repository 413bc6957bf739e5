"""Chat formats make the prompts that llama-cpp-python makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.compat.llama_cpp import llama_chat_format
from ggmlpy.compat.llama_cpp.chat_formats import ChatFormatterResponse
from ggmlpy.errors import Unsupported
from tests.compat import record_peer

PROMPTS: dict[str, Any] = json.loads(Path(__file__).with_name("prompts.json").read_text())

TEMPLATES: dict[str, Any] = json.loads(Path(__file__).with_name("templates.json").read_text())

# Formats of which llama-cpp-python leaves out the system message or the turns.
MENDED = {
    "intel": "### System:\nBe brief.\n### User:: Hi\n### Assistant::",
    "open-orca": "<|end_of_turn|>\nUser: Hi<|end_of_turn|>\nAssistant: ",
    "snoozy": "### Instruction:\nBe brief.\n### Prompt: Hi\n### Response:",
}


def ours() -> dict[str, Any]:
    registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()
    return {
        name: [record_peer.asked_of(registry, name, each) for each in record_peer.CONVERSATIONS]
        for name in PROMPTS
    }


def test_every_format_is_there() -> None:
    made = ours()
    different = {name for name in PROMPTS if made[name] != PROMPTS[name]}
    assert different == set(MENDED)
    for name, prompt in MENDED.items():
        assert made[name][1][0].endswith(prompt), name


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_are_constants(name: str) -> None:
    made = [
        record_peer.rendered(llama_chat_format, name, each) for each in record_peer.CONVERSATIONS
    ]
    assert made == TEMPLATES[name]
    assert len(set(made)) > 2


def test_handlers_of_others_convert_completions() -> None:
    choice = {"text": "a", "index": 0, "logprobs": None, "finish_reason": None}
    completion = {"id": "1", "created": 2, "model": "m", "usage": {}, "choices": [choice]}
    convert = llama_chat_format._convert_completion_to_chat
    answer = convert(completion)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "a"}
    assert llama_chat_format._convert_text_completion_to_chat(completion) == answer
    deltas = [each["choices"][0]["delta"] for each in convert(iter([completion]), stream=True)]
    assert deltas == [{"role": "assistant"}, {"content": "a"}]
    call = llama_chat_format._convert_completion_to_chat_function("f", completion, False)
    assert call["choices"][0]["message"]["function_call"] == {"name": "f", "arguments": "a"}


def test_formats_with_a_name_are_found_by_their_template() -> None:
    guess = llama_chat_format.guess_chat_format_from_gguf_metadata
    assert guess({}) is None
    assert guess({"tokenizer.chat_template": "{{ messages }}"}) is None


def test_names_can_be_registered_once() -> None:
    registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()

    @llama_chat_format.register_chat_format("test-format")
    def made(messages: Any, **kwargs: Any) -> Any:
        return ChatFormatterResponse("a prompt", stop="end")

    try:
        asked = record_peer.asked_of(registry, "test-format", record_peer.CONVERSATIONS[0])
        assert asked == ["a prompt", ["end"]]
        with pytest.raises(ValueError, match="registered already"):
            llama_chat_format.register_chat_format("test-format")(made)
    finally:
        registry.unregister_chat_handler("test-format")
    with pytest.raises(ValueError, match="no chat format"):
        registry.unregister_chat_handler("test-format")
    not_found = llama_chat_format.LlamaChatCompletionHandlerNotFoundException
    with pytest.raises(not_found, match="test-format"):
        llama_chat_format.get_chat_completion_handler("test-format")


def test_formats_that_are_not_there_say_what_to_use() -> None:
    assert llama_chat_format.Llama3VisionAlpha is llama_chat_format.Llama3VisionAlphaChatHandler
    for name in ("Llava15", "Llava16", "Moondream", "Llama3VisionAlpha", "MiniCPMv26", "Qwen25VL"):
        with pytest.raises(Unsupported, match=f"^{name}ChatHandler: images are not supported"):
            getattr(llama_chat_format, f"{name}ChatHandler")(clip_model_path="mmproj.gguf")
    handler = llama_chat_format.get_chat_completion_handler("functionary-v2")
    with pytest.raises(Unsupported, match="chatml-function-calling"):
        handler(llama=record_peer.Recorder(), messages=[])  # type: ignore[arg-type]
