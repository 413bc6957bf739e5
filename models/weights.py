"""The tensors of a file as leaves of a graph, checked against the shapes that the model needs."""

from __future__ import annotations

import re

from ggmlpy.common.callers import warn_caller
from ggmlpy.common.quoting import quoted_list
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor

# Norms and biases are copied: reading a few bytes of a mapped file makes up to 2 MB around them
# resident, 18 MB for the 33 norms of a 770 MB model.
_SMALL_BYTES = 1 << 16
_LAYER = re.compile(r"blk\.(\d+)\.")


class WeightWarning(UserWarning):
    """A file holds tensors that its model does not use: results may differ from the intended."""


class Weights:
    """Makes leaves over the mapped file, one for each tensor that the model asks for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._taken: dict[str, Tensor] = {}
        self._without_effect: set[str] = set()
        self._of_output: set[str] = set()

    def take(self, name: str, *ne: int) -> Tensor:
        """The tensor `name` of shape `ne`. Raises WeightError if missing or shaped otherwise."""
        found = self.maybe(name, *ne)
        if found is None:
            raise WeightError(f'{self._file.name}: tensor "{name}" {list(ne)} is missing')
        return found

    def maybe(self, name: str, *ne: int) -> Tensor | None:
        """As `take`, but None if the file does not have the tensor."""
        if name in self._taken:
            return self._taken[name]
        info = self._file.tensors.get(name)
        if info is None:
            return None
        padded = ne + (1,) * (4 - len(ne))
        if info.ne != padded:
            raise WeightError(
                f'{self._file.name}: "{name}" is {list(info.ne[: info.n_dims])},'
                f" the metadata asks for {list(ne)}"
            )
        spec = Spec(padded, info.type)
        leaf = Tensor(spec, name=name, flags=Flag.WEIGHT, place=self._place(name))
        self._taken[name] = leaf
        return leaf

    def has(self, name: str) -> bool:
        """Whether the file has a tensor `name`."""
        return name in self._file.tensors

    def ne(self, name: str) -> tuple[int, ...]:
        """Shape of the file's tensor `name`, where a model depends on it."""
        return self._file.tensors[name].ne

    def ignore_layers(self, layers: range) -> None:
        """Declare that some layers have no effect, such as those of nextn."""
        for name in self._file.tensors:
            found = _LAYER.match(name)
            if found is not None and int(found[1]) in layers:
                self.without_effect(name)

    def duplicate(self, name: str, used_as: str) -> Tensor:
        """A second leaf of the tensor `name`, used as another one: both can lie on other devices.

        The leaf is called `name` too, and placed like the tensor `used_as`.
        """
        leaf = self._taken[name]
        duplicate = Tensor(leaf.spec, name=leaf.name, flags=leaf.flags, place=self._place(name))
        self._taken[used_as] = duplicate
        return duplicate

    def _place(self, name: str) -> Place:
        info = self._file.tensors[name]
        small = info.n_bytes <= _SMALL_BYTES
        return Place(HostBuffer(info.copy()) if small else info.buffer())

    @property
    def leaves(self) -> dict[str, Tensor]:
        """All leaves, by the names of the tensors like which they are placed."""
        return dict(self._taken)

    def declare_output(self, *names: str) -> None:
        """Declare that the tensors `name.weight` and `name.bias` belong to the output, whatever
        they are called."""
        self._of_output.update(names)

    @property
    def of_output(self) -> frozenset[str]:
        """The names that were declared to be of the output."""
        return frozenset(self._of_output)

    def without_effect(self, name: str) -> None:
        """Declare that a tensor has no effect in this architecture: it causes no warning."""
        self._without_effect.add(name)

    def without_effect_where(self, pattern: re.Pattern[str]) -> None:
        """Declare that the tensors whose names begin with a pattern have no effect."""
        self._without_effect.update(name for name in self._file.tensors if pattern.match(name))

    def warn_of_unused(self) -> None:
        """Issue one WeightWarning that names the tensors which the model does not use."""
        names = [name for name in self.unused() if name not in self._without_effect]
        if not names:
            return
        warn_caller(
            f"{self._file.name}: no part of the model uses {quoted_list(names)}: results may"
            " differ from those that the file was made for",
            WeightWarning,
        )

    def unused(self) -> list[str]:
        """Names of the tensors in the file that were not taken."""
        return [name for name in self._file.tensors if name not in self._taken]
