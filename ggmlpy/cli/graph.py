"""`ggmlpy graph`: the graph that a model runs for a ubatch, without running it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ggmlpy.cli import common, options
from ggmlpy.cli.command import command, option
from ggmlpy.cli.options import PlacementOptions, as_rotation
from ggmlpy.cli.types import Whole
from ggmlpy.common.quoting import printable
from ggmlpy.errors import Unsupported
from ggmlpy.memory.cache_types import cache_type
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.graph.graph import Graph
    from ggmlpy.graph.tensor import Tensor

DOT_TIMEOUT_S = 120


class Format(StrEnum):
    """The forms in which a graph can be written."""

    text = "text"
    dot = "dot"
    json = "json"
    html = "html"
    svg = "svg"
    png = "png"


DRAWN = (Format.svg, Format.png)  # by graphviz
SUFFIXES = {".txt": Format.text} | {f".{format}": format for format in Format}


@command
@options.model_file
@option(
    "n_tokens",
    "-n --n-tokens N",
    "Tokens of the ubatch, of each sequence.",
    type=Whole(1),
    show_default="1, with --mixture 512 in all",
)
@option("n_past", "--n-past N", "Tokens in the KV cache before them.", type=Whole(0), default=0)
@option(
    "n_seqs",
    "-np --parallel N",
    "Sequences with as many tokens each, which are streams in attention.",
    type=Whole(1),
    default=1,
)
@option(
    "mixture",
    "--mixture",
    "The graph for any mixture of up to -n tokens of up to -np sequences: what a context runs.",
    is_flag=True,
)
@option(
    "of_encoder",
    "--encoder",
    "The graph of the encoder of an encoder-decoder model, instead of the decoder's.",
    is_flag=True,
)
@option(
    "format",
    "--format NAME",
    "text; json; html, an interactive page; dot; svg or png, drawn by graphviz.",
    type=click.Choice(Format),
    show_default="by the suffix of -o, else text",
)
@option("output", "-o --output FILE", "Write here.", type=options.FILE, show_default="stdout")
@option(
    "layers",
    "--layers A:B",
    "Only layers A to B - 1; A alone is that one.",
    show_default="the whole graph",
)
@options.flash_attn
@options.type_k
@options.type_v
@options.kv_rotation
@options.placement
@options.placement_options
def graph(
    model: Path | None,
    n_tokens: int | None,
    n_past: int,
    n_seqs: int,
    mixture: bool,
    of_encoder: bool,
    format: Format | None,
    output: Path | None,
    layers: str | None,
    flash_attn: str,
    type_k: str,
    type_v: str,
    kv_rotation: str,
    placement: bool,
    where: PlacementOptions,
) -> None:
    """Dump the compute graph of a model for a ubatch.

    Nothing is computed and no weights are read, so large models take no longer. Shapes are in
    ggml's order, the fastest dimension first. graphviz is slow for large graphs: use --layers.

    Examples:
      ggmlpy graph -m model.gguf
      ggmlpy graph -m model.gguf -n 512 -o prompt.html
      ggmlpy graph -m model.gguf -np 32
      ggmlpy graph -m model.gguf -np 32 --mixture
      ggmlpy graph -m model.gguf --n-past 100 --layers 0:1 -o layer0.svg
      ggmlpy graph -m model.gguf --placement -ngl 8 -ot 'ffn_.*_exps=cpu'
      diff <(ggmlpy graph) <(ggmlpy graph -fa off)
    """
    chosen = _checked_format(format, output)
    path = model or packaged_model()
    requested = where if placement or where != PlacementOptions() else None
    n_tokens = n_tokens or (512 if mixture else 1)
    options = _GraphOptions(
        n_tokens, n_past, n_seqs, mixture, of_encoder, flash_attn != "off", type_k, type_v,
        as_rotation(kv_rotation),
    )  # fmt: skip
    dump = _built(path, options, requested)
    dump = replace(dump, graph=_cut(dump.graph, layers))
    title = f"{printable(path.name)}: {options}"
    if chosen in DRAWN:
        common.write_bytes(output, _drawn(dump, chosen))
    elif output is None:
        print(_WRITERS[chosen](dump, title))
    else:
        common.write_file(output, _WRITERS[chosen](dump, title) + "\n")


@dataclass(frozen=True, slots=True)
class _Dump:
    """A graph, and the parts of its placement that are shown."""

    graph: Graph
    homes: Mapping[Tensor, str]
    splits: str = ""  # a line each


@dataclass(frozen=True, slots=True)
class _GraphOptions:
    """Which graph of a model."""

    n_tokens: int
    n_past: int
    n_seqs: int
    mixture: bool
    of_encoder: bool
    flash_attn: bool
    type_k: str
    type_v: str
    kv_rotation: bool | None

    def __str__(self) -> str:
        if self.mixture:
            return f"up to {self.n_tokens} tokens of up to {self.n_seqs} sequences"
        tokens = "token" if self.n_tokens == 1 else "tokens"
        each = f" of each of {self.n_seqs} sequences" if self.n_seqs > 1 else ""
        return f"{self.n_tokens} {tokens} after {self.n_past}{each}"


def _built(path: Path, options: _GraphOptions, where: PlacementOptions | None) -> _Dump:
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.models import load_model
    from ggmlpy.runtime.preview import build_graph
    from ggmlpy.sched.executable import scheduled
    from ggmlpy.sched.scheduler import describe_splits, homes

    model = load_model(GGUFFile.open(path))
    if options.of_encoder:
        if model.encoder is None:
            arch = printable(model.hparams.architecture)
            raise Unsupported(f"a {arch} model has no encoder apart: leave out --encoder")
        model = model.encoder
    placed = None if where is None else common.placement_of(model, where)
    graph = build_graph(
        model,
        options.n_tokens,
        options.n_past,
        n_seqs=options.n_seqs,
        mixture=options.mixture,
        flash_attn=options.flash_attn,
        type_k=cache_type("type_k", options.type_k),
        type_v=cache_type("type_v", options.type_v),
        kv_rotation=options.kv_rotation,
        placement=None if placed is None else placed[0],
    )
    if placed is None:
        return _Dump(graph, {})
    placement, backends = placed
    schedule = scheduled(graph, backends, passes="none")
    splits = f"placement: {placement}\n{describe_splits(graph, schedule)}\n"
    return _Dump(graph, homes(graph, schedule), splits)


def _cut(graph: Graph, layers: str | None) -> Graph:
    if layers is None:
        return graph
    from ggmlpy.graph.layer_range import layer_range
    from ggmlpy.graph.layers import layers_of

    n_layers = 1 + max((n for n in layers_of(graph).values() if n is not None), default=-1)
    start, stop = _parsed_range(layers, n_layers)
    return layer_range(graph, start, stop)


def _parsed_range(text: str, n_layers: int) -> tuple[int, int]:
    """`2:5`, `2:`, `:5` or `2`, as Python's slices but never empty."""
    if match := re.fullmatch(r"(?P<start>\d*):(?P<stop>\d*)|(?P<only>\d+)", text):
        start = int(match["only"] or match["start"] or 0)
        stop = start + 1 if match["only"] else int(match["stop"] or n_layers)
        if start < stop <= n_layers:
            return start, stop
    message = f"{text!r} is not a range A:B within the {n_layers} layers, 0:{n_layers}."
    raise click.BadParameter(message, param_hint="'--layers'")


