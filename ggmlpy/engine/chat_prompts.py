"""Chats as requests: the prompt of messages and tools, and the parser of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ggmlpy.common.arguments import as_int, is_list, kind_of, parsed
from ggmlpy.common.quoting import quoted
from ggmlpy.engine.begun_answer import BegunAnswer, continued, read_by
from ggmlpy.engine.first_call import FirstCall
from ggmlpy.engine.options import ChatOptions, LogitsCallback, StoppingCallback
from ggmlpy.engine.reasoning_budget import ReasoningBudget
from ggmlpy.errors import ArgumentError, GrammarError
from ggmlpy.grammar import (
    Grammar,
    LazyGrammar,
    grammar_option,
    is_installed,
    schema_refusal,
)
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.tools import (
    AnswerParser,
    Conversation,
    Generic,
    Rendered,
    ToolUse,
    template_variables,
    tool_use,
    with_tokens,
)

_REASONING_FORMATS = ("auto", "deepseek", "none")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a chat, and what its answer must be."""

    tokens: list[int]
    grammar: Grammar | None
    parser: AnswerParser | None  # None: the answer is text
    shown_tokens: frozenset[int]  # control tokens that the parser looks for
    reasoning: tuple[str, str] | None  # the markers around it; None: there is none
    thinks: bool  # whether the prompt ends within it
    watcher: AnswerParser | None  # another parser, where the answer ends behind its first call
    lazy_grammar: LazyGrammar | None


