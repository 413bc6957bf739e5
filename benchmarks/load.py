"""How long a model takes to load, and how much memory that takes at its height.

    python benchmarks/load.py model.gguf [--peer /path/to/python] [--threads 2] [--repeat 5]

Every figure is from a fresh process that opens the file, tokenizes a word and writes one token; the
file is in the page cache and kernels are compiled. With --peer, an interpreter that has
llama-cpp-python, processes of both take turns. Prints a table and, with --save, writes
benchmarks/results/load.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from llvmlite.binding import get_host_cpu_name

import ggmlpy

RESULTS = Path(__file__).parent / "results" / "load.json"

# Both engines take the same options. Loading ends when text can be tokenized: of a tokenizer that
# is built when it is first needed, the building counts.
LOAD = """
import json, pathlib, re, resource, sys, time
started = time.perf_counter()
from {module} import Llama
imported = time.perf_counter()
llm = Llama({model!r}, n_ctx={n_ctx}, n_threads={threads}, verbose=False)
prompt = llm.tokenize({prompt})
loaded = time.perf_counter()
llm(prompt, max_tokens=1, temperature=0)
status = pathlib.Path("/proc/self/status")
if status.exists():  # Linux counts what the parent had before this program began in ru_maxrss
    peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1])
else:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
figures = {{"import_s": imported - started, "load_s": loaded - imported, "peak_bytes": peak}}
{more}
print(json.dumps(figures))
"""
# What the context takes beside the weights, by which its peak is to be judged.
CONTEXT_BYTES = """
context = llm._context
figures["kv_bytes"] = context.memory.n_bytes
figures["compute_bytes"] = sum(context.compute_bytes.values())
"""

Figures = dict[str, float]


class Engine:
    """One side of the comparison."""

    def __init__(self, name: str, python: str, module: str, prompt: str, more: str = "") -> None:
        self.name = name
        self._python = python
        self._fields = {"module": module, "prompt": prompt, "more": more}
        self.samples: list[Figures] = []

    def load(self, model: str, n_ctx: int, threads: int) -> Figures:
        """One load in a fresh process. Exits with what the process said if it fails."""
        code = LOAD.format(model=model, n_ctx=n_ctx, threads=threads, **self._fields)
        done = subprocess.run([self._python, "-c", code], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.name} did not load {model}:\n{done.stderr[-2000:]}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    def medians(self) -> Figures:
        return {key: statistics.median(s[key] for s in self.samples) for key in self.samples[0]}


def engines(peer: str | None) -> list[Engine]:
    ours = Engine("ggmlpy", sys.executable, "ggmlpy", "'Hello'", CONTEXT_BYTES)
    return [ours] if peer is None else [ours, Engine("llama.cpp", peer, "llama_cpp", "b'Hello'")]


def measure(model: str, peer: str | None, n_ctx: int, threads: int, repeat: int) -> dict[str, Any]:
    """Medians by engine, and what of them is to be judged."""
    sides = engines(peer)
    for side in sides:
        side.load(model, n_ctx, threads)  # fills the page cache and the kernel cache
    for _ in range(repeat):
        for side in sides:
            side.samples.append(side.load(model, n_ctx, threads))
    figures: dict[str, Any] = {side.name: side.medians() for side in sides}
    ours = figures["ggmlpy"]
    file_bytes = Path(model).stat().st_size
    figures["file_bytes"] = file_bytes
    beside = ours["kv_bytes"] + ours["compute_bytes"]
    figures["peak_per_file"] = (ours["peak_bytes"] - beside) / file_bytes
    if peer is not None:
        figures["load_ratio"] = ours["load_s"] / figures["llama.cpp"]["load_s"]
        figures["peak_ratio"] = ours["peak_bytes"] / figures["llama.cpp"]["peak_bytes"]
    return figures


def show(figures: dict[str, Any]) -> None:
    print(f"{'':10s} {'import s':>9s} {'load s':>9s} {'peak MB':>9s}")
    for name in ("ggmlpy", "llama.cpp"):
        if name in figures:
            f = figures[name]
            peak_mb = f["peak_bytes"] / 1e6
            print(f"{name:10s} {f['import_s']:9.2f} {f['load_s']:9.2f} {peak_mb:9.1f}")
    if "load_ratio" in figures:
        print(f"{'ratio':10s} {'':9s} {figures['load_ratio']:9.2f} {figures['peak_ratio']:9.2f}")
    ours, file_mb = figures["ggmlpy"], figures["file_bytes"] / 1e6
    print(
        f"file {file_mb:.1f} MB, KV cache {ours['kv_bytes'] / 1e6:.1f} MB,"
        f" compute {ours['compute_bytes'] / 1e6:.1f} MB:"
        f" ggmlpy's peak without the last two is {figures['peak_per_file']:.2f}x the file"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", default=str(ggmlpy.packaged_model()))
    parser.add_argument("--peer", help="a Python interpreter that has llama-cpp-python")
    parser.add_argument("--context", type=int, default=512, help="tokens (default: 512)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    figures = measure(options.model, options.peer, options.context, options.threads, options.repeat)
    show(figures)
    if options.save:
        about = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "model": Path(options.model).name,
            "threads": options.threads,
            "context": options.context,
            "repeat": options.repeat,
            "machine": f"{get_host_cpu_name()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
        }
        RESULTS.write_text(json.dumps({**about, **figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
