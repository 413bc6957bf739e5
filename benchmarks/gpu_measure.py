"""The parts of the GPU benchmark: how each is measured, and how large it is."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu_device import Device, Effort, repeated
from benchmarks.gpu_libraries import Torch, libraries
from benchmarks.gpu_model import (
    LLAMA_8B,
    ROOM,
    TINY,
    RandomModel,
    check_logits,
    cuda_plans,
    decode_times,
    executable_of,
    fill_sequences,
    n_launches,
    placed_on_host,
    prompt_times,
    random_model,
)
from benchmarks.gpu_ops import PAST_CACHE_BYTES, Attention, Weights
from benchmarks.gpu_worker import Notes
from benchmarks.models import ModelShape, write_model
from ggmlpy.backends import get_backend
from ggmlpy.errors import AllocationError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context

STREAMS_TYPE = "q4_0"  # of the weights where many sequences decode
LAYOUTS = ("split", "unified", "paged")
FULL_EFFORT = Effort()
ATTENTION = tuple(
    Attention(head, 32, 8, n_query, n_kv, n_seqs, type)
    for head in (128, 64)
    for n_query, n_kv, n_seqs, type in (
        (1, 4096, 32, "f16"),
        (2048, 2048, 1, "f16"),
        (1, 32_768, 1, "f16"),
        (1, 4096, 1, "f16"),
        (512, 4096, 1, "f16"),
        (1, 4096, 32, "q8_0"),
    )
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured, and how large it is. The defaults are those of a real GPU."""

    shape: ModelShape = LLAMA_8B
    effort: Effort = FULL_EFFORT
    prompts: tuple[int, ...] = (512, 2048)
    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    depths: tuple[int, ...] = (0, 4096, 32_768)
    layouts: tuple[int, int] = (32, 4096)  # sequences, tokens of each
    products: tuple[int, int] = (4096, 14_336)  # n_in, n_out
    columns: tuple[int, ...] = (1, 8, 32, 128, 512, 2048)
    past_cache_bytes: int = PAST_CACHE_BYTES
    attention: tuple[Attention, ...] = ATTENTION
    n_tests: int | None = None  # of a selection of the conformance table; None: all
    all_units: bool = True  # of kernels


QUICK = Sizes(
    shape=TINY,
    effort=Effort(least_s=0.001, copy_bytes=1 << 20, gemm_n=128),
    prompts=(8,),
    streams=(1, 2),
    depths=(0, 32),
    layouts=(2, 32),
    products=(256, 64),
    columns=(1, 8),
    past_cache_bytes=1,
    attention=(Attention(64, 4, 2, 1, 32, 2), Attention(64, 4, 2, 8, 8, 1)),
    n_tests=12,
    all_units=False,
)

# --- ceilings -----------------------------------------------------------------------------------


def ceilings(device: Device, sizes: Sizes, notes: Notes) -> None:
    """Bandwidth and arithmetic that this device has, by what others have written."""
    notes.add(copy_gbs=device.copy_bandwidth() / 1e9)
    notes.add(upload_gbs=device.upload_bandwidth() / 1e9)
    found, missing = libraries(device)
    n = device.effort.gemm_n
    rates = {}
    for library in found:
        rates[library.name] = 2e-12 * n**3 / library.seconds(library.product(n, n, n, 1))
        library.release()
    notes.add(f16_tflops=max(rates.values(), default=None), products=rates, missing=missing)


# --- models -------------------------------------------------------------------------------------


