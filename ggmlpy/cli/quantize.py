"""`ggmlpy quantize`: a model file with its tensors in other types."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.command import argument, command, flag, option
from ggmlpy.cli.common import check_writable, read_text
from ggmlpy.cli.options import as_json
from ggmlpy.cli.show import console, say, write_json
from ggmlpy.cli.types import FileName, Threads
from ggmlpy.common.quoting import printable
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf.path import path_of

if TYPE_CHECKING:
    from ggmlpy.graph.types import TensorType
    from ggmlpy.quantize import Choices, FileType, Planned
    from ggmlpy.quantize.model import Listener

_MIB = 1 << 20
_TYPES = "Types of single tensors"
_IMATRIX = "Importance matrix"
_MANY: dict[str, Any] = {"multiple": True, "show_default": False}


@command
@argument("words", "MODEL [OUT] TYPE [THREADS]", "", nargs=-1)
@option("given", "-m --model FILE", "The model, instead of the first argument.", type=FileName())
@flag("pure", "--pure", "All tensors in one type, instead of TYPE's mixture.", section=_TYPES)
@flag("leave_output", "--leave-output-tensor", "Leave output.weight as it is.", section=_TYPES)
@option("output_type", "--output-tensor-type TYPE", "Type of output.weight.", section=_TYPES)
@option(
    "token_embedding_type",
    "--token-embedding-type TYPE",
    "Type of the token embeddings.",
    section=_TYPES,
)
@option(
    "tensor_types",
    "--tensor-type PATTERN=TYPE",
    "Type of tensors whose names match a regular expression, such as attn_v=q8_0. Can be given"
    " several times; the first match counts.",
    section=_TYPES,
    **_MANY,
)
@option(
    "tensor_type_file",
    "--tensor-type-file FILE",
    "A file of more PATTERN=TYPE, with spaces or newlines between them.",
    type=FileName(),
    section=_TYPES,
)
@option(
    "imatrix",
    "--imatrix FILE",
    "The matrix, as `ggmlpy imatrix` writes it, or an older .dat file.",
    type=FileName(),
    section=_IMATRIX,
)
@option(
    "include",
    "--include-weights NAME",
    "Use it for tensors with NAME in their names alone. Can be given several times.",
    section=_IMATRIX,
    **_MANY,
)
@option(
    "exclude",
    "--exclude-weights NAME",
    "Do not use it for tensors with NAME in their names. Can be given several times.",
    section=_IMATRIX,
    **_MANY,
)
@flag(
    "allow_requantize",
    "--allow-requantize",
    "Quantise tensors again that are quantised already, which costs accuracy.",
)
@flag("keep_split", "--keep-split", "Write as many files as the model has.")
@option(
    "override_kv",
    "--override-kv KEY=TYPE:VALUE",
    "A value in place of the file's metadata, of type int, float, bool or str. Can be given"
    " several times.",
    **_MANY,
)
@flag("dry_run", "--dry-run", "Show types and sizes, and write nothing.")
@option(
    "n_threads",
    "-t --threads N",
    "CPU threads.",
    type=Threads(),
    show_default="one per core",
)
@as_json
def quantize(
    words: tuple[str, ...],
    given: Path | None,
    tensor_types: tuple[str, ...],
    tensor_type_file: Path | None,
    output_type: str | None,
    token_embedding_type: str | None,
    imatrix: Path | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    override_kv: tuple[str, ...],
    dry_run: bool,
    n_threads: int | None,
    as_json: bool,
    **flags: bool,
) -> None:
    """Write a GGUF model with its tensors in the types of a file type, such as Q4_K_M.

    TYPE is one of llama.cpp's names (Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, Q3_K_M, Q2_K, IQ4_XS,
    F16, …), or COPY. The file OUT has the bytes that llama-quantize makes, and appears when it is
    complete; without OUT it is ggml-model-TYPE.gguf beside the model. IQ1, IQ2 and IQ3 types can be
    read but not written.

    Examples:
      ggmlpy quantize model-f16.gguf model-q4.gguf Q4_K_M
      ggmlpy quantize --dry-run model-f16.gguf Q5_K_M
      ggmlpy quantize --imatrix imatrix.gguf model-f16.gguf small.gguf Q3_K_M
      ggmlpy quantize --tensor-type attn_v=q8_0 model-f16.gguf mixed.gguf Q4_0
    """
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.gguf.overrides import parse_overrides
    from ggmlpy.quantize import Choices, Imatrix, plan, quantize_model
    from ggmlpy.quantize.model import check_types

    model, out, kind, threads = _words(words, given, flags["keep_split"])
    if not dry_run:
        check_writable(out)
    if include and exclude:
        raise click.UsageError("--include-weights and --exclude-weights cannot be used together.")
    texts = list(tensor_types)
    if tensor_type_file is not None:
        texts += _words_of(tensor_type_file)
    matrix = None if imatrix is None else Imatrix.load(imatrix).only(include, exclude)
    choices = Choices(
        output_type=_type(output_type),
        token_embedding_type=_type(token_embedding_type),
        tensor_types=[_tensor_type(text) for text in texts],
        imatrix=matrix if matrix is not None and matrix.entries else None,
        overrides=parse_overrides(override_kv),
        **flags,
    )
    with GGUFFile.open(model, dict(choices.overrides)) as file:
        planned = plan(file, kind, choices)
        if dry_run:
            for i, tensor in enumerate(planned):
                _show(i, planned, tensor, as_json)
            _show_total(planned, choices, as_json)
            check_types(planned)
            return
    with _progress(planned, as_json) as listener:
        written = quantize_model(
            model, out, kind, choices, n_threads=threads or n_threads or _cores(), listener=listener
        )
    _show_total(planned, choices, as_json, written)


def _words(
    words: Sequence[str], given: Path | None, keep_split: bool
) -> tuple[Path, Path, FileType | None, int]:
    """(model, out, file type, threads or 0) of the arguments, as llama-quantize has them, where the
    model is not `given`."""
    from ggmlpy.quantize import file_type_of

    def kind_of(word: str) -> tuple[str, FileType | None]:
        kind = None if word.upper() == "COPY" else file_type_of(word)
        return word.upper() if kind is None else kind.name, kind

    if len(words) < 1 + (given is None):
        raise click.UsageError("MODEL and TYPE must be given.")
    model, rest = (path_of(words[0]), list(words[1:])) if given is None else (given, list(words))
    try:
        name, kind = kind_of(rest[0])
        ending = "" if keep_split else ".gguf"
        out = model.with_name(f"ggml-model-{name}{ending}")
    except ArgumentError:
        if len(rest) < 2:
            raise
        out = path_of(rest.pop(0))
        name, kind = kind_of(rest[0])
    if len(rest) > 2 or (len(rest) == 2 and not rest[1].isdecimal()):
        raise click.UsageError(f"{printable(rest[-1])} is too much: MODEL [OUT] TYPE [THREADS].")
    return model, out, kind, int(rest[1]) if len(rest) == 2 else 0


def _cores() -> int:
    from ggmlpy.backends.cpu.cores import default_n_threads

    return default_n_threads()


def _type(name: str | None) -> TensorType | None:
    from ggmlpy.errors import ShapeError
    from ggmlpy.graph.types import type_of

    try:
        return None if name is None else type_of(name)
    except ShapeError as error:
        raise ArgumentError(str(error)) from None


def _tensor_type(text: str) -> tuple[str, TensorType]:
    pattern, equals, name = text.partition("=")
    found = _type(name) if pattern and equals and name else None
    if found is None:
        raise ArgumentError(f"tensor-type is {text!r}: it must be PATTERN=TYPE")
    try:
        re.compile(pattern.lower())
    except re.error as error:
        raise ArgumentError(f"tensor-type is {text!r}: {error}") from None
    return pattern.lower(), found


def _words_of(path: Path) -> list[str]:
    return (read_text(None, path) or "").split()


def _record(tensor: Planned) -> dict[str, Any]:
    info = tensor.tensor
    return {
        "tensor": info.name,
        "ne": list(info.ne[: info.n_dims]),
        "from": info.type.name,
        "to": tensor.type.name,
        "n_bytes_from": info.n_bytes,
        "n_bytes": tensor.n_bytes,
    }


def _show(i: int, planned: Sequence[Planned], tensor: Planned, as_json: bool) -> None:
    record = _record(tensor)
    if as_json:
        write_json(record)
        return
    shape = ", ".join(f"{n:5}" for n in record["ne"])
    sizes = f"{record['n_bytes_from'] / _MIB:9.2f} MiB"
    types = f"{record['from']:>7}"
    if record["from"] != record["to"]:
        types += f" -> {record['to']:>7}"
        sizes += f" -> {record['n_bytes'] / _MIB:9.2f} MiB"
    note = "" if tensor.wanted is tensor.type else f"  (rows are no blocks of {tensor.wanted.name})"
    name = printable(record["tensor"])
    print(f"[{i + 1:4}/{len(planned):4}] {name:36} [{shape}], {types:18} {sizes}{note}", flush=True)


def _show_total(
    planned: Sequence[Planned],
    choices: Choices,
    as_json: bool,
    written: Sequence[Path] = (),
) -> None:
    n_elements = sum(tensor.tensor.n_elements for tensor in planned) or 1
    before = sum(tensor.tensor.n_bytes for tensor in planned)
    after = sum(tensor.n_bytes for tensor in planned)
    if as_json:
        total = {"n_bytes_from": before, "n_bytes": after, "n_elements": n_elements}
        write_json({**total, "bpw": 8 * after / n_elements, "files": [str(p) for p in written]})
    else:
        for what, n in (("model", before), ("quantised", after)):
            print(f"{what} size: {n / _MIB:.2f} MiB ({8 * n / n_elements:.2f} bits per weight)")
    n_fallback = sum(tensor.wanted is not tensor.type for tensor in planned)
    if n_fallback:
        say(f"{n_fallback} of {len(planned)} tensors have another type, as their rows need it")
    if choices.imatrix is None and any(tensor.needs_imatrix for tensor in planned):
        say("writing this needs an importance matrix (--imatrix)")
    for path in written:
        say(f"written: {printable(str(path))}")


@contextmanager
def _progress(planned: Sequence[Planned], as_json: bool) -> Iterator[Listener]:
    """A line for each tensor that is complete, and a bar on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    index = {tensor.tensor.name: i for i, tensor in enumerate(planned)}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
        redirect_stdout=False,
        redirect_stderr=False,
    )
    total = sum(tensor.tensor.n_elements for tensor in planned)
    task = bar.add_task("", total=total)
    done = 0

    def listen(tensor: Planned, n_rows: int) -> None:
        nonlocal done
        info = tensor.tensor
        bar.update(task, description=printable(info.name), completed=done + n_rows * info.ne[0])
        if n_rows * info.ne[0] == info.n_elements:
            done += info.n_elements
            _show(index[info.name], planned, tensor, as_json)

    with bar:
        yield listen
