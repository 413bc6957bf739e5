"""A table of what was loaded and decided: sizes, caches, memory, backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.kv_cache import KVCache
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.pages import PagedCells
from ggmlpy.runtime.context import Context
from ggmlpy.sched.passes import PASSES

Row = tuple[str, str]

_LAYOUTS: dict[KVLayout, str] = {
    "split": "each has a stream of cells of its own",
    "unified": "all share one stream of cells",
    "paged": "all share one stream of cells in pages",
}


def summary_rows(
    file: GGUFFile,
    context: Context,
    n_batch: int,
    token_budget: int,
    cache: str,
    load_s: float,
    more: Sequence[Row] = (),
) -> list[Row]:
    """The table's rows: a name, then its description."""
    return [
        *_model_rows(file, context),
        *_context_rows(context),
        *_memory_rows(context),
        ("placement", str(context.placement)),
        ("compute", _compute(context)),
        ("graphs", _graphs(context)),
        (
            "n_batch",
            f"{n_batch} tokens, of which n_ubatch = {context.sizes.n_ubatch} run at a time",
        ),
        (
            "token_budget",
            f"{token_budget} tokens of a step in which any sequence decodes, at least 2 of prompts",
        ),
        ("cache_ram", cache),
        *more,
        *_control_rows(context),
        *_backend_rows(context),
        *_pass_rows(context),
        ("load", f"{load_s:.2f} s"),
    ]


def _control_rows(context: Context) -> list[Row]:
    vector = context.control_vector
    if vector is None:
        return []
    layers = sorted(vector.directions)
    return [("control vector", f"of {len(layers)} layers, {layers[0]} to {layers[-1]}")]


def summary(
    file: GGUFFile,
    context: Context,
    n_batch: int,
    token_budget: int,
    cache: str,
    load_s: float,
    more: Sequence[Row] = (),
) -> str:
    """The table, one line a row."""
    rows = summary_rows(file, context, n_batch, token_budget, cache, load_s, more)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)


def _model_rows(file: GGUFFile, context: Context) -> list[Row]:
    h = context.model.hparams
    n_parameters = sum(t.n_elements for t in file.tensors.values())
    by_type: Counter[str] = Counter()
    for tensor in file.tensors.values():
        by_type[tensor.type.name] += tensor.n_bytes
    types = ", ".join(f"{name} {megabytes(n)}" for name, n in by_type.most_common())
    layers = f"{h.architecture}, {_layers(context)}, {n_parameters / 1e6:.1f} M parameters"
    return [
        ("model", f"{file.name}: {layers}"),
        ("weights", f"{megabytes(by_type.total())}: {types}"),
    ]


def _layers(context: Context) -> str:
    n = _count(context.model.hparams.n_layer, "layer")
    if context.encoder is None:
        return n
    n_encoder = context.encoder.model.hparams.n_layer
    return f"an encoder of {_count(n_encoder, 'layer')} and a decoder of {n}"


def _context_rows(context: Context) -> list[Row]:
    sizes, trained = context.sizes, context.model.hparams.n_ctx_train
    return [
        ("n_ctx", f"{sizes.n_ctx} tokens, those of all sequences together"),
        ("n_ctx_seq", f"{sizes.n_ctx_seq} tokens, the most of one (trained with {trained})"),
        ("n_seq_max", f"{sizes.n_seq_max}, {sizes.layout}: {_LAYOUTS[sizes.layout]}"),
    ]


