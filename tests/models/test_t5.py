"""T5: buckets of distances, and why its decoder is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ggmlpy import Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.models.memory import Buckets
from tests.gguf_builder import build_gguf


@pytest.mark.parametrize("n", [4, 8, 32, 64])
def test_buckets_grow_with_the_distance(n: int) -> None:
    half, near = n // 2, n // 4
    for distance in range(-200, 201):
        (found,) = Buckets(n).of(np.array([distance], np.int32))
        bucket, far = (found - half, distance) if distance > 0 else (found, -distance)
        if far < near:
            assert bucket == far
            continue
        # Not at the borders, where f32 decides.
        exact = near + math.log(far / near) / math.log(128 / near) * (half - near)
        allowed = {min(half - 1, math.floor(exact + e)) for e in (-1e-5, 1e-5)}
        assert bucket in allowed, distance


def test_a_decoder_of_t5_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "t5.gguf"
    build_gguf(path, {"general.architecture": "t5"}, {})
    with pytest.raises(Unsupported, match='architecture "t5" is not supported: its decoder'):
        load_model(GGUFFile.open(path))
