"""A model file with its tensors in other types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import ArgumentError, FileError, Unsupported, WeightError
from ggmlpy.gguf import GGUFFile, TensorInfo
from ggmlpy.gguf.overrides import Scalar
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import TensorType
from ggmlpy.quantize.exempt import is_exempt
from ggmlpy.quantize.file_types import FileType, file_type_of
from ggmlpy.quantize.imatrix import Imatrix
from ggmlpy.quantize.keys import Stored, put, put_all, stored_keys, stored_number
from ggmlpy.quantize.mixture import (
    Category,
    Mixture,
    ModelShape,
    category_of,
    fitting,
    is_token_embedding,
)
from ggmlpy.quantize.rows import (
    NEED_IMPORTANCE,
    Bytes,
    Floats,
    can_quantize,
    quantize_rows,
)
from ggmlpy.quantize.writer import Entry, NewFile, header, shape_of

_QUANTIZATION_VERSION = 2
_GUESSED = 1024  # of a file type that stands in no file
_SLAB = 1 << 24  # elements of one tensor in memory at a time
_LOW_BIT = ("iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a quantised model is to be, beside its file type."""

    pure: bool = False
    """All tensors in the file type's own type, no mixture."""
    leave_output: bool = False
    """`output.weight` stays as it is."""
    output_type: TensorType | None = None
    token_embedding_type: TensorType | None = None
    tensor_types: Sequence[tuple[str, TensorType]] = ()
    """Regular expressions, and the types of tensors whose names have a match; the first counts."""
    allow_requantize: bool = False
    """Also tensors that are quantised already."""
    imatrix: Imatrix | None = None
    overrides: Mapping[str, Scalar] = field(default_factory=dict)
    """Metadata that replaces the file's."""
    keep_split: bool = False
    """As many files as the model has."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor and the type that it gets."""

    tensor: TensorInfo
    type: TensorType
    part: int  # which file it goes to
    needs_imatrix: bool
    wanted: TensorType  # `type`, but for rows that are not whole blocks

    @property
    def n_bytes(self) -> int:
        return self.tensor.n_elements // self.tensor.ne[0] * self.type.row_bytes(self.tensor.ne[0])


Listener = Callable[[Planned, int], None]
"""Called with each tensor, and its rows that are written: first 0, at last all."""


@checked
def plan(
    file: GGUFFile, file_type: str | FileType | None, choices: Choices | None = None
) -> list[Planned]:
    """The tensors of a model in the order in which they are written, and their types.

    `file_type` None copies all tensors. Raises ArgumentError for an unknown file type, Unsupported
    for rows that fit no type, WeightError for a file that has no architecture.
    """
    choices = choices or Choices()
    infos = sorted(file.tensors.values(), key=lambda info: _place(info.name))
    part_of = {path: i for i, path in enumerate(file.paths)} if choices.keep_split else {}
    if choices.keep_split:
        infos.sort(key=lambda info: (part_of[info.path], info.offset))
    kind = None if file_type is None else file_type_of(file_type)
    shape = ModelShape.of(file)
    mixture = None
    if kind is not None:
        names = [info.name for info in infos]
        has_imatrix = choices.imatrix is not None
        mixture = Mixture(kind, shape, names, has_imatrix, choices.output_type)
    planned = []
    for info in infos:
        wanted, type = info.type, info.type
        if mixture is not None and not _stays(info, shape, choices):
            wanted, type = _chosen(info, mixture, choices)
        needs = kind is not None and type is not info.type and _needs_imatrix(info.name, type, kind)
        planned.append(Planned(info, type, part_of.get(info.path, 0), needs, wanted))
    return planned


def _place(name: str) -> tuple[int, bytes]:
    match = re.match(r"blk\.(\d+)\.", name)
    return (int(match[1]) if match else -1), name.encode(errors="surrogateescape")


def _stays(info: TensorInfo, shape: ModelShape, choices: Choices) -> bool:
    kept_output = choices.leave_output and info.name == "output.weight"
    return kept_output or is_exempt(info.name, info.ne, shape.architecture)


