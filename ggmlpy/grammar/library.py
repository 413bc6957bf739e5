"""The package llguidance, an optional dependency."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ggmlpy.errors import MissingPackage

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


def matcher_class() -> type[LLMatcher]:
    """Raises MissingPackage."""
    _require()
    from llguidance import LLMatcher

    return LLMatcher


def tokenizer_class() -> type[LLTokenizer]:
    """Raises MissingPackage."""
    _require()
    from llguidance import LLTokenizer

    return LLTokenizer


def is_installed() -> bool:
    """Whether grammars can be used."""
    return find_spec("llguidance") is not None


def _require() -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            "grammars and response_format need the package llguidance: pip install"
            f" 'ggmlpy[grammar]' ({error})"
        ) from None


def reason(error: str) -> str:
    """What llguidance says is wrong, on one line: without its excerpt and its state."""
    lines = [line.strip() for line in error.strip().splitlines()]
    first = lines[0] if lines else "unknown"
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return ": ".join([first.removesuffix(":"), *details])
