"""What a context refuses: lengths and positions that its model cannot have, and sources for which
there are too few cells."""

from __future__ import annotations

from collections import Counter

from ggmlpy.errors import CacheFull, Unsupported
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import Sizes
from ggmlpy.models import Model


def check_length(model: Model, n_ctx_seq: int) -> None:
    """Raise Unsupported for sequences that are longer than the model, or its encoder, can have."""
    limit = model.n_ctx_limit
    if limit is not None and n_ctx_seq > limit:
        raise Unsupported(
            f"n_ctx_seq is {n_ctx_seq}: a {model.hparams.architecture} model of this file can have"
            f" at most {limit} tokens a sequence ({model.limited_by})"
        )
    if model.encoder is not None:
        check_length(model.encoder, n_ctx_seq)


def check_positions(model: Model, batch: Batch) -> None:
    """Raise Unsupported for a position that the model cannot have: one behind those of the longest
    sequence, as there is where tokens were removed before it."""
    limit = model.n_ctx_limit
    if not model.position_limited or limit is None:
        return
    last = max(batch.positions, default=0)
    if last >= limit:
        raise Unsupported(
            f"the batch has position {last}: a {model.hparams.architecture} model of this file can"
            f" have at most {limit} ({model.limited_by}); move what the sequence holds to lower"
            " positions, or begin it anew"
        )


def check_sources(batch: Batch, sizes: Sizes) -> None:
    """Raise CacheFull for a source of more tokens than there are cells for one."""
    n_cells = sizes.n_ctx if sizes.one_stream else sizes.n_ctx_seq
    for seq, n in _lengths(batch).items():
        if n > n_cells:
            n_ctx = n if sizes.one_stream else n * sizes.n_seq_max
            of_each = f" and n_ctx_seq={n}" if n_cells < sizes.n_ctx else ""
            raise CacheFull(
                f"the source of sequence {seq} has {n} tokens, there are cells for {n_cells}: open"
                f" the context with n_ctx={n_ctx}{of_each} or more"
            )


def sources_full(batch: Batch, memory: SequenceMemory) -> CacheFull:
    """The error for sources of a batch that do not fit the stream that they share with others."""
    lengths = _lengths(batch)
    cells, n_tokens = memory.caches[0].cells, lengths.total()
    n_taken, n_free = cells.n_taken(list(lengths.values())), cells.n_free(next(iter(lengths)))
    one = len(lengths) == 1
    whose = f"source{'' if one else 's'} of sequence{'' if one else 's'}"
    pages = "" if n_taken == n_tokens else f" ({n_taken} cells in whole pages)"
    return CacheFull(
        f"the {whose} {', '.join(map(str, lengths))} {'has' if one else 'have'} {n_tokens}"
        f" tokens{pages}: of the {cells.n_ctx} cells that all sources share {n_free} are free"
        f" ({cells.held_by()}); open the context with n_ctx={cells.n_ctx + n_taken - n_free} or"
        " more, or remove other sequences with seq_keep or clear"
    )


def _lengths(batch: Batch) -> Counter[int]:
    """Tokens of each sequence."""
    return Counter(seq for seqs in batch.seq_ids for seq in seqs)
