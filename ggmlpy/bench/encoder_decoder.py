"""Speed of an encoder-decoder model: a prompt is encoded, then tokens are decoded one at a time.

Without a prompt the source is encoded before the time is taken: it has as many tokens as the depth
of the test, at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Flag
from ggmlpy.memory.batch import Batch
from ggmlpy.runtime.context import Context


def run_encoded(
    context: Context, source: Sequence[int], generated: Sequence[int], *, is_timed: bool
) -> float:
    """The seconds that it takes to decode, and if that `is_timed` to encode."""
    context.clear()
    batch = Batch()
    batch.extend(0, source, 0)
    started = perf_counter()
    context.encode_batch(batch)
    if not is_timed:
        started = perf_counter()
    for token in generated:
        context.decode([token])
    return perf_counter() - started


def read_weights(context: Context) -> set[str]:
    """The tensors of the file that a step reads as a whole: those of products, not of look-ups."""
    graph = context.plans.graph_of(context.shapes.one_token)
    return {
        source.root.name
        for node in graph.nodes
        if node.op is not None and node.op.name != "get_rows"
        for source in node.src
        if Flag.WEIGHT in source.root.flags
    }


def encoded_bytes(
    file: GGUFFile, context: Context, n_source: int, n_generated: int, *, is_timed: bool
) -> tuple[int, ...]:
    """Bytes that each step of a test reads at least: weights, K and V."""
    encoder = context.encoder
    assert encoder is not None

    def weights(of: Context) -> int:
        return sum(file.tensors[name].n_bytes for name in read_weights(of) if name in file.tensors)

    steps = []
    if is_timed:
        # Of the source K and V are written for the decoder; the encoder's layers read their own.
        steps.append(weights(encoder) + n_source * _slot_bytes(encoder, decoder=False))
    seen = n_source * _slot_bytes(encoder, decoder=True)
    own = _slot_bytes(context, decoder=False)
    decoding = weights(context) if n_generated else 0
    return (*steps, *(decoding + seen + (i + 1) * own for i in range(n_generated)))


def _slot_bytes(context: Context, *, decoder: bool) -> int:
    """Bytes of K and V of a token in the slots of a model's own layers, or of the decoder's."""
    n_block = context.model.n_block
    store = context.memory.caches[0].store
    leaves = (*store.k.items(), *store.v.items())
    return sum(leaf.nb[1] for slot, leaf in leaves if (slot >= n_block) == decoder)