def _checked_format(format: Format | None, output: Path | None) -> Format:
    """The format asked for, else by the suffix of the file; without one, text.

    Raises BadParameter for another suffix and for a picture on a terminal, Unsupported for a
    picture without graphviz. All of this is checked before the graph is built.
    """
    if format is None and output is not None and output.suffix:
        format = SUFFIXES.get(output.suffix.lower())
        if format is None:
            known = ", ".join(dict.fromkeys(SUFFIXES))
            raise click.BadParameter(
                f"the suffix of {printable(output.name)!r} is no known format: it must be {known},"
                " or use --format.",
                param_hint="'-o' / '--output'",
            )
    chosen = format or Format.text
    if chosen in DRAWN:
        _graphviz(chosen)
    if chosen is Format.png and output is None and sys.stdout.isatty():
        raise click.BadParameter("a terminal cannot show a png: name a file with -o.")
    return chosen


def _graphviz(format: Format) -> str:
    """The path of graphviz's `dot`. Raises Unsupported if it is not installed."""
    program = shutil.which("dot")
    if program is None:
        raise Unsupported(
            f"{format} needs graphviz, whose `dot` is not on PATH: write -o graph.dot, and draw it"
            f" elsewhere with `dot -T{format} graph.dot -o graph.{format}`; html needs nothing"
        )
    return program


def _drawn(dump: _Dump, format: Format) -> bytes:
    """The graph drawn by graphviz. Raises Unsupported if that fails or takes too long."""
    try:
        done = subprocess.run(
            [_graphviz(format), f"-T{format}"],
            input=dump.graph.to_dot(dump.homes).encode(errors="replace"),
            capture_output=True,
            timeout=DOT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unsupported(
            f"dot did not draw {len(dump.graph)} nodes within {DOT_TIMEOUT_S} s: use fewer --layers"
        ) from None
    if done.returncode:
        said = printable(done.stderr.decode(errors="replace").strip())
        raise Unsupported(f"dot ended with exit code {done.returncode}: {said}")
    return done.stdout


_WRITERS: dict[Format, Callable[[_Dump, str], str]] = {
    Format.text: lambda dump, title: dump.splits + dump.graph.to_text(dump.homes),
    Format.dot: lambda dump, title: dump.graph.to_dot(dump.homes),
    Format.json: lambda dump, title: dump.graph.to_json(dump.homes),
    Format.html: lambda dump, title: dump.graph.to_html(title, dump.homes),
}
