r"""How BPE vocabularies split text into words before merging: a table by `tokenizer.ggml.pre`.

A GGUF file names its pre-tokenizer; all 91 names of llama.cpp 0.3.36's bindings are known. The
regular expressions are published with each model, in its tokenizer.json or tokenizer script. They
are the model's own also where llama.cpp had to rewrite them for a simpler regex engine; the 15
names for which its tokens differ are listed in docs/tokenizers.md.

The expressions are for Oniguruma, which has Unicode classes (`\p{Lu}`), class intersection (`&&`),
lookahead and possessive repeats. They are applied one after the other: each splits the pieces that
the previous one left, into its matches and the text between them.

Each takes time in proportion to the text: a character is read by at most a fixed number of
attempts. Where a published expression is quadratic on some text (a repeat inside a lookahead, or
one that ends in an anchor), it is replaced by one with the same matches.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

from ggmlpy.common.quoting import quoted
from ggmlpy.text.tokenizer.blocks import WORD_END
from ggmlpy.text.tokenizer.vocabulary import TokenizerWarning


class PreTokenizerWarning(TokenizerWarning):
    """A file's pre-tokenizer is missing or unknown: tokens may differ from the original's."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a family of BPE vocabularies splits text, and the defaults of its files."""

    splits: tuple[str, ...]
    """Regular expressions, applied one after the other."""
    ignore_merges: bool = False
    """A word that is a token is not merged."""
    add_bos: bool = False
    """Whether BOS is added if the file does not say."""
    byte_level: bool = True
    """Tokens spell bytes in GPT-2's printable alphabet; otherwise they are plain text."""
    escape_spaces: bool = True
    """A space is ▁ in tokens of plain text."""
    whole_newlines: bool = False
    """A sequence of newlines that is a token is not merged."""
    always_bos: bool = False
    """BOS is added even if the file says no, as early files of the family do, wrongly."""
    clean_spaces: bool = True
    """Whether decoding may remove spaces before signs and contractions."""
    seam: re.Pattern[str] = WORD_END
    """Where text can be split into blocks without changing its words."""


def find_pre_tokenizer(name: str | None, where: str) -> PreTokenizer:
    """The table's row for `tokenizer.ggml.pre`; without one "default", with a warning."""
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    found = "is missing" if name is None else f"is {quoted(name)}, which is unknown"
    warnings.warn(
        f'{where}tokenizer.ggml.pre {found}: text is split by the rule "default", so that tokens '
        "may differ from those that the model was trained with, and answers may be poor. "
        f"Known are: {', '.join(sorted(PRE_TOKENIZERS))}",
        PreTokenizerWarning,
        stacklevel=4,  # the caller of Tokenizer.from_gguf or from_metadata
    )
    return PRE_TOKENIZERS["default"]


def _chars(ranges: str) -> str:
    r"""The inside of a character class: "41-5a b5" gives `\x{41}-\x{5a}\x{b5}`."""
    return "".join(
        "-".join(rf"\x{{{code}}}" for code in part.split("-")) for part in ranges.split()
    )


def _threes(digit: str, end: str) -> str:
    r"""Groups of three digits, counted from the right end of a number, where `end` must match.

    The same matches as `{digit}{1,3}(?=(?:{digit}{3})*{end})`, which reads the rest of the number
    for every group. Here only the first group does; `\G` continues at the end of the last match.
    """
    first = rf"(?<!{digit}){digit}{{1,3}}(?=(?:{digit}{{3}})*+{end})"
    return rf"{first}|\G(?<={digit}){digit}{{3}}"


# Published as (?i:'s|'t|…), which also takes U+017F for an s; llama.cpp spells the cases out.
_CONTRACTION = r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"


def _cl100k(numbers: str, *, contraction: str = _CONTRACTION + "|", spaces: str = _SPACES) -> str:
    """The family of GPT-4: a word may include one sign before it, numbers are short."""
    return (
        rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"
    )


