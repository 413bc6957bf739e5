"""Tiny models with the kinds of memory that K and V of all tokens are not."""

from __future__ import annotations

from dataclasses import replace

from tests.models.tiny import Tiny


def with_windows(small: Tiny) -> Tiny:
    """A gemma3 of these sizes: two of three layers see 5 tokens."""
    return replace(
        small, architecture="gemma3", n_layer=3, neox=True, qk_norm=True, post_norms=True,
        gelu=True, window=5, windowed=(0, 1), tied=True,
    )  # fmt: skip


def with_convolutions(small: Tiny) -> Tiny:
    """An lfm2 of these sizes: two of three layers have a recurrent state."""
    return replace(
        small, architecture="lfm2", n_layer=3, neox=True, qk_norm=True, convolutions=(0, 2),
        tied=True,
    )  # fmt: skip
