"""Placement of layers on backends, by `n_gpu_layers` and overrides of tensors as in llama.cpp.

The layers of a model are its blocks 0 to n_layer - 1, and the output, layer n_layer. The last
`n_gpu_layers` of these lie on devices with memory of their own, in equal parts where there are
several; the others, and the token embedding, on the host. Weights lie where their layer does, and
so do its K, V and recurrent state. Norms and products between the embedding and the blocks lie with
the first block.

Names of tensors say where they belong, except for those that a model declares to be of its output
(`Weights.declare_output`): its last norm, which LFM2's files call `token_embd_norm`, and what other
names do not tell, such as both projections `altup_*` of Gemma 3n.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import kind_of
from ggmlpy.common.callers import warn_caller
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.models import Model
from ggmlpy.models.memory import Memory, slots_of
from ggmlpy.sched.assignment import check_names

ALL = -1
_BLOCK = re.compile(r"(?:(?:enc|dec)\.)?blk\.(\d+)\.")
_BEFORE_BLOCKS = re.compile(r"token_embd_norm|per_layer_(?:model_proj|proj_norm)")
_OUTPUT = re.compile(r"output|cls\.|dense_\d\.")


class PlacementWarning(UserWarning):
    """`n_gpu_layers` asks for layers on a device or on the host, and no backend is there."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The backend of each layer and tensor of a model.

    `layers` has the backend of each block, and last that of the output. `overrides` come before
    it; of several that match, the first one counts. `output` has the names, without ".weight", of
    tensors that lie with the output whatever they are called.
    """

    layers: tuple[Backend, ...]
    input: Backend
    overrides: tuple[tuple[re.Pattern[str], Backend], ...] = ()
    output: frozenset[str] = frozenset()

    @classmethod
    def for_model(
        cls,
        model: Model,
        backends: Sequence[Backend],
        n_gpu_layers: int = ALL,
        override_tensors: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> Placement:
        """That of a model's layers, and of those tensors that it declares to be of its output.
        Warns and raises as `of` does."""
        placement = cls.of(model.n_block, backends, n_gpu_layers, override_tensors)
        return replace(placement, output=model.weights.of_output)

    @classmethod
    def of(
        cls,
        n_layer: int,
        backends: Sequence[Backend],
        n_gpu_layers: int = ALL,
        override_tensors: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> Placement:
        """`n_gpu_layers` -1 is all layers. `override_tensors` are pairs of a regular expression,
        searched for in names of tensors, and the name of a backend or its buffer type.

        Issues a PlacementWarning if `n_gpu_layers` is above 0 and no backend has memory of its own,
        or if it leaves layers to the host and no backend uses memory of the host. Raises
        ArgumentError for a count below -1, an invalid pattern, an unknown backend, and two backends
        of one name.
        """
        check_names(backends)
        if n_gpu_layers < ALL:
            raise ArgumentError(f"n_gpu_layers is {n_gpu_layers}: it must be at least -1, all")
        devices = [b for b in backends if not b.buffer_type.is_host]
        host = next((b for b in backends if b.buffer_type.is_host), None)
        n_all = n_layer + 1
        n_asked = n_all if n_gpu_layers == ALL or host is None else min(n_gpu_layers, n_all)
        if not devices:
            if n_gpu_layers > 0:
                on_host = "no device has memory of its own: all layers lie on the host of"
                _warn(n_gpu_layers, on_host, backends)
            n_asked = 0
        elif host is None and ALL < n_gpu_layers < n_all:
            _warn(n_gpu_layers, "no backend uses memory of the host: all layers lie on", devices)
        on_device = [devices[i * len(devices) // n_asked] for i in range(n_asked)]
        rest = [host or devices[0]] * (n_all - n_asked)
        given = (
            override_tensors.items() if isinstance(override_tensors, Mapping) else override_tensors
        )
        found = tuple(_override(pattern, name, backends) for pattern, name in given)
        return cls((*rest, *on_device), host or devices[0], found)

    @property
    def n_layer(self) -> int:
        return len(self.layers) - 1

    def backend_of(self, tensor: str) -> Backend:
        """The backend that a tensor of the file lies on, by its name."""
        for pattern, backend in self.overrides:
            if pattern.search(tensor):
                return backend
        block = _BLOCK.match(tensor)
        if block is not None:
            return self.layers[min(int(block[1]), self.n_layer - 1)]
        if tensor.startswith("rope_"):  # factors that all blocks share
            return self.layers[max(0, self.n_layer - 1)]
        if tensor.rpartition(".")[0] in self.output:
            return self.layers[-1]
        if _BEFORE_BLOCKS.match(tensor):
            return self.layers[0]
        return self.layers[-1] if _OUTPUT.match(tensor) else self.input

    def check_overrides(self, tensors: Iterable[str]) -> None:
        """Issue a PlacementWarning for each pattern that matches none of the names."""
        names = list(tensors)
        for pattern, backend in self.overrides:
            if not any(map(pattern.search, names)):
                warn_caller(
                    f"override_tensors: {pattern.pattern!r}, to lie on {backend.name}, matches no"
                    " tensor of the model",
                    PlacementWarning,
                )

    def buffer_types(self, memory: Memory) -> dict[int, BufferType]:
        """The memory in which each slot of K and V, and each recurrent state, lies: that of block
        slot % n_layer, see `ggmlpy.models.Model.n_block`."""
        return {i: self.layers[i % self.n_layer].buffer_type for i in slots_of(memory)}

    def __str__(self) -> str:
        """`layers 0 to 3 on cpu, 4 to 7 and output on mock`"""
        names = [backend.name for backend in self.layers]
        parts, first = [], 0
        for i in range(1, len(names) + 1):
            if i == len(names) or names[i] != names[first]:
                parts.append(f"{self._layers(first, i - 1)} on {names[first]}")
                first = i
        return f"{'layers ' if self.n_layer else ''}{', '.join(parts)}"

    def _layers(self, first: int, last: int) -> str:
        if first == self.n_layer:
            return "output"
        end = min(last, self.n_layer - 1)
        blocks = str(first) if first == end else f"{first} to {end}"
        return f"{blocks} and output" if last == self.n_layer else blocks


def _override(
    pattern: str, name: str, backends: Sequence[Backend]
) -> tuple[re.Pattern[str], Backend]:
    names = {b.name: b for b in reversed(backends)} | {
        b.buffer_type.name: b for b in reversed(backends)
    }
    for text, what in ((pattern, "pattern"), (name, "backend")):
        if not isinstance(text, str):
            raise ArgumentError(
                f"override_tensors: the {what} {text!r:.60} is {kind_of(text)}: it must be a string"
            )
    found = {known.lower(): b for known, b in names.items()} | names
    backend = found.get(name, found.get(name.lower()))
    if backend is None:
        raise ArgumentError(
            f"override_tensors: {pattern!r} is to lie on {name!r}: it must be one of"
            f" {', '.join(sorted(names))}"
        )
    try:
        return re.compile(pattern), backend
    except re.error as error:
        raise ArgumentError(
            f"override_tensors: {pattern!r} is no regular expression: {error}"
        ) from None


def _warn(n_gpu_layers: int, why: str, backends: Sequence[Backend]) -> None:
    names = ", ".join(b.name for b in backends)
    warn_caller(f"n_gpu_layers is {n_gpu_layers}, but {why} {names}", PlacementWarning)
