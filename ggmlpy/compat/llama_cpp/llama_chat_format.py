"""Chat formats by name, and handlers that answer messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from ggmlpy.compat.llama_cpp.chat_formats import FORMATTERS, ChatFormatterResponse
from ggmlpy.compat.llama_cpp.chat_functions import chatml_function_calling
from ggmlpy.compat.llama_cpp.chat_results import (
    as_call,
    as_chat,
    chat_logprobs,
    chat_of,
    chunks_of_chat,
)
from ggmlpy.compat.llama_cpp.chat_templates import *  # noqa: F403 - one list of names
from ggmlpy.compat.llama_cpp.evaluation import Ids, Scores, StoppingCriteriaList
from ggmlpy.compat.llama_cpp.llama_grammar import LlamaGrammar
from ggmlpy.compat.llama_cpp.tools import as_tools, grammar_for, grammar_of_arguments, named_tool
from ggmlpy.errors import Unsupported
from ggmlpy.text.chat import ChatTemplate

if TYPE_CHECKING:
    from ggmlpy.compat.llama_cpp.llama import Llama

Messages = Sequence[Mapping[str, Any]]

# The first digits of the SHA-256 of templates that have a format with a name.
_KNOWN_TEMPLATES = {
    "153280e3ff55d19d": "chatml",
    "7e995b379ec01747": "mistral-instruct",
    "26a59556925c9873": "mistral-instruct",
    "ba03a121d097859c": "llama-3",
}


class LlamaChatCompletionHandler(Protocol):
    """Answers messages: gets the model as `llama` and the arguments of `create_chat_completion`,
    and returns what that returns."""

    def __call__(self, *, llama: Llama, messages: Messages, **kwargs: Any) -> Any: ...


class ChatFormatter(Protocol):
    """Makes a prompt of messages, tools and what else a chat's template reads."""

    def __call__(self, *, messages: Messages, **kwargs: Any) -> ChatFormatterResponse: ...


class LlamaChatCompletionHandlerNotFoundException(Exception):
    """There is no handler of a name."""


class LlamaChatCompletionHandlerRegistry:
    """The handlers by name; all instances have the same ones."""

    _chat_handlers: dict[str, LlamaChatCompletionHandler] = {}  # noqa: RUF012 - on purpose

    def register_chat_completion_handler(
        self, name: str, chat_handler: LlamaChatCompletionHandler, overwrite: bool = False
    ) -> None:
        if not overwrite and name in self._chat_handlers:
            raise ValueError(
                f"a chat format {name!r} is registered already: overwrite=True replaces it"
            )
        self._chat_handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        if name not in self._chat_handlers:
            raise ValueError(f"no chat format {name!r} is registered")
        del self._chat_handlers[name]

    def get_chat_completion_handler_by_name(self, name: str) -> LlamaChatCompletionHandler:
        try:
            return self._chat_handlers[name]
        except KeyError:
            raise LlamaChatCompletionHandlerNotFoundException(
                f"Invalid chat handler: {name} (valid formats: {list(self._chat_handlers)})"
            ) from None


