"""The table of parts of the GPU benchmark, the most important ones first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import gpu_measure as measure
from benchmarks.gpu_device import Device
from benchmarks.gpu_measure import QUICK, Sizes
from benchmarks.gpu_run import Part
from benchmarks.gpu_tests import run_selection
from benchmarks.gpu_worker import Bench, Notes
from ggmlpy.backends.cpu.cores import default_n_threads

COMPILE_CORE_S = 150.0  # all kernels on one core of a server
TYPES = ("f16", "q8_0", "q4_0", "q4_K", "q6_K")

Measured = Callable[[Device, Sizes, Notes], None]


def part_table(sizes: Sizes, tests_share: float) -> list[tuple[Part, Measured]]:
    """Every part, in the order in which they are measured, and what measures it.

    Estimates are for an H100, in seconds, with the time that filling its memory takes.
    """
    first, rest = 0.4 * tests_share, 0.6 * tests_share
    compile_s = 10 + COMPILE_CORE_S / default_n_threads()
    n = sizes.n_tests
    tests: dict[str, Any] = {"silence_s": 60.0, "goes_on": True}
    table: list[tuple[Part, Measured]] = [
        (Part("kernels", "compile and load all, registers and spills", compile_s), measure.kernels),
        (Part("ceilings", "bandwidth of copies, cuBLAS's f16 product", 10), measure.ceilings),
        (
            Part("tests of models' ops", "conformance table", 5, share=first, **tests),
            lambda device, sizes, notes: run_selection(device, notes, True, n),
        ),
    ]
    for type in TYPES:
        about = f"one sequence, {type} weights"
        table.append((Part(f"decode {type}", about, 7), partial(measure.decode, type=type)))
    for type in TYPES:
        about = f"prompts of {_listed(sizes.prompts)} tokens, {type} weights"
        table.append((Part(f"prompt {type}", about, 9), partial(measure.prompt, type=type)))
    table.append((Part("attention", "flash_attn_ext alone", 20), measure.attention))
    for depth in sizes.depths[:2]:
        table.append(_streams_part(sizes, depth))
    n_seqs, depth = sizes.layouts
    about = f"{n_seqs} sequences of {depth} tokens, split, unified, paged"
    table.append((Part("layouts", about, 25), measure.layouts))
    for type in TYPES:
        about = f"mul_mat alone, {type} weights"
        table.append((Part(f"products {type}", about, 8), partial(measure.products, type=type)))
    table.append((Part("launches", "the host's share of a step", 20), measure.launches))
    for depth in sizes.depths[2:]:
        table.append(_streams_part(sizes, depth))
    table.append((Part("upload", "weights from a file", 15), measure.upload))
    table.append(
        (Part("compile", "all kernels, into an empty cache", compile_s), measure.compile_time)
    )
    last = Part("tests of other ops", "conformance table", 5, share=rest, is_last=True, **tests)
    table.append((last, lambda device, sizes, notes: run_selection(device, notes, False, n)))
    return [(part, function) for part, function in table if part.share != 0]


def _streams_part(sizes: Sizes, depth: int) -> tuple[Part, Measured]:
    about = f"{_listed(sizes.streams)} sequences of {depth} tokens decode"
    return Part(f"streams at {depth}", about, 35), partial(measure.streams, depth=depth)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker is told when it starts."""

    backend: str
    is_quick: bool = False
    tests_share: float = 0.3

    @property
    def sizes(self) -> Sizes:
        return QUICK if self.is_quick else Sizes()

    def parts(self) -> list[Part]:
        return [part for part, _ in part_table(self.sizes, self.tests_share)]


def open_bench(settings: Settings) -> Bench:
    """The device with its parts. Raises BackendError if there is none."""
    sizes = settings.sizes
    device = Device(settings.backend, sizes.effort)

    def run(measured: Measured, notes: Notes) -> None:
        device.release()  # what the part before has left
        measured(device, sizes, notes)

    parts = {
        part.name: partial(run, function)
        for part, function in part_table(sizes, settings.tests_share)
    }
    return Bench(device.about(), parts, device.is_healthy)
