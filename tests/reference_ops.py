"""ggml's own results for small op cases, from the optional reference data."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.quants import Bytes
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes
from ggmlpy.graph.types import type_of
from tests.shared import shared_path


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """An expression over `ops` and `t0`, `t1`, ..., the bytes of these, and of ggml's result."""

    name: str
    expr: str
    inputs: tuple[tuple[Spec, bytes], ...]
    out: Spec
    out_bytes: Bytes

    def node(self) -> Tensor:
        """The expression's tensor, over fresh inputs that may be written into."""
        names: dict[str, Any] = {"ops": ops}
        for i, (spec, raw) in enumerate(self.inputs):
            names[f"t{i}"] = from_bytes(bytearray(raw), spec.type, spec.ne)
        made = eval(self.expr, {"__builtins__": {}}, names)
        assert isinstance(made, Tensor)
        if made.root.is_leaf:
            made.root.flags = Flag.STATE
        return made


@cache
def reference_results() -> list[ReferenceResult]:
    """Every case of the file; skips the calling test where the file is absent."""
    with lzma.open(shared_path("reference/ops.bin.xz")) as file:
        return list(_parse(np.frombuffer(file.read(), np.uint8)))


def _parse(data: NDArray[np.uint8]) -> Iterator[ReferenceResult]:
    """A JSON line, then the raw bytes of each input and of the output; and so on."""
    raw, at = data.tobytes(), 0

    def take(n_bytes: int) -> bytes:
        nonlocal at
        at += n_bytes
        assert at <= len(raw), "the file is cut short"
        return raw[at - n_bytes : at]

    while at < len(raw):
        head = json.loads(take(raw.index(b"\n", at) + 1 - at))
        specs = [Spec(t["ne"], type_of(t["type"])) for t in head["inputs"]]
        inputs = tuple((spec, take(spec.n_bytes)) for spec in specs)
        out = Spec(head["out"]["ne"], type_of(head["out"]["type"]))
        out_bytes = np.frombuffer(take(out.n_bytes), np.uint8)
        yield ReferenceResult(head["name"], head["expr"], inputs, out, out_bytes)
