"""How llama.cpp 0.3.36's regex engine cuts text where it differs from a published expression.

It has no classes of upper and lower case, and its custom code for numbers joins the first digits
with the text before them. With these expressions in place of the published ones, tokens agree with
llama.cpp's for every name, so that the expressions are all that differs (docs/tokenizers.md).
"""

from __future__ import annotations

from ggmlpy.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS

_CONTRACTION = r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(upper: str, lower: str, numbers: str, contraction: str = _CONTRACTION + "?") -> str:
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_ASCII_CASE = (r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]")
_NO_CASE = (r"[\p{L}\p{M}]", r"[\p{L}\p{M}]")
_DIGITS = r"\P{N}*(?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3}"
_HAN = (
    r"\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}"
    r"\x{2f800}-\x{2fa1f}"
)
_GPT_4O = (_words(*_ASCII_CASE, r"\p{N}{1,3}"),)


def _without_spaces(splits: tuple[str, ...]) -> tuple[str, ...]:
    r"""Other spaces than ASCII's are matched by \s only, not by the ranges that include them."""
    return tuple(
        pattern[:-2] + r"&&[^\s]]+" if pattern.endswith(r"}]+") else pattern for pattern in splits
    )


PEER_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT_4O),
    "granite-embed-multi-97m": (
        _words(r"[\p{L}\p{M}&&[^a-z]]", r"[\p{L}\p{M}&&[^A-Z]]", r"\p{N}{1,3}"),
    ),
    "tekken": (_words(*_ASCII_CASE, r"\p{N}", ""),),
    "kimi-k2": (
        rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), (_DIGITS, _words(*_NO_CASE, r"\p{N}{1,3}"))),
    "youtu": (PRE_TOKENIZERS["youtu"].splits[0], _words(*_NO_CASE, r"\p{N}")),
    "deepseek-llm": _without_spaces(PRE_TOKENIZERS["deepseek-llm"].splits),
    "deepseek-coder": _without_spaces(PRE_TOKENIZERS["deepseek-coder"].splits),
    "afmoe": (
        _DIGITS,
        # U+F900 has become the character that it stands for, which makes the range longer.
        PRE_TOKENIZERS["afmoe"].splits[1].replace(r"\x{f900}", r"\x{8c48}"),
        *PRE_TOKENIZERS["afmoe"].splits[2:],
    ),
    "superbpe": tuple(
        pattern.replace(r"\d", "[0-9]") for pattern in PRE_TOKENIZERS["superbpe"].splits
    ),
}
