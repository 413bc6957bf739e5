"""Start-up and decode speed of a small model, where Python's own share would show.

    python benchmarks/small_model.py [model.gguf] [--threads 2] [--repeat 5]

Each figure is the median of `--repeat` runs in fresh processes; the first-run figure starts with an
empty kernel cache. Prints a table and, with --save, writes benchmarks/results/small_model.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

import ggmlpy
from benchmarks import report
from ggmlpy.errors import GgmlpyError
from ggmlpy.gguf import GGUFFile

RESULTS = report.RESULTS / "small_model.json"

IMPORT = (
    "import time; t = time.perf_counter(); import ggmlpy; ggmlpy.Llama\n"
    "print(time.perf_counter() - t)"
)
FIRST_TOKEN = """
import subprocess, sys, time
t = time.perf_counter()
command = [sys.executable, "-m", "ggmlpy", "generate", "-m", MODEL, "-p", "Once upon a time",
           "-n", "8", "--temp", "0", "-t", THREADS, "--no-echo"]
p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
p.stdout.read(1)
print(time.perf_counter() - t)
p.stdout.read(); p.wait()
"""
DECODE = """
from ggmlpy import Llama
with Llama(MODEL, n_threads=int(THREADS)) as llm:
    rates = []
    for _ in range(6):
        llm.reset()
        llm("Once upon a time", max_tokens=100, temperature=0)
        rates.append((llm.timings.generation_rate, llm.timings.n_decoded / llm.timings.decode_s))
median = sorted(rates)[len(rates) // 2]
print(median[0], median[1])
"""


def run(code: str, model: str, threads: int, cache: str | None = None) -> list[float]:
    """The numbers that `code` prints, in a fresh interpreter."""
    environment = {**os.environ, **({"GGMLPY_CACHE_DIR": cache} if cache else {})}
    code = f"MODEL, THREADS = {model!r}, {str(threads)!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return [float(x) for x in done.stdout.split()]


def measure(model: str, threads: int, repeat: int) -> dict[str, Any]:
    run(FIRST_TOKEN, model, threads)  # fills the cache
    with tempfile.TemporaryDirectory() as empty:
        cold = run(FIRST_TOKEN, model, threads, cache=empty)[0]
    imports = [run(IMPORT, model, threads)[0] for _ in range(repeat)]
    warm = [run(FIRST_TOKEN, model, threads)[0] for _ in range(repeat)]
    decode = [run(DECODE, model, threads) for _ in range(repeat)]
    return {
        "import_s": statistics.median(imports),
        "first_token_cold_s": cold,
        "first_token_warm_s": statistics.median(warm),
        "generate_tokens_per_s": statistics.median(d[0] for d in decode),
        "decode_tokens_per_s": statistics.median(d[1] for d in decode),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", default=str(ggmlpy.packaged_model()))
    parser.add_argument("--threads", type=report.count, default=2)
    parser.add_argument("--repeat", type=report.count, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    try:
        GGUFFile.open(options.model)
    except GgmlpyError as error:
        return report.fail(error)
    figures = measure(options.model, options.threads, options.repeat)
    for name, value in figures.items():
        print(f"{name:24s} {value:10.3f}")
    if options.save:
        entry = {**report.about_run(options.threads, []), **figures}
        report.save(RESULTS, Path(options.model).name, entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
