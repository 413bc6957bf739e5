"""Special tokens: their keys, and the texts by which undeclared ones are recognised.

Not every converter writes every id: the end-of-turn token of a chat model is often only in the
vocabulary. The texts are those by which llama.cpp recognises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import IntEnum


class TokenType(IntEnum):
    """The type of a token, as GGUF stores it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


KEYS = {
    "bos": ("bos_token_id", "cls_token_id"),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),  # GGUF's spelling
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
"""Names of special tokens, and the keys below `tokenizer.ggml.` that declare them."""

_BAR, _LOW = "\uff5c", "\u2581"  # DeepSeek's full-width bar and SentencePiece's space
_DEEPSEEK_END = f"<{_BAR}end{_LOW}of{_LOW}sentence{_BAR}>"

_TEXTS = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        _DEEPSEEK_END,
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        f"<{_BAR}fim{_LOW}begin{_BAR}>",
        "<PRE>",
        f"{_LOW}<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        f"<{_BAR}fim{_LOW}hole{_BAR}>",
        "<SUF>",
        f"{_LOW}<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        f"<{_BAR}fim{_LOW}end{_BAR}>",
        "<MID>",
        f"{_LOW}<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Texts of tokens that a file may not declare; the first one in the vocabulary counts."""

_END_TEXTS = (
    *_TEXTS["eot"],
    *_TEXTS["eom"],
    "</s>",
    "<eos>",
    "[EOS]",
    "[e~[",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<turn|>",
    "<|tool_response>",
)
"""Texts of tokens that end generation in any vocabulary that has them."""

_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
"""Tokens of gpt-oss that are part of its answers' text: they tell thoughts from the answer."""

_ENDING_NAMES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    ids: dict[str, int]
    """Token ids by the names in `KEYS`, declared or found by text."""
    eog_ids: frozenset[int]
    """Tokens that end generation."""
    types: dict[int, TokenType]
    """The types of tokens found by text, whatever the file says."""


def find_special_tokens(
    by_text: Mapping[str, int], declared: Mapping[str, int], markup: Set[int]
) -> SpecialTokens:
    """The `declared` special tokens, and those found by text.

    `markup` are the tokens that the file calls user-defined. Gemma has "</s>" among its HTML tags;
    it is an end token only in a vocabulary whose BOS is "<s>".
    """
    ids, types = dict(declared), dict[int, TokenType]()
    for name, texts in _TEXTS.items():
        found = [by_text[text] for text in texts if text in by_text]
        if name not in ids and found:
            ids[name] = found[0]
            types[found[0]] = TokenType.CONTROL
    ends = {text: by_text[text] for text in _END_TEXTS if text in by_text}
    is_tag = ends.get("</s>") in markup and by_text.get("<s>") != declared.get("bos")
    is_text = "<|tool_response>" in ends  # Gemma 4
    is_text |= "<|plamo:eos|>" in by_text and by_text["<|plamo:eos|>"] == declared.get("eos")
    if "</s>" in ends and (is_tag or is_text):
        id = ends.pop("</s>")
        if is_text:
            types[id] = TokenType.NORMAL
    types |= dict.fromkeys(ends.values(), TokenType.CONTROL)
    types |= {by_text[text]: TokenType.USER_DEFINED for text in _HARMONY if text in by_text}
    eog = set(ends.values()) | {ids[name] for name in _ENDING_NAMES if name in ids}
    if _ends_messages(ends.keys()):
        eog.discard(ends["<|end|>"])
        types[ends["<|end|>"]] = TokenType.USER_DEFINED
    return SpecialTokens(ids, frozenset(eog), types)


def _ends_messages(texts: Set[str]) -> bool:
    """Whether "<|end|>" ends only one message of an answer, as in gpt-oss and solar-open."""
    calls = texts & {"<|call|>", "<|calls|>"}
    return "<|end|>" in texts and bool(calls and texts & {"<|return|>", "<|flush|>"})
