"""The logits of every architecture, compared with llama.cpp's.

    python benchmarks/llama_archs.py --llama-cpp ~/llama.cpp --peer ~/llama/bin/python
    python benchmarks/llama_archs.py … --only '^qwen3'         some files only
    python benchmarks/llama_archs.py … --save docs/models.md   writes the table as a page; with
                                                               --only it replaces those rows

Needs a llama.cpp built with its tests (`build/bin/test-llama-archs`, `libllama`), and an
interpreter (--peer) with numpy and the dependencies of llama-cpp-python, whose package folder is
--bindings: by default the one in whose `vendor` folder llama.cpp lies.

`test-llama-archs -o` writes a small model with random weights for each architecture, with experts
and without, into --models, unless there are files already. Both engines run the same seeded tokens:
a prompt, then tokens one at a time (benchmarks/peer_logits.py), each model in a process of its own
with a time limit. llama.cpp's logits are kept beside the models, `NAME.peer.npz`.

The table has the normalised mean squared error of prompt and decode, each the larger one of flash
attention and attention of separate ops, and a verdict:

  ok        both are below 1e-6
  wrong     one is not
  refused   ggmlpy raises an error of its own, shown after it
  failed    ggmlpy dies, hangs, or raises anything else
  no peer   llama.cpp cannot run the file, or its logits are not finite

The exit status is 0, 1 if a file is wrong or failed, 2 if an option cannot be used.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks.agreement import nmse
from benchmarks.arch_page import HEADINGS, SAME_NMSE, Row, page, summary, with_rows
from benchmarks.peer_logits import (
    N_PROMPT,
    ROOT,
    Peer,
    PeerError,
    Recording,
    add_options,
    selected,
)
from benchmarks.report import MIN_WIDTH, progress, tell
from ggmlpy.common.own_folder import default_folder
from ggmlpy.models import ARCHITECTURES
from ggmlpy.models.architectures import REFUSED

Floats = NDArray[np.floating[Any]]
MODELS_SEED = 1  # of the weights that test-llama-archs makes
WRITE_TIMEOUT_S = 1800.0
GOOD = ("ok", "refused", "no peer")
NAMES = [f"{name}-{kind}" for name in (*ARCHITECTURES, *REFUSED) for kind in ("dense", "moe")]
COLORS = {"ok": "green", "refused": "yellow", "no peer": "dim"}


def judge(name: str, recording: Recording, answers: Sequence[Floats], warned: str = "") -> Row:
    """Compare ggmlpy's logits, of both kinds of attention, with the recording."""
    n_compared = len(recording.logits) if recording.has_memory else N_PROMPT
    expected = recording.logits[:n_compared]
    shapes = {answer.shape for answer in answers}
    if shapes != {expected.shape}:
        found = ", ".join(map(str, sorted(shapes)))
        return Row(name, "wrong", f"logits have shape {found} instead of {expected.shape}")
    prompt = _worst([nmse(answer[:N_PROMPT], expected[:N_PROMPT]) for answer in answers])
    decode = None
    if recording.has_memory:
        decode = _worst([nmse(answer[N_PROMPT:], expected[N_PROMPT:]) for answer in answers])
    is_same = all(each < SAME_NMSE for each in (prompt, decode) if each is not None)
    return Row(name, "ok" if is_same else "wrong", warned, prompt, decode)


def _worst(errors: list[float]) -> float:
    """The largest; nan if one is, which `max` may pass over."""
    return float(np.max(errors))


class Comparison:
    """Both engines, asked about one file after the other."""

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        self._peer = peer
        self._timeout_s = timeout_s

    def row(self, model: Path) -> Row:
        kept = model.with_suffix(".peer.npz")
        try:
            recording = self._peer.kept(model, kept)
        except PeerError as error:
            return Row(model.stem, "no peer", str(error))
        if not np.isfinite(recording.logits).all():
            return Row(model.stem, "no peer", "its logits are not finite")
        with tempfile.TemporaryDirectory() as folder:
            return self._ours(model, recording, kept, Path(folder) / "logits.npz")

    def _ours(self, model: Path, recording: Recording, kept: Path, out: Path) -> Row:
        arguments = ["-m", "benchmarks.our_logits", *map(str, (model.resolve(), kept.resolve()))]
        try:
            done = subprocess.run(
                [sys.executable, *arguments, str(out)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Row(model.stem, "failed", f"no answer after {self._timeout_s:g} s")
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"died with {done.returncode}"]
            return Row(model.stem, "failed", last[0])
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if answer["refused"]:
            return Row(model.stem, "refused", _without_path(answer["refused"], model))
        with np.load(out) as logits:
            said = (text.partition(": results may differ")[0] for text in answer["warnings"])
            warned = _without_path("; ".join(said), model)
            return judge(model.stem, recording, [logits["fused"], logits["plain"]], warned)


def _without_path(message: str, model: Path) -> str:
    """A message in one line, without the file that it is about: the row has its name."""
    for name in (str(model.resolve()), model.name):
        message = message.replace(f"{name}: ", "").replace(name, "the file")
    return " ".join(message.split())


def write_models(peer: Peer, folder: Path) -> None:
    """Let test-llama-archs write its models. Raises PeerError."""
    folder.mkdir(parents=True, exist_ok=True)
    program = peer.binaries / "test-llama-archs"
    command = [str(program.resolve()), "-o", str(folder.resolve()), "-s", str(MODELS_SEED)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WRITE_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise PeerError(f"{program}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise PeerError(f"{program.name} has not ended after {WRITE_TIMEOUT_S:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise PeerError(f"{program.name} exits with {done.returncode}: {last[0]}")


# --- what is shown --------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Table:
    shown = Table(*HEADINGS)
    for row in rows:
        shown.add_row(*row.cells, style=COLORS.get(row.verdict, "red"))
    return shown


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--models", type=Path, default=default_folder() / "llama-archs")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds, of each model")
    parser.add_argument("--save", type=Path, help="the page of the table, Markdown")
    return parser.parse_args(arguments)


def check_page(options: argparse.Namespace, models: Sequence[Path], version: str) -> None:
    """Raise PeerError, before models are run, for a page that could not be written after them."""
    text_of_page(options, [Row(model.stem, "ok") for model in models], version)


def text_of_page(options: argparse.Namespace, rows: Sequence[Row], version: str) -> str:
    """What --save writes. Raises PeerError."""
    if options.only:
        return with_rows(options.save, rows, version)
    return page(rows, version, datetime.datetime.now(datetime.UTC).date().isoformat())


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        peer = Peer.given(options, options.timeout)
        version = peer.version()
        selected(NAMES, options.only, "ggmlpy.models.ARCHITECTURES with -dense or -moe")
        if not any(options.models.glob("*.gguf")):
            tell(f"test-llama-archs writes its models to {options.models}")
            write_models(peer, options.models)
        files = {path.stem: path for path in options.models.glob("*.gguf")}
        models = [files[name] for name in selected(files, options.only, str(options.models))]
        if options.save:
            check_page(options, models, version)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    comparison = Comparison(peer, options.timeout)
    rows = []
    with progress("architectures", len(models)) as advance:
        for model in models:
            tell(model.stem)
            rows.append(comparison.row(model))
            advance(1)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    console.print(table(rows))
    console.print(summary(rows))
    if options.save:
        options.save.write_text(text_of_page(options, rows, version), encoding="utf-8")
    return 0 if all(row.verdict in GOOD for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
