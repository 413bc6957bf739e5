"""The specifications of the tiny models whose tokens attend to all tokens of their sequence."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, SIX_HEADS, SIZED, spec

DIFFUSION_SPECS: dict[str, Seeded] = {
    "dream": spec("dream", BIASES, SIX_HEADS),
    "llada": spec("llada", keys=SIZED),
}
