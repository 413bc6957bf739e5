"""How a command opens its model and reads its text."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.escapes import unescaped
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading
from ggmlpy.cli.options import ModelOptions, PlacementOptions
from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError, MissingFile

if TYPE_CHECKING:
    from ggmlpy.backends.base import Backend
    from ggmlpy.gguf.overrides import Scalar
    from ggmlpy.llama import Llama
    from ggmlpy.models import Model
    from ggmlpy.runtime.opening import ContextOpener
    from ggmlpy.sched.placement import Placement

STDIN = "-"


def open_model(
    path: Path,
    options: ModelOptions,
    *,
    overrides: Mapping[str, Scalar] | None = None,
    **more: Any,
) -> Llama:
    """The model, with progress shown while it loads.

    `overrides` come after those of the options; `more` are other arguments of `Llama`.

    Raises what `Llama` raises.
    """
    if options.backend == "null":
        complain("warning", "the backend null computes nothing: the text is meaningless")
    with loading(printable(path.name)):
        from ggmlpy.llama import Llama

        llm = Llama(
            path,
            n_ctx=options.n_ctx,
            n_batch=options.n_batch or max(2048, options.n_ubatch),
            n_ubatch=options.n_ubatch,
            n_threads=options.n_threads,
            backend=options.backends,
            type_k=options.type_k,
            type_v=options.type_v,
            kv_rotation=options.rotates,
            flash_attn=options.fused_attention,
            n_gpu_layers=options.n_gpu_layers,
            override_tensors=options.tensors,
            kv_overrides={**options.kv_overrides, **(overrides or {})},
            rope=options.rope,
            fit=options.fit,
            **more,
        )
    if options.fit:
        nothing = "no device says how much memory it has: nothing was chosen"
        complain("fit", nothing if llm.fitted is None else str(llm.fitted))
    return llm


def opener_of(
    path: Path, options: ModelOptions, *, n_seq_max: int, kv_layout: str
) -> ContextOpener:
    """What would open the context of `open_model`: it has chosen sizes and placement.

    Raises what `Llama` raises.
    """
    with loading(printable(path.name)):
        from ggmlpy.memory.layouts import choose_layout
        from ggmlpy.models import load_model
        from ggmlpy.models.rope_overrides import open_overridden
        from ggmlpy.runtime.opening import opener_for

        model = load_model(open_overridden(path, options.kv_overrides, options.rope))
        return opener_for(
            model,
            n_ctx=options.n_ctx,
            n_ctx_seq=0,
            n_seq_max=n_seq_max,
            layout=choose_layout(kv_layout, False),
            n_ubatch=min(options.n_ubatch, options.n_batch or options.n_ubatch),
            type_k=options.type_k,
            type_v=options.type_v,
            kv_rotation=options.rotates,
            flash_attn=options.fused_attention,
            backend=options.backends,
            n_threads=options.n_threads,
            n_gpu_layers=options.n_gpu_layers,
            override_tensors=options.tensors,
            fit=options.fit,
        )


def placement_of(model: Model, where: PlacementOptions) -> tuple[Placement, list[Backend]]:
    """The placement that a model would have, and the backends. Raises what `Llama` raises."""
    from ggmlpy.sched.compute import backends_for
    from ggmlpy.sched.placement import Placement

    backends = backends_for(where.backends)
    return Placement.for_model(model, backends, where.n_gpu_layers, where.tensors), backends


def read_text(
    text: str | None,
    file: Path | None,
    binary_file: Path | None = None,
    *,
    escape: bool | None = False,
) -> str | None:
    r"""The text of -p, of -f, of -bf, or of a pipe; None if there is none. Raises FileError.

    With `escape` \n and others stand for characters; None: in the text of -p alone.
    """
    given = {"-p": text, "-f": file, "-bf": binary_file}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise click.BadParameter(f"{' and '.join(names[:2])} cannot be used together.")
    if binary_file is not None:
        return _decoded(read_bytes(binary_file), printable(binary_file.name), as_it_is=True)
    if file is not None:
        found: str | None = _from_file(file)
    elif text == STDIN or (text is None and _stdin_is_piped()):
        found = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        return text if text is None or escape is False else unescaped(text)
    return unescaped(found) if found is not None and escape else found


def read_bytes(path: Path) -> bytes:
    """The bytes of a file. Raises FileError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        where = printable(str(path.parent))
        raise MissingFile(f"{printable(path.name)}: there is no such file in {where}") from None
    except OSError as error:
        raise FileError(
            f"{printable(str(path))}: the file cannot be read: {error.strerror}"
        ) from None


def read_line() -> str | None:
    """The next line of stdin without its newline; None at the end. Raises FileError."""
    line = sys.stdin.buffer.readline()
    return _decoded(line, "standard input").removesuffix("\r") if line else None


def check_writable(path: Path) -> None:
    """Raise FileError for a path where no file can be written: what takes long comes after this."""
    if path.is_dir():
        raise _unwritable(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if not path.parent.is_dir():
        raise _unwritable(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def write_file(path: Path, text: str) -> None:
    """Raises FileError."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unwritable(path, error) from None


def write_bytes(path: Path | None, data: bytes) -> None:
    """To the file, or to stdout. Raises FileError."""
    if path is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> FileError:
    return FileError(f"{printable(str(path))}: the file cannot be written: {error.strerror}")


def _stdin_is_piped() -> bool:
    """Whether stdin is a pipe or a file, and not a terminal or /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _from_file(path: Path) -> str:
    if str(path) == STDIN:
        return _decoded(sys.stdin.buffer.read(), "standard input")
    return _decoded(read_bytes(path), printable(path.name))


def _decoded(raw: bytes, where: str, *, as_it_is: bool = False) -> str:
    try:
        text = raw.decode()
        return text if as_it_is else text.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise FileError(f"{where}: not UTF-8 text at byte {error.start}") from None