class ChatPrompts:
    """Makes the prompts of a model."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        self._tokenizer = tokenizer

    @cached_property
    def _conversation(self) -> Conversation:
        return Conversation(self.template, lambda text: self._token(text) is not None)

    def make(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions) -> ChatPrompt:
        """Raises TemplateError, TokenizerError, and ArgumentError for options that are wrong, or
        that exclude each other."""
        if not is_list(messages):
            raise ArgumentError(f"messages is {kind_of(messages)}: it must be a list of messages")
        use = tool_use(options["tools"], options["tool_choice"], options["parallel_tool_calls"])
        shows_reasoning = _shows_reasoning(options["reasoning_format"])
        variables = template_variables(options["chat_template_kwargs"])
        begun = BegunAnswer.of(messages) if options["continue_final_message"] else None
        shown = messages if begun is None else messages[:-1]
        rendered = self._conversation.render(shown, use, variables)
        thinks, beginning = rendered.thinks, ""
        grammar = grammar_option(options["grammar"], options["response_format"])
        if begun is not None:
            begun.check(
                rendered,
                has_grammar=grammar is not None,
                must_call=use.must_call,
                tools=bool(use.tools),
            )
            beginning = begun.behind(rendered)
            rendered = continued(rendered, beginning)
        lazy = _behind_reasoning(grammar, rendered)
        if use.must_call or (use.tools and isinstance(rendered.format, Generic)):
            if grammar is not None:
                why = (
                    "tool_choice asks for a call" if use.must_call else "the template has no tools"
                )
                raise ArgumentError(
                    f"tools and a grammar or response_format are given, but {why}, which takes a"
                    " grammar of its own"
                )
            grammar = self._grammar(rendered, use)
        elif use.callable and grammar is None and is_installed():
            lazy = self._calls(rendered, use, shows_reasoning)
        format = rendered.format
        marks = format.markers(with_calls=bool(use.callable))
        reads = bool(marks or use.callable)

        def parser() -> AnswerParser:
            made = AnswerParser(
                format,
                [tool.name for tool in use.callable],
                thinks=thinks,
                shows_reasoning=shows_reasoning,
                one_call=not use.parallel,
                types=use.types,
            )
            return read_by(made, beginning) if beginning else made

        hidden = (self._hidden_token(mark) for mark in marks)
        return ChatPrompt(
            self._tokenizer.encode_chat(rendered.prompt),
            None if lazy is not None and lazy.holds else grammar,
            parser() if reads else None,
            frozenset(token for token in hidden if token is not None),
            format.reasoning,
            rendered.thinks,
            parser() if use.callable and not use.parallel and grammar is None else None,
            lazy,
        )

    def ended(self, made: ChatPrompt, criteria: StoppingCallback | None) -> StoppingCallback | None:
        """Stopping criteria, and behind them that of one call where no grammar ends the answer."""
        if made.watcher is None:
            return criteria
        decoder = self._tokenizer.stream(start=False, shown=made.shown_tokens)
        return FirstCall(made.watcher, decoder, criteria)

    def limited(
        self, made: ChatPrompt, processor: LogitsCallback | None, options: ChatOptions
    ) -> LogitsCallback | None:
        """A logits processor, and behind it the limit of reasoning if the options have one.

        Raises ArgumentError for one that is no whole number from -1 on.
        """
        budget = parsed(
            as_int, "create_chat_completion", "reasoning_budget", options["reasoning_budget"]
        )
        if budget < -1:
            raise ArgumentError(f"reasoning_budget is {budget}: it must be at least -1")
        if budget == -1 or made.reasoning is None:
            return processor
        return ReasoningBudget(
            self._tokenizer, made.reasoning, budget, thinks=made.thinks, before=processor
        )

    def _grammar(self, rendered: Rendered, use: ToolUse) -> Grammar:
        """The grammar of an answer that must call a tool, or is in the generic format.

        Raises GrammarError, with the tool whose schema cannot be used, and MissingPackage."""
        for tool in use.callable:
            refusal = schema_refusal(tool.schema)
            if refusal is not None:
                raise GrammarError(f"parameters of tool {tool.name}: {refusal}")
        format = rendered.format
        write = format.grammar
        if isinstance(format, Generic) and not use.must_call:
            write = format.answers
        lark = write(use.callable, parallel=use.parallel, thinks=rendered.thinks)
        return Grammar.lark(with_tokens(lark, self._hidden_token))

    def _calls(self, rendered: Rendered, use: ToolUse, shows_reasoning: bool) -> LazyGrammar | None:
        """The grammar of the calls of an answer that may have some; None: its format has none."""
        format = rendered.format
        calls = format.lazy(use.callable, parallel=use.parallel)
        if calls is None:
            return None

        def looser() -> Grammar:
            tools = [tool.loosened(_can_be_used) for tool in use.callable]
            loose = format.lazy(tools, parallel=use.parallel)
            assert loose is not None
            return Grammar.lark(with_tokens(loose.lark, self._hidden_token))

        return LazyGrammar(
            Grammar.lark(with_tokens(calls.lark, self._hidden_token)),
            calls.trigger,
            tuple(self._tokenizer.encode_part(calls.begin, special=True)),
            calls.before if rendered.prompt.endswith(calls.before) else "",
            None if shows_reasoning else format.reasoning,
            rendered.thinks,
            looser=looser,
        )

    def _token(self, text: str) -> int | None:
        """The token that a text is; None if it is several."""
        tokens = self._tokenizer.encode_part(text, special=True)
        return tokens[0] if len(tokens) == 1 else None

    def _hidden_token(self, text: str) -> int | None:
        """The token that a text is, if answers do not show it."""
        token = self._token(text)
        return None if token is None or self._tokenizer.token_bytes(token) else token


def _can_be_used(schema: Any) -> bool:
    """Whether a grammar can be made of a JSON schema."""
    try:
        return schema_refusal(schema) is None
    except ArgumentError:
        return False


def _behind_reasoning(grammar: Grammar | None, rendered: Rendered) -> LazyGrammar | None:
    """A grammar of the user where it holds from the end of the reasoning on, within which the
    prompt ends, unless the grammar itself has that end."""
    reasoning = rendered.format.reasoning
    if grammar is None or reasoning is None or not rendered.thinks:
        return None
    if reasoning[1] in grammar.text:
        return None
    return LazyGrammar(grammar, re.escape(reasoning[1]), holds=True)


def _shows_reasoning(format: Any) -> bool:
    """Whether reasoning stays in the content. Raises ArgumentError."""
    if format not in _REASONING_FORMATS:
        names = ", ".join(_REASONING_FORMATS)
        raise ArgumentError(f"reasoning_format is {quoted(str(format))}: it must be one of {names}")
    return bool(format == "none")