def _o200k(
    numbers: str,
    *,
    contraction: str = _CONTRACTION + "?",
    without: str = "",
    line: str = r"[\r\n/]*",
) -> str:
    """The family of GPT-4o: words also end between lower and upper case."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{line}|{_SPACES}"
    )


_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(_DIGIT)
_BLOOM = rf" ?[^(\s|.,!?{_chars('2026 3002 ff0c 3001 964 6d4 60c')})]+"
_ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_HAN = _chars("4e00-9fa5")
_KANA = _chars("3040-309f 30a0-30ff")
_DEEPSEEK_WORDS = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
)
_DEEPSEEK_V3 = rf"{_DEEPSEEK_WORDS}[\r\n]*|{_SPACES}"
_DEEPSEEK_CJK = rf"[{_HAN}{_chars('800-4e00 ac00-d7ff')}]+"
_DEEPSEEK_LETTERS = _chars(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 "
    "388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba "
    "1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 "
    "1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb "
    "1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d "
    "212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 "
    "a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a "
    "ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_DEEPSEEK_SIGNS = _chars("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")
_YOUTU_SCRIPTS = (
    rf"[{_chars('ac00-d7a3 3131-318e')}]+"
    rf"|[{_chars('ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f')}]+"
    rf"|[{_chars('3105-312f')}]+|[{_HAN}{_KANA}]+"
)
_AFMOE_SCRIPTS = _chars(
    "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff "
    "1780-17ff 1000-109f aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)
_JAIS2_SPACES = (
    r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_NEWLINES = r"\n+"
_LINE_END = re.compile(r"(?<=[^\n])(?=\n)")
_SUPERBPE = (  # (?=(\d{3})+(?!\d)) in two steps: the first such place in a run, then every third
    r"\p{N}+",
    r"(?<!\d)\d{0,2}\K(?=(?:\d{3})++(?!\d))",
    r"\d{3}(?=\d)",
)

_ROWS = (
    (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling jina-es jina-de jina-v1-en jina-v2-es "
        "jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4",
        PreTokenizer((_GPT2,)),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((_DIGIT, _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            )
        ),
    ),
    (
        "minicpm5",
        PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), ignore_merges=True),
    ),
    ("jais-2", PreTokenizer((_cl100k(r"\p{N}{1,3}", spaces=_JAIS2_SPACES),))),
    ("ufakzeka", PreTokenizer((_cl100k(_DIGIT, contraction=""),))),
    ("laguna", PreTokenizer((_NEWLINES, _QWEN2))),
    (
        "seed-coder",
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
            )
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), seam=re.compile(r"(?<=[^\W_])(?=[\n,.])"))),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        PreTokenizer((_o200k(r"\p{N}{1,3}"),)),
    ),
    ("granite-embed-multi-97m", PreTokenizer((_o200k(r"\p{N}{1,3}"),), ignore_merges=True)),
    (
        "tekken",
        PreTokenizer((_o200k(_DIGIT, contraction=""),), ignore_merges=True, add_bos=True),
    ),
    (
        "kimi-k2",
        PreTokenizer(
            (r"\p{Han}+|" + _o200k(r"\p{N}{1,3}", without=r"&&[^\p{Han}]", line=r"[\r\n]*"),)
        ),
    ),
    (
        "tiny_aya cohere2moe",
        PreTokenizer((_threes(r"\d", r"\b"), _o200k(r"\p{N}{1,3}"))),
    ),
    (
        "youtu",
        PreTokenizer((_YOUTU_SCRIPTS, _o200k(_DIGIT)), ignore_merges=True),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                rf"\s?[{_DEEPSEEK_SIGNS}]+",
                r"(?<!\s)\s++$",
                _DEEPSEEK_CJK,
                r"\p{N}+",
            ),
            seam=_LINE_END,  # words of letters outside its list extend over spaces
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT)),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((r"\p{N}{1,3}", rf"[{_HAN}{_KANA}]+", _DEEPSEEK_V3)),
    ),
    (
        "spark2_5",
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                rf"[{_HAN}{_KANA}]+",
                rf"{_DEEPSEEK_WORDS}|[\r\n]|\s+(?!\S)|\s+",
                _DIGIT,
            )
        ),
    ),
    (
        "afmoe",
        PreTokenizer((_threes(r"\p{N}", r"(?!\p{N})"), rf"[{_AFMOE_SCRIPTS}]+", _DEEPSEEK_V3)),
    ),
    (
        "falcon",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, _DIGIT))),
    ("superbpe", PreTokenizer(_SUPERBPE, seam=re.compile(r"(?<=\d)(?=[\s,.])"))),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                _DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    (
        "gemma4 granite-embed-multi-311m",
        PreTokenizer(
            (_NEWLINES,), byte_level=False, whole_newlines=True, always_bos=True, seam=_LINE_END
        ),
    ),
    ("sarvam-moe", PreTokenizer((_NEWLINES,), byte_level=False, seam=_LINE_END)),
    (
        "whitespace",
        PreTokenizer(
            (r"\S+",), byte_level=False, escape_spaces=False, seam=re.compile(r"(?<=\S)(?=\s)")
        ),
    ),
)

_KEEP_SPACES = (
    "deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu sarvam-moe command-r qwen2 "
    "deepseek-r1-qwen kormo f2llmv2 qwen35 poro-chat viking tekken smollm chameleon gpt-4o llama4 "
    "kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe trillion granite-docling "
    "bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2 "
    "ufakzeka grok-2 afmoe laguna minimax-m2 solar-open"
)
"""Names of vocabularies whose decoding changes no spaces."""

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: replace(row, clean_spaces=name not in _KEEP_SPACES.split())
    for names, row in _ROWS
    for name in names.split()
}