def get_chat_completion_handler(name: str) -> LlamaChatCompletionHandler:
    """The handler of a name. Raises LlamaChatCompletionHandlerNotFoundException."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(
    name: str,
) -> Callable[[LlamaChatCompletionHandler], LlamaChatCompletionHandler]:
    """Decorator: `Llama(chat_format=name)` answers by this function."""

    def decorator(f: LlamaChatCompletionHandler) -> LlamaChatCompletionHandler:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, f)
        return f

    return decorator


def register_chat_format(name: str) -> Callable[[ChatFormatter], ChatFormatter]:
    """Decorator: `Llama(chat_format=name)` makes its prompts by this function."""

    def decorator(f: ChatFormatter) -> ChatFormatter:
        handler = chat_formatter_to_chat_completion_handler(f)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return f

    return decorator


class Jinja2ChatFormatter:
    """A chat template. It runs in a sandbox, in a process with limits on time and memory."""

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: list[int] | None = None,
    ) -> None:
        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._compiled: ChatTemplate | None = None

    def __call__(self, *, messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        """Raises TemplateError (a ValueError) for messages that the template refuses."""
        if self._compiled is None:  # late: a damaged template of a file hurts only who uses it
            self._compiled = ChatTemplate(self.template, self.bos_token, self.eos_token)
        variables = {"functions": None, "function_call": None, "tool_choice": None, **kwargs}
        prompt = self._compiled.render(messages, self.add_generation_prompt, **variables)
        criteria = None
        if self.stop_token_ids is not None:
            criteria = StoppingCriteriaList([self._ends])
        stop = [self.eos_token] if self.eos_token else None
        return ChatFormatterResponse(prompt, stop, criteria, added_special=True)

    def _ends(self, tokens: Ids, logits: Scores) -> bool:
        return int(tokens[-1]) in (self.stop_token_ids or ())

    def to_chat_handler(self) -> LlamaChatCompletionHandler:
        return chat_formatter_to_chat_completion_handler(self)


def chat_formatter_to_chat_completion_handler(
    chat_formatter: ChatFormatter,
) -> LlamaChatCompletionHandler:
    """The handler that completes the prompts of a formatter.

    It understands `response_format` of type "json_object", and a `tool_choice` that names a tool:
    then the answer is the arguments of a call of it.
    """

    def chat_completion_handler(
        *,
        llama: Llama,
        messages: Messages,
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        stop: str | list[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        stream: bool = False,
        grammar: LlamaGrammar | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **options: Any,
    ) -> Any:
        known = {name: options.pop(name) for name in list(options) if name not in _OPTIONS}
        formatted = chat_formatter(
            messages=messages,
            functions=functions,
            function_call=function_call,
            tools=tools,
            tool_choice=tool_choice,
            **known,
        )
        prompt = llama.tokenize(
            formatted.prompt.encode(), add_bos=not formatted.added_special, special=True
        )
        tools, tool_choice = as_tools(functions, function_call, tools, tool_choice)
        tool = named_tool(tools, tool_choice)
        if response_format is not None:
            grammar = grammar_for(response_format) or grammar
        if tool is not None:
            grammar = grammar_of_arguments(tool)
        completion = llama.create_completion(
            prompt=prompt,
            stop=[*_as_list(stop), *_as_list(formatted.stop)],
            stopping_criteria=formatted.stopping_criteria,
            stream=stream,
            grammar=grammar,
            logprobs=top_logprobs if logprobs else None,
            **options,
        )
        if tool is not None:
            return as_call(tool["function"]["name"], completion, stream=stream)
        return as_chat(completion, stream=stream)

    return chat_completion_handler


# Of the arguments of `create_chat_completion` those that go on to `create_completion`; others are
# variables of the format.
_OPTIONS = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "tfs_z", "seed", "max_tokens"),
        *("presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias", "model"),
        *("mirostat_mode", "mirostat_tau", "mirostat_eta", "logits_processor"),
    )
)


def _as_list(stop: str | list[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else list(stop)


# --- names by which handlers of others convert completions ---


def _convert_completion_to_chat(completion_or_chunks: Any, stream: bool = False) -> Any:
    return as_chat(completion_or_chunks, stream=stream)


def _convert_completion_to_chat_function(
    tool_name: str, completion_or_chunks: Any, stream: bool
) -> Any:
    return as_call(tool_name, completion_or_chunks, stream=stream)


_convert_text_completion_to_chat = chat_of
_convert_text_completion_chunks_to_chat = chunks_of_chat
_convert_text_completion_logprobs_to_chat = chat_logprobs


# --- formats of other places ---


def guess_chat_format_from_gguf_metadata(metadata: Mapping[str, str]) -> str | None:
    """The name of a format whose template a file has."""
    template = metadata.get("tokenizer.chat_template")
    if template is None:
        return None
    return _KNOWN_TEMPLATES.get(hashlib.sha256(template.encode()).hexdigest()[:16])


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> ChatFormatter:
    """The format of a `tokenizer_config.json` with chat_template, bos_token and eos_token."""
    for key in ("chat_template", "bos_token", "eos_token"):
        if not isinstance(tokenizer_config.get(key), str):
            raise ValueError(
                f"tokenizer_config: {key} is {tokenizer_config.get(key)!r}: it must be a string"
            )
    bos, eos = tokenizer_config["bos_token"], tokenizer_config["eos_token"]
    template = ChatTemplate(tokenizer_config["chat_template"], bos, eos)

    def format_messages(*, messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        prompt = template.render(messages, add_generation_prompt, **kwargs)
        return ChatFormatterResponse(prompt, [eos, bos], added_special=True)

    return format_messages


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> LlamaChatCompletionHandler:
    """The handler of `hf_tokenizer_config_to_chat_formatter`."""
    formatter = hf_tokenizer_config_to_chat_formatter(tokenizer_config, add_generation_prompt)
    return chat_formatter_to_chat_completion_handler(formatter)


def hf_autotokenizer_to_chat_formatter(
    pretrained_model_name_or_path: str | PathLike[str],
) -> ChatFormatter:
    """The format of a tokenizer of the transformers library."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path)

    def format_messages(*, messages: Messages, **kwargs: Any) -> ChatFormatterResponse:
        prompt: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **kwargs)
        return ChatFormatterResponse(prompt, tokenizer.eos_token, added_special=True)

    return format_messages