def decode(device: Device, sizes: Sizes, notes: Notes, type: str) -> None:
    """One sequence that decodes, from an empty cache on."""
    with random_model(device, sizes.shape, type) as model:
        context = model.context()
        times = decode_times(device, context, 1, 0)
        n_bytes = model.step_bytes(context, 1, ROOM // 2)
        notes.add(
            **times.as_values(),
            tokens_per_s=1 / times.step_s,
            bytes=n_bytes,
            gbs=n_bytes / times.step_s / 1e9,
            device_gbs=n_bytes / times.device_s / 1e9,
            launches=n_launches(context),
        )
        check_logits(context)


def prompt(device: Device, sizes: Sizes, notes: Notes, type: str) -> None:
    """A prompt in one ubatch, in an empty cache."""
    with random_model(device, sizes.shape, type) as model:
        for n in sizes.prompts:
            if notes.has_row(n=n):
                continue
            context = model.context(n_ubatch=n)
            times = prompt_times(device, context, n)
            flops = model.prompt_flops(n)
            notes.add_row(
                n=n,
                **times.as_values(),
                tokens_per_s=n / times.step_s,
                tflops=1e-12 * flops / times.step_s,
                device_tflops=1e-12 * flops / times.device_s,
            )
            check_logits(context)
            del context
            device.release()


def streams(device: Device, sizes: Sizes, notes: Notes, depth: int) -> None:
    """Many sequences of `depth` tokens that decode, each with a stream of its own."""
    with random_model(device, sizes.shape, STREAMS_TYPE) as model:
        for n in sizes.streams:
            if not notes.has_row(n=n):
                values = _decoding(device, model, n, depth, "split")
                notes.add_row(n=n, type=STREAMS_TYPE, **values)


def layouts(device: Device, sizes: Sizes, notes: Notes) -> None:
    """The same sequences in each layout of the cache."""
    n, depth = sizes.layouts
    with random_model(device, sizes.shape, STREAMS_TYPE) as model:
        for layout in LAYOUTS:
            if not notes.has_row(layout=layout):
                values = _decoding(device, model, n, depth, layout)
                notes.add_row(layout=layout, n=n, depth=depth, type=STREAMS_TYPE, **values)


def _decoding(
    device: Device, model: RandomModel, n: int, depth: int, layout: str
) -> dict[str, Any]:
    """A step of `n` sequences; why not, where memory is too short for them."""
    try:
        found = _decode_step(device, model, n, depth, layout)
    except AllocationError as error:
        found = {"does_not_fit": str(error)}
    device.release()  # here, where no traceback holds the context
    return found


def _decode_step(
    device: Device, model: RandomModel, n: int, depth: int, layout: str
) -> dict[str, Any]:
    context = model.context(n, depth, layout=layout, n_ubatch=max(n, 32))
    fill_sequences(device, context, n, depth)
    times = decode_times(device, context, n, depth)
    n_bytes = model.step_bytes(context, n, depth + ROOM // 2)
    return {
        **times.as_values(),
        "tokens_per_s": n / times.step_s,
        "bytes": n_bytes,
        "gbs": n_bytes / times.step_s / 1e9,
    }


# --- ops ----------------------------------------------------------------------------------------


def products(device: Device, sizes: Sizes, notes: Notes, type: str) -> None:
    """mul_mat alone; of f16 also those of other libraries."""
    n_in, n_out = sizes.products
    weights = Weights.on(device, type, n_in, n_out, sizes.past_cache_bytes)
    others = libraries(device)[0] if type == "f16" else []
    for n in sizes.columns:
        if notes.has_row(n=n):
            continue
        seconds = weights.seconds(device, n)
        row = {
            "us": 1e6 * seconds,
            "gbs": weights.n_bytes(n) / seconds / 1e9,
            "tflops": 1e-12 * weights.n_flops(n) / seconds,
        }
        for library in others:
            works = library.product(n_out, n_in, n, len(weights.leaves))
            row[f"{library.name} us"] = 1e6 * library.seconds(works)
            library.release()
        notes.add_row(n=n, **row)


def attention(device: Device, sizes: Sizes, notes: Notes) -> None:
    """flash_attn_ext alone, beside PyTorch's where that is installed."""
    torch = next((lib for lib in libraries(device)[0] if isinstance(lib, Torch)), None)
    for one in sizes.attention:
        keys = {
            "head": one.head, "n_query": one.n_query, "n_kv": one.n_kv, "n_seqs": one.n_seqs,
            "type": one.type,
        }  # fmt: skip
        if notes.has_row(**keys):
            continue
        seconds = one.seconds(device)
        row: dict[str, float] = {
            "us": 1e6 * seconds,
            "gbs": one.n_bytes / seconds / 1e9,
            "tflops": 1e-12 * one.n_flops / seconds,
        }
        like_torch = one.type == "f16" and one.n_query in (1, one.n_kv)
        if torch is not None and like_torch:
            works = torch.attention(
                one.head, one.n_head, one.n_head_kv, one.n_query, one.n_kv, one.n_seqs
            )
            row["PyTorch us"] = 1e6 * torch.seconds(works)
            del works
            torch.release()
        notes.add_row(**keys, **row)


# --- the host's share ---------------------------------------------------------------------------


def launches(device: Device, sizes: Sizes, notes: Notes) -> None:
    """What a step costs the host, and what a CUDA graph and the placement change about it."""
    with random_model(device, sizes.shape, STREAMS_TYPE) as model:
        for n in (1, sizes.layouts[0]):
            context = model.context(n, n_ubatch=max(n, 32))
            notes.add(**{f"{n} sequences": _launching(device, context, n)})
            del context
            device.release()
        some, most = sizes.streams[len(sizes.streams) // 2 - 1], sizes.streams[-1]
        context = model.context(most, n_ubatch=max(most, 32))
        times = decode_times(device, context, some, 0)
        notes.add(fewer_than_planned={"n": some, "n_seq_max": most, **times.as_values()})
        del context
        device.release()
        device.require_cuda()  # the rest is of a device with memory of its own
        context = placed_on_host(model, get_backend("cpu"))
        times = decode_times(device, context, 1, 0)
        notes.add(embedding_on_host=times.as_values())


def _launching(device: Device, context: Context, n: int) -> dict[str, Any]:
    found: dict[str, Any] = decode_times(device, context, n, 0).as_values()
    executable = executable_of(context)
    submits = []
    for _ in range(20):
        began = perf_counter()
        executable.submit()
        submits.append(perf_counter() - began)
        executable.synchronize()
    found["submit_us"] = 1e6 * sorted(submits)[len(submits) // 2]
    found["launches"] = n_launches(context)
    plans = cuda_plans(context)
    kernels = Counter(str(launch.form) for plan in plans for launch in plan.launches)
    found["by_kernel"] = dict(kernels.most_common())

    def one_by_one() -> None:
        for plan in plans:
            plan._queue()

    if plans:
        wait, least_s = device.backend.synchronize, device.effort.least_s
        found["without_graph_us"] = 1e6 * repeated(one_by_one, wait, least_s)
    return found


def upload(device: Device, sizes: Sizes, notes: Notes) -> None:
    """Weights of some layers from a file to the device, in the pieces in which models are loaded.

    The file has holes where weights would be. The second time they are in the page cache.
    """
    shape = replace(sizes.shape, n_layer=max(1, sizes.shape.n_layer // 8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, "hollow", shape, "q8_0", hollow=True)
        for name in ("first_gbs", "gbs"):
            with GGUFFile.open(path) as file:
                n_bytes, seconds = _upload(device, file)
            notes.add(**{name: n_bytes / seconds / 1e9}, bytes=n_bytes)
            device.release()


def _upload(device: Device, file: GGUFFile) -> tuple[int, float]:
    """Bytes of a model's weights, and the seconds in which they are loaded."""
    context = Context(
        load_model(file),
        [device.backend],
        n_ctx=256,
        n_ubatch=8,
        override_tensors={"token_embd": device.backend.name},
    )
    n_bytes = sum(leaf.spec.n_bytes for leaf in context.model.weights.leaves.values())
    began = perf_counter()
    context.load_weights()
    device.backend.synchronize()
    return n_bytes, perf_counter() - began


# --- kernels ------------------------------------------------------------------------------------


def kernels(device: Device, sizes: Sizes, notes: Notes) -> None:
    """Every kernel compiled and loaded, and what it takes of a multiprocessor."""
    from ggmlpy.backends.cuda.kernel import all_kernels
    from ggmlpy.backends.cuda.machine_code import reports

    driver = device.cuda.driver
    by_unit: dict[Any, list[Any]] = {}
    for form in sorted({f for kernel in all_kernels() for f in kernel.forms}, key=str):
        by_unit.setdefault(form.unit, []).append(form)
    if not sizes.all_units:
        by_unit = {unit: forms for unit, forms in by_unit.items() if unit.file == "norm.cu"}
    began = perf_counter()
    failing = {}
    try:
        driver.functions(form for forms in by_unit.values() for form in forms)
    except Exception:  # which one?
        for unit, forms in by_unit.items():
            try:
                driver.functions(forms)
            except Exception as error:
                failing[str(unit)] = f"{type(error).__name__}: {error}"
    notes.add(
        n_units=len(by_unit),
        n_kernels=sum(map(len, by_unit.values())),
        loaded_s=perf_counter() - began,
        failing=failing,
    )
    cubins, arch = _compiler(device)
    code = cubins.load([unit for unit in by_unit if str(unit) not in failing], arch)
    taken = [
        [str(unit), one.name, one.registers, one.local_bytes, one.shared_bytes]
        for unit, each in code.items()
        for one in reports(each)
    ]
    notes.add(arch=arch, columns="unit, kernel, registers, local and shared bytes", taken=taken)
    if failing:
        raise RuntimeError(f"{len(failing)} of {len(by_unit)} units: {next(iter(failing.items()))}")


def compile_time(device: Device, sizes: Sizes, notes: Notes) -> None:
    """Everything compiled into an empty cache, and read from it again."""
    from ggmlpy.backends.cpu.cache import Cache
    from ggmlpy.backends.cuda.cubins import Cubins
    from ggmlpy.backends.cuda.kernel import all_units

    device.require_cuda()
    units = all_units() if sizes.all_units else all_units()[:1]
    own, arch = _compiler(device)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold_s", "warm_s"):
            cubins = Cubins(Cache(Path(folder), part="cuda"), max_major=own._max_major)
            began = perf_counter()
            code = cubins.load(units, arch)
            notes.add(**{name: perf_counter() - began})
    notes.add(n_units=len(units), bytes=sum(map(len, code.values())), arch=arch)


def _compiler(device: Device) -> tuple[Any, str]:
    """What compiles kernels for this device, and the architecture that it has."""
    from ggmlpy.backends.cuda.cubins import Cubins

    driver = device.cuda.driver
    cubins = getattr(driver, "_cubins", None) or Cubins()
    return cubins, cubins.compiler.arch_for(driver.info.capability)
