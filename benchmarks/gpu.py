"""Test and measure the CUDA backend on a GPU: one command, 9 minutes, two files.

    python -m benchmarks.gpu                      # everything that fits into 9 minutes
    python -m benchmarks.gpu --resume             # what the last run has not reached
    python -m benchmarks.gpu --only 'decode*'     # some parts again; results of others are kept
    python -m benchmarks.gpu --list               # which parts there are
    python -m benchmarks.gpu --backend cuda-emulated --quick --output /tmp/dry    # without a GPU

It needs a GPU with its driver, CuPy, and NVRTC: pip install 'ggmlpy[cuda13]'. cuBLAS and PyTorch
are compared with where they are installed. No model is downloaded: weights are random, of the shape
of Llama-3-8B, and lie only on the GPU (16 GB of f16; parts that do not fit are left out).

  kernels           every kernel compiled and loaded; registers and spills
  ceilings          what this GPU can do: bandwidth of copies, f16 TFLOP/s of cuBLAS
  tests of …        the conformance table, as far as --tests allows: those of the ops of models
                    early, all others at the end
  decode TYPE       tokens/s of one sequence, and the share of the copies' bandwidth
  prompt TYPE       tokens/s of prompts of 512 and 2048 tokens, and the share of cuBLAS's TFLOP/s
  attention         flash_attn_ext alone, beside PyTorch's
  streams at DEPTH  1 to 128 sequences of so many tokens that decode together
  layouts           32 sequences of 4096 tokens in each layout of the cache
  products TYPE     mul_mat alone for 1 to 2048 columns, beside cuBLAS's f16
  launches          the host's share of a step: launches, with a CUDA graph and without
  upload, compile   loading weights, compiling kernels into an empty cache

Each part has an estimate, and is not begun with less time left. The results are written after each
part and hold what failed or was not reached: `--resume` goes on from there, on the same device. A
part that fails, hangs or breaks the device ends only its own process. The exit code is 1 if a part
or a test has failed.

Times are medians. "bandwidth" is that of copies within the device's memory, bytes read and written.
A decode step counts the bytes of all weights that it reads, and K and V of every sequence.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it finds no neighbours

from benchmarks.gpu_parts import Settings, open_bench
from benchmarks.gpu_report import markdown
from benchmarks.gpu_run import Part, Results, Runner, WorkerEnded, chosen, write_text
from benchmarks.gpu_worker import ProcessWorker
from benchmarks.report import RESULTS, command, fail, tell, words

FORMAT = 1  # of results: those of another one cannot be added to


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", default="cuda", help="cuda, cuda:1, …; any other to try it")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it (9)")
    parser.add_argument(
        "--tests", type=float, default=0.3, metavar="SHARE",
        help="of the time for the conformance table, 0 (none) to 1 (0.3)",
    )  # fmt: skip
    parser.add_argument(
        "--only", type=words, default=[], metavar="GLOB,…", help="only parts of these names"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the last run has measured")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try the parts")
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, metavar="DIR", help="benchmarks/results"
    )
    options = parser.parse_args(arguments)
    if options.minutes <= 0:
        parser.error("--minutes: must be above 0")
    if not 0 <= options.tests <= 1:
        parser.error("--tests: must be from 0 to 1")
    return options


def slug(device: str) -> str:
    """The name of a device in the name of a file."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def file_of(folder: Path, device: str, is_quick: bool) -> Path:
    return folder / f"gpu_{slug(device)}{'_quick' if is_quick else ''}.json"


def show_parts(parts: Sequence[Part]) -> None:
    for part in parts:
        time = f"{part.share:.0%} of the time" if part.share else f"about {part.estimate_s:.0f} s"
        print(f"{part.name:22} {time:16} {part.about}")


def run(settings: Settings, options: argparse.Namespace, parts: Sequence[Part]) -> int:
    """Measure, and say where the results are. 0 if nothing failed."""
    started_s = monotonic()
    tell(f"opening {settings.backend}")
    with ProcessWorker(open_bench, settings) as worker:
        about = worker.about | {"command": command(["-m", "benchmarks.gpu", *sys.argv[1:]])}
        path = file_of(options.output, about["device"], settings.is_quick)
        kept = {"is_quick": settings.is_quick, "format": FORMAT}
        results = Results(path, about, kept, options.resume or bool(options.only))
        if not options.resume:
            results.forget([part.name for part in parts])

        def write_table(results: Results) -> None:
            write_text(path.with_suffix(".md"), markdown(results.as_dict()))

        tell(f"{about['settings']}; results go to {path}")
        runner = Runner(
            results, worker, 60 * options.minutes, written=write_table, started_s=started_s
        )
        runner.run(parts)
    tell(f"{path} and {path.with_suffix('.md').name} are written")
    failed = [name for name, entry in results.parts.items() if entry["status"] == "failed"]
    n_wrong = sum(results.values(name).get("fail", 0) for name in results.parts)
    if failed:
        tell(f"failed: {', '.join(failed)}")
    if n_wrong:
        tell(f"{n_wrong} tests of the conformance table failed")
    return 1 if failed or n_wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = Settings(options.backend, options.quick, options.tests)
    parts = chosen(settings.parts(), options.only)
    if not parts:
        return fail(ValueError(f"--only: no part is called {', '.join(options.only)}: see --list"))
    if options.list:
        show_parts(parts)
        return 0
    # Tests compute small products, which threads slow down; workers inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return run(settings, options, parts)
    except (WorkerEnded, OSError, ValueError) as error:
        return fail(error)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