def _chosen(info: TensorInfo, mixture: Mixture, choices: Choices) -> tuple[TensorType, TensorType]:
    """(the type that is wanted, the one that fits the rows)."""
    named = next((t for regex, t in choices.tensor_types if re.search(regex, info.name)), None)
    category, default = category_of(info.name), mixture.file_type.type
    embeds = category is Category.TOKEN_EMBD and (
        named is None or info.name != "per_layer_token_embd.weight"
    )
    if choices.token_embedding_type is not None and embeds:
        return (choices.token_embedding_type,) * 2
    if choices.output_type is not None and category is Category.OUTPUT:
        return (choices.output_type,) * 2
    if not default.is_quantized:
        return default, default
    wanted = default
    if named is not None:
        wanted = named
    elif not choices.pure:
        wanted = mixture.type_of(info.name, info.ne)
    return wanted, fitting(wanted, info.ne[0])


def check_types(planned: Iterable[Planned]) -> None:
    """Raise Unsupported for a tensor that cannot be written in its type."""
    for tensor in planned:
        if tensor.type is not tensor.tensor.type:
            _check_type(tensor.tensor, tensor.type)


def _check_type(info: TensorInfo, type: TensorType) -> None:
    if type.name != "f32" and not can_quantize(type):
        raise Unsupported(
            f"tensor {quoted(info.name)} is to be {type.name}, which can be read only"
        )
    if info.ne[0] % type.block_size:
        raise Unsupported(
            f"tensor {quoted(info.name)} has rows of {info.ne[0]}, {type.name} needs a multiple "
            f"of {type.block_size}"
        )


def _needs_imatrix(name: str, type: TensorType, kind: FileType) -> bool:
    if type.name in NEED_IMPORTANCE:
        return True
    if is_token_embedding(name) or name == "output.weight":
        return False
    return type.name in _LOW_BIT or (type.name == "q2_K" and kind.name == "Q2_K_S")


@checked
def quantize_model(
    path: str | PathLike[str],
    out: str | PathLike[str],
    file_type: str | FileType | None,
    choices: Choices | None = None,
    *,
    n_threads: int = 1,
    listener: Listener | None = None,
) -> list[Path]:
    """Write the model at `path` to `out` with its tensors in the types of `file_type`; which files.

    None copies the tensors as they are. With `keep_split`, `out` is the name without
    -00001-of-00002.gguf. The files appear when all are complete. Raises what `plan` raises,
    FileError for files that cannot be read or written, ArgumentError where `out` is the model
    itself, Unsupported for a type without a quantiser, and for tensors that are quantised already
    without `allow_requantize`, WeightError where an importance matrix is missing or does not fit.
    """
    choices = choices or Choices()
    with GGUFFile.open(path, dict(choices.overrides)) as file:
        planned = plan(file, file_type, choices)
        _check(planned, choices)
        kind = None if file_type is None else file_type_of(file_type)
        paths = _outputs(Path(out), planned, choices.keep_split)
        for target in paths:
            if any(target.exists() and target.samefile(source) for source in file.paths):
                raise ArgumentError(f"{printable(str(target))} is the model itself")
        with ExitStack() as stack:
            pool = stack.enter_context(_Workers(max(1, n_threads)))
            files = [stack.enter_context(NewFile(p, file.alignment)) for p in paths]
            for i, new in enumerate(files):
                parts = [tensor for tensor in planned if tensor.part == i]
                keys = _keys(file, kind, choices) if i == 0 else {}
                if len(files) > 1:
                    _put_split(keys, i, len(files), len(planned))
                entries = [
                    Entry(
                        p.tensor.name.encode(errors="surrogateescape"),
                        p.type,
                        shape_of(p.tensor.ne),
                    )
                    for p in parts
                ]
                new.write(header(keys, entries, file.alignment))
                for tensor in parts:
                    _write(new, tensor, choices, pool, listener)
                    new.pad()
            for new in files:
                new.finish()
    return paths


class _Workers(ThreadPoolExecutor):
    """Threads whose work is given up when the `with` block is left by an error."""

    def __init__(self, n_threads: int) -> None:
        super().__init__(n_threads, thread_name_prefix="ggmlpy-quantize")

    def __exit__(self, *error: object) -> None:
        self.shutdown(wait=True, cancel_futures=True)


def _check(planned: Iterable[Planned], choices: Choices) -> None:
    check_types(planned)
    for tensor in planned:
        info = tensor.tensor
        if tensor.type is info.type:
            continue
        if not info.type.is_quantized and info.type.name not in ("f32", "f16", "bf16"):
            raise Unsupported(
                f"tensor {quoted(info.name)} is {info.type.name}, which stays as it is"
            )
        if info.type.is_quantized and not choices.allow_requantize:
            raise Unsupported(
                f"tensor {quoted(info.name)} is {info.type.name} already: quantising it again "
                f"costs accuracy, and must be allowed (--allow-requantize)"
            )
        weights = _importance(info, choices.imatrix)
        if tensor.needs_imatrix and weights is None:
            raise WeightError(
                f"tensor {quoted(info.name)}: {tensor.type.name} needs an importance matrix "
                "(--imatrix), and there is none for it"
            )


