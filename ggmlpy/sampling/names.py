"""Names of the steps that `SamplingParams.samplers` orders: llama.cpp's."""

from __future__ import annotations

from difflib import get_close_matches

from ggmlpy.errors import SamplingError

LETTERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "infill": "i",
    "adaptive_p": "a",
}
"""All names, with the letters of llama.cpp's --sampler-seq."""

DEFAULT_SAMPLERS: tuple[str, ...] = tuple(LETTERS)[:9]
"""llama.cpp's order."""

_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p"}
_BY_LETTER = {letter: name for name, letter in LETTERS.items()}


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


_NAMES = {
    **{name: name for name in LETTERS},
    **{name.replace("_", ""): name for name in LETTERS},
    **_ALIASES,
}


def sampler_name(given: str) -> str:
    """The name of a step, which may be spelt as llama.cpp takes it: top-k, topk, temp, nucleus.

    Raises SamplingError for an unknown one, with those that are like it.
    """
    name = _NAMES.get(_plain(given))
    if name is None:
        close = sorted({_NAMES[near] for near in get_close_matches(_plain(given), _NAMES, n=3)})
        meant = f"did you mean {' or '.join(close)}? Known are" if close else "known are"
        raise SamplingError(f"samplers names {given!r}: {meant} {', '.join(LETTERS)}")
    return name


def samplers_by_letters(letters: str) -> tuple[str, ...]:
    """The steps that llama.cpp's letters name, as in "edskypmxt". Raises SamplingError."""
    for letter in letters:
        if letter not in _BY_LETTER:
            known = ", ".join(f"{letter} ({name})" for letter, name in _BY_LETTER.items())
            raise SamplingError(f"the sequence of samplers has {letter!r}: known are {known}")
    return tuple(_BY_LETTER[letter] for letter in letters)