def hf_autotokenizer_to_chat_completion_handler(
    pretrained_model_name_or_path: str | PathLike[str],
) -> LlamaChatCompletionHandler:
    """The handler of `hf_autotokenizer_to_chat_formatter`."""
    formatter = hf_autotokenizer_to_chat_formatter(pretrained_model_name_or_path)
    return chat_formatter_to_chat_completion_handler(formatter)


format_llama2 = FORMATTERS["llama-2"]
format_llama3 = FORMATTERS["llama-3"]
format_alpaca = FORMATTERS["alpaca"]
format_qwen = FORMATTERS["qwen"]
format_oasst_llama = FORMATTERS["oasst_llama"]
format_baichuan2 = FORMATTERS["baichuan-2"]
format_baichuan = FORMATTERS["baichuan"]
format_openbuddy = FORMATTERS["openbuddy"]
format_redpajama_incite = FORMATTERS["redpajama-incite"]
format_snoozy = FORMATTERS["snoozy"]
format_phind = FORMATTERS["phind"]
format_intel = FORMATTERS["intel"]
format_open_orca = FORMATTERS["open-orca"]
format_mistrallite = FORMATTERS["mistrallite"]
format_zephyr = FORMATTERS["zephyr"]
format_pygmalion = FORMATTERS["pygmalion"]
format_chatml = FORMATTERS["chatml"]
format_mistral_instruct = FORMATTERS["mistral-instruct"]
format_chatglm3 = FORMATTERS["chatglm3"]
format_openchat = FORMATTERS["openchat"]
format_saiga = FORMATTERS["saiga"]
format_gemma = FORMATTERS["gemma"]
format = FORMATTERS["vicuna"]  # the name that llama-cpp-python has for it

for _name, _formatter in FORMATTERS.items():
    register_chat_format(_name)(_formatter)
register_chat_completion_handler("chatml-function-calling")(chatml_function_calling)


# --- what is not there ---


def _refused(name: str, why: str) -> type:
    """A class that cannot be made."""

    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise Unsupported(f"{name}: {why}")

    return type(name, (), {"__init__": refuse, "__doc__": f"Not available: {why}."})


def functionary_chat_handler(*, llama: Llama, messages: Messages, **kwargs: Any) -> Any:
    """Not available: raises Unsupported."""
    raise Unsupported(
        'chat_format "functionary" is not available: "chatml-function-calling" calls tools with any'
        " model, and the template of a file with those that it was trained for"
    )


for _name in ("functionary", "functionary-v1", "functionary-v2"):
    register_chat_completion_handler(_name)(functionary_chat_handler)
functionary_v1_v2_chat_handler = functionary_chat_handler

_IMAGES = "images are not supported: ggmlpy runs text models"
Llava15ChatHandler = _refused("Llava15ChatHandler", _IMAGES)
Llava16ChatHandler = _refused("Llava16ChatHandler", _IMAGES)
ObsidianChatHandler = _refused("ObsidianChatHandler", _IMAGES)
MoondreamChatHandler = _refused("MoondreamChatHandler", _IMAGES)
NanoLlavaChatHandler = _refused("NanoLlavaChatHandler", _IMAGES)
Llama3VisionAlphaChatHandler = _refused("Llama3VisionAlphaChatHandler", _IMAGES)
Llama3VisionAlpha = Llama3VisionAlphaChatHandler
MiniCPMv26ChatHandler = _refused("MiniCPMv26ChatHandler", _IMAGES)
Qwen25VLChatHandler = _refused("Qwen25VLChatHandler", _IMAGES)
Gemma4ChatHandler = _refused("Gemma4ChatHandler", _IMAGES)
MTMDChatHandler = _refused("MTMDChatHandler", _IMAGES)
