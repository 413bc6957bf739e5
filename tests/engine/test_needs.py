"""What a context needs of each memory, against what it takes when it is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy import Llama
from ggmlpy.memory.layouts import LAYOUTS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_needed_is_what_is_taken(tiny_path: Path, layout: str) -> None:
    with Llama(tiny_path, n_ctx_seq=64, n_seq_max=3, kv_layout=layout, type_v="f32") as llm:
        (host,) = llm._opener.needs()
        assert host.name == "host"
        assert host.state == llm._context.memory.n_bytes
        taken = llm._context.compute_bytes["host"]
        assert taken <= host.compute <= taken * 17 // 16 + 2**16  # `reserve` takes a part more
        in_file = sum(t.n_bytes for t in llm._file.tensors.values())
        assert host.weights == in_file
        assert host.has is not None
        assert host.fits


def test_a_device_has_a_row_of_its_own(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=64, backend=["mock", "cpu"]) as llm:
        host, device = llm._opener.needs()
        assert (host.name, device.name) == ("host", "mock")
        assert device.weights > 0
        assert device.has is None
        assert device.fits
        assert device.total == device.weights + device.state + device.compute
