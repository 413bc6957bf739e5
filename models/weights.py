"""A file's tensors as leaves of a graph, each checked against the shape that the model asks for."""

from __future__ import annotations

import warnings

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor

# Norms, biases: copied, because reading a few bytes of a mapped file brings up to 2 MB around them
# into the process's memory, 18 MB with the 33 norms of a model of 770 MB.
_SMALL_BYTES = 1 << 16
_N_NAMED = 5  # of the tensors that a warning is about


class WeightWarning(UserWarning):
    """A file holds tensors that no part of its model uses: results may not be what was meant."""


class Weights:
    """Hands out leaves over the mapped file; every tensor is handed out once, as one leaf."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._taken: dict[str, Tensor] = {}
        self._without_effect: set[str] = set()

    def take(self, name: str, *ne: int) -> Tensor:
        """The tensor `name` of shape `ne`. Raises WeightError if missing or shaped otherwise."""
        found = self.maybe(name, *ne)
        if found is None:
            raise WeightError(f'{self._file.name}: tensor "{name}" {list(ne)} is missing')
        return found

    def maybe(self, name: str, *ne: int) -> Tensor | None:
        """As `take`, but None for a tensor that the file does not have."""
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
        buffer = HostBuffer(info.copy()) if info.n_bytes <= _SMALL_BYTES else info.buffer()
        leaf = Tensor(Spec(padded, info.type), name=name, flags=Flag.WEIGHT, place=Place(buffer))
        self._taken[name] = leaf
        return leaf

    def without_effect(self, name: str) -> None:
        """Mark a tensor as known and without effect in this architecture: no warning names it."""
        self._without_effect.add(name)

    def warn_of_unused(self) -> None:
        """Warn, once and by name, of tensors that the model does not use."""
        names = [name for name in self.unused() if name not in self._without_effect]
        if not names:
            return
        shown = ", ".join(map(quoted, names[:_N_NAMED]))
        more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
        warnings.warn(
            f"{self._file.name}: no part of the model uses {shown}{more}: results may differ from"
            " those that the file was made for",
            WeightWarning,
            stacklevel=5,  # whoever called Llama or Context.open
        )

    def unused(self) -> list[str]:
        """Names of tensors in the file that no one asked for."""
        return [name for name in self._file.tensors if name not in self._taken]
