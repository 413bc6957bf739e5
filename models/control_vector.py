"""Control vectors in GGUF files: directions that are added to what layers give.

`general.architecture` is "controlvector"; the tensor `direction.N` [n_embd] f32 is added to the
result of layer N, counted from 0, of which layer 0 has none, as in llama.cpp. Vectors of several
files are summed. Source: Zou et al., Representation Engineering, 2023.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.callers import warn_caller
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HostBuffer, Place
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import F32
from ggmlpy.models.hparams import HParams
from ggmlpy.models.other_files import kind_of_file
from ggmlpy.models.weights import WeightWarning

_DIRECTION = re.compile(r"direction\.([1-9]\d{0,8})")
_KIND = "a control vector, which steers a model"


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """What is added to the results of layers. The digest is equal for equal directions."""

    directions: dict[int, Tensor]  # [n_embd] f32, by layer
    digest: str


def open_control_vectors(
    files: Sequence[tuple[str | bytes | PathLike[str], float]],
    hparams: HParams,
    layer_range: tuple[int, int] | None = None,
) -> ControlVector | None:
    """The sum of the vectors in some files, each times its scale; None if there are none.

    `layer_range` has the first and the last layer that gets it; None: 1 and the last one. Raises
    FileError for a file that cannot be read, WeightError for one that is no control vector or that
    does not fit the model, ArgumentError for a range without layers. A WeightWarning says where a
    file was made for another architecture, or has directions of layers that there are not.
    """
    first, last = (1, hparams.n_layer - 1) if layer_range is None else layer_range
    if layer_range is not None and not 1 <= first <= last:
        raise ArgumentError(
            f"control_vector_layer_range is {first} to {last}: it must be from at least 1 to at"
            " least that"
        )
    sums: dict[int, NDArray[np.float32]] = {}
    for path, scale in files:
        with GGUFFile.open(path) as file:
            for layer, direction in _directions(file, hparams).items():
                if first <= layer <= last:
                    total = sums.get(layer, np.zeros(hparams.n_embd, np.float32))
                    sums[layer] = total + direction * np.float32(scale)
    if not sums:
        return None
    digest = hashlib.sha256()
    directions = {}
    for layer, total in sorted(sums.items()):
        digest.update(layer.to_bytes(4, "little") + total.tobytes())
        place = Place(HostBuffer(total.view(np.uint8)))
        name = f"direction.{layer}"
        spec = Spec((hparams.n_embd,), F32)
        directions[layer] = Tensor(spec, name=name, flags=Flag.WEIGHT, place=place)
    return ControlVector(directions, f"control:{digest.hexdigest()}")


def _directions(file: GGUFFile, hparams: HParams) -> dict[int, NDArray[np.float32]]:
    """The directions in a file for layers of the model."""
    kind = kind_of_file(file)
    if kind != _KIND:
        raise WeightError(
            f"{file.name}: this is {kind or 'a model'}: it must be a control vector, whose"
            ' "general.architecture" is "controlvector"'
        )
    hint = file.metadata.str("controlvector.model_hint", "")
    if hint and hint != hparams.architecture:
        warn_caller(
            f"{file.name}: the control vector was made for architecture {quoted(hint)}, the model"
            f" is of {quoted(hparams.architecture)}",
            WeightWarning,
        )
    found, beyond = {}, []
    for name, info in file.tensors.items():
        named = _DIRECTION.fullmatch(name)
        if named is None:
            raise WeightError(
                f"{file.name}: tensor {quoted(name)}: those of a control vector are named"
                " direction.1, direction.2 …"
            )
        if info.type is not F32 or info.ne != (hparams.n_embd, 1, 1, 1):
            raise WeightError(
                f"{file.name}: {quoted(name)} is {info.type.name} {list(info.ne[: info.n_dims])},"
                f" it must be f32 [{hparams.n_embd}]"
            )
        if int(named[1]) >= hparams.n_layer:
            beyond.append(name)
        else:
            found[int(named[1])] = info.data.view(np.float32).copy()
    if not found:
        raise WeightError(f"{file.name}: it has no direction of a layer that the model has")
    if beyond:
        warn_caller(
            f"{file.name}: {', '.join(map(quoted, beyond[:3]))}{' …' if beyond[3:] else ''} have no"
            f" effect: the last layer of the model is {hparams.n_layer - 1}",
            WeightWarning,
        )
    return found
