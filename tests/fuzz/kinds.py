"""The table of kinds."""

from __future__ import annotations

from tests.fuzz.arguments import Arguments
from tests.fuzz.cache import KernelCache
from tests.fuzz.case import Kind
from tests.fuzz.cli import Cli
from tests.fuzz.gguf import Gguf
from tests.fuzz.graphs import Graphs
from tests.fuzz.histories import Histories
from tests.fuzz.sequences import Sequences
from tests.fuzz.states import States
from tests.fuzz.templates import Templates
from tests.fuzz.writes import Writes

KINDS: tuple[Kind, ...] = (
    Gguf(),
    Graphs(),
    Histories(),
    Sequences(),
    States(),
    Templates(),
    KernelCache(),
    Cli(),
    Arguments(),
    Writes(),
)