def _importance(info: TensorInfo, imatrix: Imatrix | None) -> Floats | None:
    """Importances [n_matrices, n] of a tensor. Raises WeightError if they do not fit."""
    found = None if imatrix is None else imatrix.importance(info.name)
    if found is None:
        return None
    n_matrices = info.ne[2]
    if found.size != info.ne[0] * n_matrices:
        if is_token_embedding(info.name):
            return None
        raise WeightError(
            f"the importance matrix has {found.size} values for tensor {quoted(info.name)}, must "
            f"have {info.ne[0] * n_matrices}"
        )
    return found.reshape(n_matrices, info.ne[0])


def _outputs(out: Path, planned: Sequence[Planned], keep_split: bool) -> list[Path]:
    if not keep_split:
        return [out]
    n = 1 + max(tensor.part for tensor in planned)
    stem = out.name.removesuffix(".gguf")
    return [out.with_name(f"{stem}-{i:05}-of-{n:05}.gguf") for i in range(1, n + 1)]


def _keys(file: GGUFFile, kind: FileType | None, choices: Choices) -> Stored:
    keys = stored_keys(file)
    put(keys, "general.quantization_version", stored_number("u32", _QUANTIZATION_VERSION))
    if kind is not None:
        put(keys, "general.file_type", stored_number("u32", kind.id))
    elif "general.file_type" in keys:
        put(keys, "general.file_type", keys["general.file_type"])
    for key in ("split.no", "split.count", "split.tensors.count"):
        keys.pop(key, None)
    put_all(keys, choices.overrides)
    if choices.imatrix is not None:
        put_all(keys, choices.imatrix.described())
    return keys


def _put_split(keys: Stored, i: int, n: int, n_tensors: int) -> None:
    put(keys, "split.no", stored_number("u16", i))
    put(keys, "split.count", stored_number("u16", n))
    put(keys, "split.tensors.count", stored_number("i32", n_tensors))


def _write(
    new: NewFile,
    tensor: Planned,
    choices: Choices,
    pool: ThreadPoolExecutor,
    listener: Listener | None,
) -> None:
    """One tensor, some rows at a time."""
    info = tensor.tensor
    n = info.ne[0]
    n_rows = info.n_elements // n
    row_bytes = info.type.row_bytes(n)
    importance = _importance(info, choices.imatrix) if tensor.type is not info.type else None
    data = info.data
    step = max(1, _SLAB // n)
    if importance is not None and info.ne[2] > 1:
        step = min(step, info.ne[1])  # rows of one matrix, which has its own importances
    if listener is not None:
        listener(tensor, 0)
    row = 0
    while row < n_rows:
        end = min(row + step, n_rows)
        weights = None
        if importance is not None:
            matrix = row // info.ne[1] % info.ne[2]
            end = min(end, (row // info.ne[1] + 1) * info.ne[1])
            weights = importance[matrix]
        rows = data[row * row_bytes : end * row_bytes]
        if tensor.type is not info.type:
            rows = _converted(rows.reshape(-1, row_bytes), tensor, weights, pool)
        new.write(np.ascontiguousarray(rows))
        row = end
        if listener is not None:
            listener(tensor, row)


def _converted(
    stored: Bytes, tensor: Planned, weights: Floats | None, pool: ThreadPoolExecutor
) -> Bytes:
    """Rows [n_rows, row_bytes] in the new type. Raises FileError for NaN and infinite scales."""
    source, n = tensor.tensor.type, tensor.tensor.ne[0]
    step = max(1, (1 << 20) // n)
    parts = [stored[i : i + step] for i in range(0, len(stored), step)]
    floats = np.concatenate(list(pool.map(lambda part: to_float(part, source), parts)))
    finite = pool.map(
        lambda i: bool(np.isfinite(floats[i : i + step]).all()), range(0, len(floats), step)
    )
    if not all(finite):
        raise FileError(f"tensor {quoted(tensor.tensor.name)} has values that are not finite")
    if tensor.type.name == "f32":
        return floats.view(np.uint8)
    return quantize_rows(floats, tensor.type, weights, pool)
