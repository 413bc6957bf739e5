"""The table of kinds."""

from __future__ import annotations

from tests.fuzz.case import Kind
from tests.fuzz.gguf import Gguf

KINDS: tuple[Kind, ...] = (Gguf(),)
