"""`ggmlpy imatrix`: an importance matrix from a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from numpy.typing import NDArray

from ggmlpy.cli import common, options
from ggmlpy.cli.command import command, flag, option
from ggmlpy.cli.options import ChunkOptions
from ggmlpy.cli.show import say
from ggmlpy.cli.types import FileName, Whole
from ggmlpy.common.quoting import printable
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.llama import Llama
    from ggmlpy.quantize import Imatrix
    from ggmlpy.quantize.collect import Collector


@dataclass(frozen=True, slots=True)
class Output:
    """Where the matrix goes, and how often."""

    path: Path
    is_legacy: bool
    every: int  # chunks between two writes; 0: only at the end
    keep_every: int  # chunks between two copies that are kept; 0: none

    def write(self, imatrix: Imatrix, n_kept: int = 0) -> None:
        """`n_kept`: the number of chunks in the name of a copy."""
        path = self.path.with_name(f"{self.path.name}.at_{n_kept}") if n_kept else self.path
        if self.is_legacy:
            imatrix.save_legacy(path)
        else:
            imatrix.save(path)


@command
@options.model_file
@options.prompt
@options.prompt_file
@option(
    "out",
    "-o --output --output-file FILE",
    "Where the matrix is written.",
    type=FileName(),
    default=Path("imatrix.gguf"),
    show_default="imatrix.gguf",
)
@option(
    "output_format",
    "--output-format gguf|dat",
    "The format: GGUF, or the older one.",
    type=click.Choice(["gguf", "dat"]),
    default="gguf",
)
@option(
    "output_frequency",
    "-ofreq --output-frequency N",
    "Write the matrix so far after every N chunks; 0: at the end alone.",
    type=Whole(0),
    default=10,
)
@option(
    "save_frequency",
    "--save-frequency N",
    "Keep a copy of the matrix after every N chunks, FILE.at_N; 0: none.",
    type=Whole(0),
    default=0,
)
@flag("process_output", "--process-output", "Also for output.weight.")
@flag("ppl", "--ppl/--no-ppl", "Show the perplexity of the chunks.", default=True)
@option("first", "--chunk --from-chunk N", "Skip the first N chunks.", type=Whole(0), default=0)
@options.n_chunks
@option(
    "in_files",
    "--in-file FILE",
    "A matrix to which this one is added. Can be given several times; without a text they are"
    " added alone.",
    type=FileName(),
    multiple=True,
    show_default=False,
)
@flag("parse_special", "--parse-special", "Parse control tokens such as <|im_end|> in the text.")
@options.chunk_options
def imatrix(
    model: Path | None,
    prompt: str | None,
    file: Path | None,
    out: Path,
    output_format: str,
    output_frequency: int,
    save_frequency: int,
    process_output: bool,
    ppl: bool,
    first: int,
    n_chunks: int,
    in_files: Sequence[Path],
    parse_special: bool,
    setup: ChunkOptions,
) -> None:
    """Measure how large the inputs of weights are on a text, for `ggmlpy quantize --imatrix`.

    The text is cut into chunks of -c tokens. The matrix is what llama-imatrix writes, but for
    roundings. The text should be like what the model is used for.

    Examples:
      ggmlpy imatrix -m model-f16.gguf -f calibration.txt
      ggmlpy imatrix -m model-f16.gguf -f more.txt --in-file imatrix.gguf -o both.gguf
      ggmlpy imatrix --in-file one.gguf --in-file two.dat -o both.gguf
    """
    from ggmlpy.quantize import Imatrix
    from ggmlpy.quantize.collect import Collector

    common.check_writable(out)
    output = Output(out, output_format == "dat", output_frequency, save_frequency)
    earlier = [Imatrix.load(path) for path in in_files]
    text = common.read_text(prompt, file)
    if not text:
        if not earlier:
            raise click.BadParameter("There is no text: give -f, -p, or a pipe; or --in-file.")
        output.write(Imatrix.combined(earlier, setup.n_ctx))
    else:
        llm = common.open_model(model or packaged_model(), setup)
        tokens = llm.tokenizer.encode(text, add_bos=True, special=parse_special)
        chunks = _chunks(llm, tokens, setup.n_ctx, first, n_chunks)
        dataset = "" if file is None else str(file)
        collector = Collector(with_output=process_output)

        def so_far() -> Imatrix:
            new = collector.imatrix(dataset, setup.n_ctx)
            return Imatrix.combined([*earlier, new], setup.n_ctx)

        _run(llm, chunks, collector, so_far, output, shows_ppl=ppl)
        output.write(so_far())
    say(f"written: {printable(str(out))}")


def _chunks(
    llm: Llama, tokens: list[int], n_ctx: int, n_skipped: int, n_chunks: int
) -> list[list[int]]:
    from ggmlpy.bench.perplexity import cut

    if n_skipped and (n_skipped + 2) * n_ctx >= len(tokens):
        raise click.BadParameter(
            f"--chunk is {n_skipped}: the text has only {len(tokens) // n_ctx} chunks, and two at"
            " least must be left."
        )
    bos = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    return cut(tokens[n_skipped * n_ctx :], n_ctx, n_chunks, bos).tokens


def _run(
    llm: Llama,
    chunks: Sequence[list[int]],
    collector: Collector,
    so_far: Callable[[], Imatrix],
    output: Output,
    *,
    shows_ppl: bool,
) -> None:
    """Run the chunks. Shows the perplexity after each, as llama-imatrix does."""
    from ggmlpy.quantize.collect import collect, losses

    n_ctx = len(chunks[0])
    say(f"imatrix: {len(chunks)} chunks of {n_ctx} tokens")
    scored: list[NDArray[np.float64]] = []

    def on_chunk(i: int, logits: NDArray[np.float32]) -> None:
        if shows_ppl:
            scored.append(losses(logits, chunks[i], n_ctx // 2))
            print(f"[{i + 1}]{np.exp(np.concatenate(scored).mean()):.4f},", end="", flush=True)
        if output.every and (i + 1) % output.every == 0 and i + 1 < len(chunks):
            output.write(so_far())
        if output.keep_every and (i + 1) % output.keep_every == 0:
            output.write(so_far(), n_kept=i + 1)

    collect(llm, chunks, collector, on_chunk)
    if shows_ppl:
        values = np.concatenate(scored)
        mean, error = float(values.mean()), float(values.std() / np.sqrt(max(1, len(values) - 1)))
        print(f"\nFinal estimate: PPL = {np.exp(mean):.4f} +/- {error * np.exp(mean):.5f}")
