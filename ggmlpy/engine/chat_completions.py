"""The methods of `Llama` that answer chats, in the form of llama-cpp-python's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from ggmlpy.engine.chat_prompts import ChatPrompts
from ggmlpy.engine.completion import ChatForm
from ggmlpy.engine.completions import Chunks, Completions
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.generation import Request
from ggmlpy.engine.options import ChatOptions, keywords
from ggmlpy.engine.request_options import request_fields, stop_list
from ggmlpy.gguf import Metadata
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.tokenizer import Tokenizer


class ChatCompletions(Completions):
    """A model that answers messages, by the chat template of its file."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, metadata: Metadata, model_path: str
    ) -> None:
        super().__init__(engine, tokenizer, metadata, model_path)
        self._prompts: ChatPrompts | None = None

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any]: ...
    @overload
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> Chunks: ...
    @overload
    def create_chat_completion(
        self, messages: Sequence[dict[str, Any]], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> dict[str, Any] | Chunks: ...
    @keywords(ChatOptions, temperature=0.2, max_tokens=None, logprobs=False)
    def create_chat_completion(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> dict[str, Any] | Chunks:
        """The assistant's answer to `messages`, which the file's chat template makes a prompt of.

        Options are those of `create_completion`, except that `logprobs` is a switch, and
        `top_logprobs` how many of the most likely tokens to report, and these:

        tools                   functions that the model may call, as in OpenAI's API
        tool_choice             "auto", "none", "required", or a function that must be called
        parallel_tool_calls     False: one call in an answer at most
        chat_template_kwargs    further variables of the template, as {"enable_thinking": False}
        reasoning_format        "none" leaves reasoning in the content; else it is the message's
                                `reasoning_content`
        reasoning_budget        after so many tokens the reasoning is ended; -1: never
        continue_final_message  True: the last message, of the assistant, is the beginning of the
                                answer; the result has what follows

        Calls are in the message's `tool_calls`, of a stream in pieces, and the `finish_reason` is
        "tool_calls". Raises TemplateError for messages or a template that cannot be rendered, and
        what `create_completion` raises.
        """
        request, form = self._chat_request(messages, options)
        return self._complete(request, form, stream)

    @keywords(ChatOptions, temperature=0.2, max_tokens=None, logprobs=False)
    def prepare_chat_completion(
        self, messages: Sequence[dict[str, Any]], **options: Unpack[ChatOptions]
    ) -> tuple[Request, ChatForm]:
        """What `create_chat_completion` runs, checked, and the form of its result: see
        `prepare_completion`."""
        request, form = self._chat_request(messages, options)
        self._engine.check(request)
        return request, form

    @keywords(ChatOptions, temperature=0.2, max_tokens=None, logprobs=False)
    def chat_tokens(
        self, messages: Sequence[dict[str, Any]], **options: Unpack[ChatOptions]
    ) -> list[int]:
        """The prompt that `create_chat_completion` makes of messages and tools, as tokens: it may
        be longer than the context. Raises what that raises for messages and options."""
        self._check_open()
        return list(self._chat_request(messages, options)[0].prompt)

    def _chat_request(
        self, messages: Sequence[dict[str, Any]], options: ChatOptions
    ) -> tuple[Request, ChatForm]:
        made = self._chat_prompts.make(messages, options)
        request = self._request(
            made.tokens,
            self._sampling(options),
            stop=[*stop_list(options["stop"]), *self.chat_template.stops()],
            n_top_logprobs=(options["top_logprobs"] or 0) if options["logprobs"] else None,
            grammar=made.grammar,
            lazy_grammar=made.lazy_grammar,
            shown_tokens=made.shown_tokens,
            **request_fields(options),
        )
        processor = self._chat_prompts.limited(made, request.logits_processor, options)
        request = replace(
            request,
            logits_processor=processor,
            stopping_criteria=self._chat_prompts.ended(made, request.stopping_criteria),
        )
        model, n_prompt = options["model"] or self.model_path, len(made.tokens)
        return request, ChatForm(model, self.tokenizer, n_prompt, made.parser)

    @property
    def chat_template(self) -> ChatTemplate:
        """The file's chat template, or a plain one if it has none. Raises TemplateError."""
        return self._chat_prompts.template

    @property
    def _chat_prompts(self) -> ChatPrompts:
        if self._prompts is None:
            template = ChatTemplate.from_metadata(self.metadata)
            self._prompts = ChatPrompts(template, self.tokenizer)
        return self._prompts