def _memory_rows(context: Context) -> list[Row]:
    memory, encoder = context.memory, context.encoder
    source = memory.source
    n_bytes = memory.n_bytes if source is None else memory.n_bytes + source.n_bytes
    rows = [("memory", megabytes(n_bytes))]
    for cache in memory.caches:
        name = "attention" if cache.cells.window is None else f"window {cache.cells.window}"
        name = name if cache.store.leaves else "positions"
        rows.append((f"  {name if source is None else 'decoded'}", _cache(cache)))
    if source is not None and encoder is not None:
        n, n_own = len(source.caches[0].store.k), encoder.model.hparams.n_layer
        whose = f" ({n_own} of the encoder, {n - n_own} of the decoder)"
        rows.append(("  sources", _cache(source.caches[0], whose)))
    if memory.recurrent is not None:
        n_layers, n_seqs = len(memory.recurrent.states), memory.sizes.n_seq_max
        size = megabytes(memory.recurrent.n_bytes)
        layers, states = _count(n_layers, "layer"), _count(n_seqs, "state")
        rows.append(("  recurrent", f"{layers}, {states}, f32 {size}"))
    return rows


def _cache(cache: KVCache, whose: str = "") -> str:
    """A cache's row; `whose` says of its layers more than their number."""
    cells, store = cache.cells, cache.store
    size = f"{cells.n_stream} x {cells.kv_size} cells"
    if cells.n_ctx < cells.kv_size:
        size += f" (padded; {cells.n_ctx} are used)"
    parts = [_count(len(store.k), "layer") + whose, size] if store.k else [size]
    if isinstance(cells, PagedCells):
        pages = f"{_count(cells.n_pages, 'page')} of {cells.page_size}"
        parts.append(f"{pages} ({cells.n_pages_used()} used, {cells.n_pages_shared()} shared)")
    blocks = [(by.k, by.v) for by in store.rotations.values()]
    sizes_k, sizes_v = (sorted(set(sizes) - {0}) for sizes in zip(*blocks, strict=True))
    kinds = ("K", store.type_k, store.k, sizes_k), ("V", store.type_v, store.v, sizes_v)
    for name, type, leaves, n_rotated in kinds:
        if leaves:
            size = megabytes(sum(leaf.spec.n_bytes for leaf in leaves.values()))
            by = f" rotated by {'/'.join(map(str, n_rotated))}" if n_rotated else ""
            parts.append(f"{name} {type}{by} {size}")
    lists = cells.lists.leaf
    parts.append(f"lists {lists.type} {megabytes(lists.spec.n_bytes)}")
    return ", ".join(parts)


def _compute(context: Context) -> str:
    """The memory of graphs: as much as the largest ubatch takes."""
    taken = ", ".join(f"{name} {megabytes(n)}" for name, n in context.compute_bytes.items())
    return f"{taken}, for a full ubatch, all of it output"


def _graphs(context: Context) -> str:
    """The shapes of graphs, and what planning them has cost so far."""
    plans, shapes = context.plans, context.shapes.all()
    planned = f"{plans.n_built} planned in {plans.build_s:.2f} s"
    if not shapes:
        return f"one for each combination of lengths, {planned}"
    return (
        f"{_count(len(shapes), 'shape')} for any batch ({'; '.join(map(str, shapes))}), {planned}"
    )


def _pass_rows(context: Context) -> list[Row]:
    """The passes that are off, if any."""
    off = [name for name in PASSES if name not in context.plans.passes]
    return [("passes", f"without {', '.join(off)}")] if off else []


def _backend_rows(context: Context) -> list[Row]:
    """The backends of layers, and the fallbacks that run what those do not support."""
    rows: list[Row] = []
    counts = context.ops_by_backend()
    n_all = sum(ops.total() for ops in counts.values())
    placed = {*context.placement.layers, context.placement.input}
    for backend in context.backends:
        ops = counts.get(backend.name, Counter())
        share = f"runs {ops.total()} of {n_all} nodes"
        is_fallback = backend not in placed
        if is_fallback and ops:
            share += f" ({', '.join(f'{n} {op}' for op, n in ops.most_common())})"
        parts = [backend.name, backend.settings(), share]
        rows.append(("  fallback" if is_fallback else "backend", ", ".join(filter(None, parts))))
    return rows


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def megabytes(n_bytes: int) -> str:
    """Bytes in MB (10^6), small numbers with more digits."""
    mb = n_bytes / 1e6
    return f"{mb:.{1 if mb >= 10 else 2 if mb >= 0.1 else 4}f} MB"
