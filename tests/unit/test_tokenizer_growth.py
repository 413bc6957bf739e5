"""Cutting text into words takes steps in proportion to its length, whatever the text."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tokenizers import Regex, pre_tokenizers

from ggmlpy.text.tokenizer import PRE_TOKENIZERS
from ggmlpy.text.tokenizer.bpe import word_splitter
from ggmlpy.text.tokenizer.pre_tokenizers import PreTokenizer
from tests.unit.regex_steps import classes, cut

PATTERNS = sorted({pattern for row in PRE_TOKENIZERS.values() for pattern in row.splits})
PUBLISHED = (  # quadratic, and what stands for each in the table
    ((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",), PRE_TOKENIZERS["afmoe"].splits[:1]),
    ((r"\d{1,3}(?=(?:\d{3})*\b)",), PRE_TOKENIZERS["tiny_aya"].splits[:1]),
    ((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), PRE_TOKENIZERS["superbpe"].splits),
    ((r"[\r\n]", r"\s+$"), (r"[\r\n]", PRE_TOKENIZERS["deepseek-llm"].splits[3])),
)
QUADRATIC = [*(published[-1] for published, _ in PUBLISHED), r"\s*+!", r"[\p{Lu}\p{Lo}]*\p{Lo}+!"]
ALPHABET = (
    "aslAZ\u01c5\u02b0\u6c49\u3042\uac00\u0e01\u0301\U0001f600\u200d"  # letters, marks, emoji
    " \u00a0\n\t\r\u2028.,'!/<$_|\0\ufffd1\u0661\u2160\u00bd"  # spaces, signs, numbers
)


def adversarial(pattern: str, n: int) -> Iterator[str]:
    """Two runs that another character breaks, and alternations, of every two kinds of character.

    Of characters that all parts of the expression treat alike, one stands for all.
    """
    chars = list({classes(pattern, char): char for char in ALPHABET}.values())
    for i, x in enumerate(chars):
        for j, y in enumerate(chars):
            yield x * n + y * n + x
            if i < j:
                yield (x + y) * n


def growth(pattern: str) -> float:
    """The most by which twice the text takes more steps: 2 if linear, up to 4 if quadratic.

    12 and 24 leave the same rest where digits are grouped in threes.
    """
    once, twice = ([cut(pattern, text)[1] for text in adversarial(pattern, n)] for n in (12, 24))
    return max(b / a for a, b in zip(once, twice, strict=True))


def test_every_expression_is_linear() -> None:
    grown = {pattern: growth(pattern) for pattern in PATTERNS}
    assert {pattern: times for pattern, times in grown.items() if times > 2.1} == {}


@pytest.mark.parametrize("pattern", QUADRATIC)
def test_quadratic_expressions_are_told(pattern: str) -> None:
    assert growth(pattern) > 2.8


def random_texts(seed: int, n: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(n):
        runs = [rng.choice(ALPHABET) * rng.choice((1, 1, 2, 3, 7)) for _ in range(rng.randrange(9))]
        yield "".join(runs)


@pytest.mark.parametrize("pattern", [*PATTERNS, *QUADRATIC])
def test_the_counting_matcher_cuts_as_the_engine_does(pattern: str) -> None:
    engine = pre_tokenizers.Split(Regex(pattern), "isolated")
    for text in random_texts(len(pattern), 20):
        assert cut(pattern, text)[0] == [piece for piece, _ in engine.pre_tokenize_str(text)]


@pytest.mark.parametrize(("published", "ours"), PUBLISHED)
def test_cuts_as_the_published_expression_does(
    published: tuple[str, ...], ours: tuple[str, ...]
) -> None:
    """Digits, other numbers, letters that end a run of digits, and spaces."""
    rng = random.Random(len(published[-1]))
    expected, actual = word_splitter(PreTokenizer(published)), word_splitter(PreTokenizer(ours))
    for _ in range(300):
        text = "".join(rng.choices("1\u0661\u00bda_ \n", (9, 2, 1, 1, 1, 4, 1), k=40))
        assert actual.pre_tokenize_str(text) == expected.pre_tokenize_str(text)


@pytest.mark.parametrize("name", ["afmoe", "superbpe", "tiny_aya"])
def test_digits_are_grouped_by_thousands(name: str) -> None:
    rng = random.Random(1)
    splitter = word_splitter(PRE_TOKENIZERS[name])
    for n_digits in range(1, 40):
        number = rng.randrange(10 ** (n_digits - 1), 10**n_digits)
        words = [word for word, _ in splitter.pre_tokenize_str(f"a{number} b")]
        assert words == ["a", *f"{number:,}".split(","), " b"]
