"""The Context: runs a model on tokens of many sequences, with memory, ubatches and plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import checked
from ggmlpy.common.notebook import table
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError, CacheFull, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.types import F16, TensorType
from ggmlpy.memory.batch import Batch, check, check_encoded, check_shared, check_whole, split
from ggmlpy.memory.cache_types import cache_type
from ggmlpy.memory.layouts import choose_layout
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import decide_sizes
from ggmlpy.memory.slots import BatchTransaction, SlotInfo
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.models import Model, load_model
from ggmlpy.models.memory import AttentionLayers
from ggmlpy.runtime.change_methods import ChangeMethods
from ggmlpy.runtime.context_setup import ContextSetup
from ggmlpy.runtime.context_sizes import check_least
from ggmlpy.runtime.limits import check_length, check_positions, check_sources, sources_full
from ggmlpy.runtime.loading import check_placement, load_weights
from ggmlpy.runtime.lora import SequenceAdapters
from ggmlpy.runtime.outputs import Logits, Outputs
from ggmlpy.runtime.plans import Plan
from ggmlpy.runtime.sequence_methods import SequenceMethods
from ggmlpy.runtime.steady import SteadyStep
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.placement import ALL, Placement


class Context(SequenceMethods, ChangeMethods):
    """One model with the memory of up to `n_seq_max` sequences. `decode` gives logits, or with
    `embeddings` what those are computed from, n_embd elements a token; an encoder has nothing else.
    With an encoder-decoder model `encode` takes the source of a sequence, then `decode` runs the
    decoder. Sources have as many cells of their own, and each must fit one ubatch.

    `kv_layout` is "split": each sequence has an equal part of `n_ctx` cells; "unified": the
    sequences share them (`kv_unified=True` means the same); or "paged": they share them in pages.
    `n_ctx_seq` may be less than that: the engine keeps to it. `n_gpu_layers` and `override_tensors`
    (see `Placement.of`) say what lies on devices, `kv_rotation` (see `rotation_of`) whether
    quantised K and V are rotated, `passes` (see `compute`) which passes run.
    Contexts of one model share its weights. Raises ArgumentError for a placement other than that of
    a context that has loaded them.
    """

    @checked
    def __init__(
        self,
        model: Model,
        backends: Sequence[Backend],
        *,
        n_ctx: int,
        n_ctx_seq: int | None = None,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        kv_layout: str | None = None,
        type_k: TensorType = F16,
        type_v: TensorType = F16,
        kv_rotation: bool | None = None,
        flash_attn: bool = True,
        n_gpu_layers: int = ALL,
        override_tensors: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        pin: Pin | None = None,
        passes: str | Sequence[str] | None = None,
        embeddings: bool = False,
    ) -> None:
        check_least("n_ctx", n_ctx, 0)
        if n_ctx_seq is not None:
            check_least("n_ctx_seq", n_ctx_seq, 1)
        check_least("n_ubatch", n_ubatch, 1)
        check_least("n_seq_max", n_seq_max, 1)
        layout = choose_layout(kv_layout, kv_unified)
        sizes = decide_sizes(n_ctx, n_seq_max, layout, n_ubatch, n_ctx_seq)
        check_length(model, sizes.n_ctx_seq)
        placement = Placement.for_model(model, backends, n_gpu_layers, override_tensors)
        placement.check_overrides(model.weights.leaves)
        check_placement(model, placement)
        setup = ContextSetup(
            list(backends), sizes, placement, type_k, type_v, kv_rotation, flash_attn, pin, passes
        )
        encoder = None
        if model.encoder is not None:
            encoder = Context.__new__(Context)
            encoder._set_up(model.encoder, setup)
        self._set_up(model, setup, encoder, embeddings)

    def _set_up(
        self,
        model: Model,
        setup: ContextSetup,
        encoder: Context | None = None,
        embeddings: bool = False,
    ) -> None:
        self.model = model
        # The context of the encoder, which `encode` runs; only after the weights are loaded here.
        self.encoder: Context | None = encoder
        self.sizes, self.placement, self.backends = setup.sizes, setup.placement, setup.backends
        source = None if encoder is None else encoder.memory
        self.memory: SequenceMemory = setup.memory(model, source)
        self.shapes = setup.shapes(self.memory)
        self.plans = setup.plans(model, self.memory, embeddings)
        attention = (part for part in model.memory if isinstance(part, AttentionLayers))
        self.is_causal = all(part.is_causal for part in attention)
        self._adapters = SequenceAdapters()
        self._is_loaded = False
        self.backend_names = ", ".join(b.name for b in self.backends)
        self._last: Plan | None = None
        self._last_graph: Graph | None = None  # of what it ran, once asked for
        self._steady: SteadyStep | None = None  # for the step after the last one
        self._last_ubatches: tuple[list[tuple[int, ...]], list[UBatch]] | None = None

    @classmethod
    @checked
    def open(
        cls,
        path: str | bytes | PathLike[str],
        *,
        backend: str | Backend | Sequence[str | Backend] = "auto",
        n_threads: int | None = None,
        **options: Any,
    ) -> Context:
        """A context of a GGUF file; `options` are those of Context, `n_ctx` at least. Types of K
        and V may be names.

        Raises FileError, Unsupported, BackendError, or AllocationError for more memory than there
        is.
        """
        for name in ("type_k", "type_v"):
            if name in options:
                options[name] = cache_type(name, options[name])
        model = load_model(GGUFFile.open(path))
        return cls(model, backends_for(backend, n_threads), **options)

    def __repr__(self) -> str:
        h, sizes = self.model.hparams, self.sizes
        return (
            f"Context({h.architecture}, {h.n_layer} layers, n_ctx={sizes.n_ctx},"
            f" n_seq_max={sizes.n_seq_max}, backends={self.backend_names})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: sizes, memory and plans."""
        h, sizes, memory = self.model.hparams, self.sizes, self.memory
        rows = [
            ("model", f"{h.architecture}, {h.n_layer} layers, n_embd {h.n_embd}"),
            ("n_ctx", f"{sizes.n_ctx}, at most {sizes.n_ctx_seq} of a sequence"),
            ("n_seq_max", f"{sizes.n_seq_max}, {sizes.layout}"),
            ("n_ubatch", str(sizes.n_ubatch)),
            ("memory", f"{memory.n_bytes / 1e6:.1f} MB, {memory.n_used()} cells used"),
            ("backends", self.backend_names),
            ("placement", str(self.placement)),
            ("plans", f"{self.n_plans_built} built"),
        ]
        return table("Context", rows)

    @property
    def can_generate(self) -> bool:
        """Whether tokens can be decoded one after the other; if not, whole prompts only."""
        return self.is_causal and self.model.can_generate

    @property
    def n_plans_built(self) -> int:
        """Plans built so far; a ubatch of a known shape adds none."""
        n_of_encoder = 0 if self.encoder is None else self.encoder.n_plans_built
        return self.plans.n_built + n_of_encoder

    @property
    def compute_bytes(self) -> dict[str, int]:
        """Memory that graphs run in, by buffer type: from when weights are loaded that of a full
        ubatch at full depth, of which all tokens are output. On the host only as much of it is
        resident as runs have used."""
        taken = Counter(self.plans.arenas.bytes_by_type)
        if self.encoder is not None:
            taken.update(self.encoder.compute_bytes)
        return dict(taken)

    def largest_compute_bytes(self) -> dict[str, int]:
        """Memory that the largest ubatches run in, by buffer type. Takes none of it."""
        arenas = self.plans.arena_bytes(map(self.plans.graph_of, self.shapes.largest()))
        found: dict[str, int] = {}
        for (memory, _), n_bytes in arenas.items():
            found[memory.name] = found.get(memory.name, 0) + n_bytes
        return found

    def ops_by_backend(self) -> dict[str, Counter[str]]:
        """How many nodes of which op each backend runs, in the plan that was used last."""
        counted: dict[str, Counter[str]] = {}
        plan = next(reversed(self.plans.plans.values()), None)  # none once all were dropped
        for part in () if plan is None else plan.executable.schedule.splits:
            ops = (node.op.name for node in part.nodes if node.op is not None)
            counted.setdefault(part.backend.name, Counter()).update(ops)
        return counted

    @property
    def last_graph(self) -> Graph:
        """The graph of the last ubatch, its inputs as they were: `compute` runs it again.

        It is built when it is first asked for after a batch; do so before sequences are changed
        otherwise. Later batches leave its inputs alone, but not the K, V and recurrent states that
        it reads and writes. Raises ArgumentError if nothing was decoded yet.
        """
        if self._last is None:
            raise ArgumentError("last_graph: nothing was decoded yet")
        if self._last_graph is None:
            self._last_graph = self.plans.snapshot(self._last)
        return self._last_graph

    @checked
    def n_past(self, seq: int = 0) -> int:
        """The position of the next token of a sequence."""
        return self.memory.seq_pos_max(seq) + 1

    def load_weights(self) -> None:
        """Load each weight onto the device of its layer, once, in the form that this keeps, and
        take the memory that the largest step needs.

        The first batch does so, if `warm_up` has not. Tells progress. Raises FileError,
        AllocationError, ArgumentError if another context of the model has loaded them elsewhere.
        """
        if not self._is_loaded:
            graphs = self._largest_graphs()
            readers = [graphs[0]]
            if self.encoder is not None:
                readers += self.encoder._largest_graphs()[:1]
            load_weights(self.model, self.placement, readers)
            self.plans.reserve(graphs)
            if self.encoder is not None:  # the weights are the same
                self.encoder.load_weights()
            self._is_loaded = True

    def _largest_graphs(self) -> list[Graph]:
        return [self.plans.graph_of(shape) for shape in self.shapes.largest()]

    def warm_up(self) -> None:
        """Load the weights, and build the plan of a decode step: kernels are compiled by then."""
        self.load_weights()
        if self.encoder is not None:
            self.encoder.warm_up()
        self.plans.get(self.shapes.one_token)

    @checked
    def encode(self, tokens: Sequence[int], *, seq: int = 0) -> Logits:
        """Begin a sequence anew: let `tokens` be its source, which the tokens decoded next see.

        Returns the encoder's embeddings of all tokens, [n_tokens, n_embd], valid until the next
        call. Raises as `encode_batch` does.
        """
        batch = Batch()
        batch.extend(seq, tokens, 0, all_outputs=True)
        return self.encode_batch(batch)

    def encode_batch(self, batch: Batch) -> Logits:
        """`encode` of several sequences: of each all tokens of its source, from position 0 on.

        Returns the embeddings of the output tokens in the batch's order, [n_outputs, n_embd].
        Raises Unsupported for a model without an encoder or a decoder, BadBatch for tokens that
        cannot be encoded, such as more than fit one ubatch, CacheFull for a source of more tokens
        than there are cells for one; nothing is changed then. Raises CacheFull too where those of
        other sequences leave too few cells; what was held of the batch's sequences is gone then.
        """
        encoder = self.encoder
        if encoder is None:
            arch = quoted(self.model.hparams.architecture)
            raise Unsupported(f"a {arch} model does not encode sources: use decode")
        encoder._check(batch, begins=True)
        check_sources(batch, self.sizes)
        self.load_weights()
        for seq in {seq for seqs in batch.seq_ids for seq in seqs}:
            encoder.memory.seq_rm(seq)
            self.memory.seq_rm(seq)
        try:
            return encoder.decode_batch(batch)
        except CacheFull:
            raise sources_full(batch, encoder.memory) from None

    @checked
    def decode(self, tokens: Sequence[int], *, seq: int = 0, all_logits: bool = False) -> Logits:
        """Run `tokens` after what the memory holds of a sequence.

        Returns the logits of the last token, or with `all_logits` of all: [n_outputs, n_vocab],
        valid until the next call. Raises as `decode_batch` does.
        """
        batch = Batch()
        batch.extend(seq, tokens, self.n_past(seq), all_outputs=all_logits)
        return self.decode_batch(batch)

    def decode_batch(self, batch: Batch) -> Logits:
        """Run a batch. Returns the logits of its output tokens in its order, [n_outputs, n_vocab].

        They are valid until the next call. Raises BadBatch or Unsupported for tokens that do not
        fit what the memory holds, CacheFull for lack of cells; the memory is unchanged then.
        """
        return self.run_batch(batch, read=True).all()

    def run_batch(self, batch: Batch, *, read: bool = False) -> Outputs:
        """Run a batch. Its logits stay where they were computed, unless they are `read`: then the
        memory is unchanged if that fails. Raises as `decode_batch` does."""
        steady, self._steady = self._steady, None
        self._last_graph = None
        check_positions(self.model, batch)
        outputs = None if steady is None else steady.run(batch, read)
        if outputs is not None:
            self._steady = steady
            return outputs
        self._check(batch)
        self.load_weights()
        ubatches = self._ubatches_of(batch)
        if len(ubatches) > 1:
            self.memory.check_slots(batch, ubatches)
        change = self.memory.transaction(batch)
        try:
            outputs = self._run_all(batch, ubatches, change)
            if read:
                outputs.all()
            return outputs
        except BaseException:
            self._steady = None
            change.undo()
            raise

    def _run_all(self, batch: Batch, ubatches: list[UBatch], change: BatchTransaction) -> Outputs:
        """Run the ubatches of a batch."""
        if len(ubatches) == 1:
            slot_info = self.memory.apply(batch, ubatches[0], change)
            plan, index = self._run(batch, slot_info)
            self._steady = self._steady_after(batch, slot_info)
            in_order = len(index) < 2 or bool((index[1:] > index[:-1]).all())
            return Outputs(plan, len(index), None if in_order else np.argsort(index))
        rows = np.flatnonzero(batch.outputs)
        logits: Logits | None = None
        for ubatch in ubatches:
            plan, index = self._run(batch, self.memory.apply(batch, ubatch, change))
            if logits is None:
                logits = np.empty((len(rows), plan.n_out), np.float32)
            logits[np.searchsorted(rows, index)] = plan.read_logits(0, len(index))
        return Outputs(plan, len(rows), None, logits)

    def _steady_after(self, batch: Batch, slot_info: SlotInfo) -> SteadyStep | None:
        assert self._last is not None
        n_vocab = self.model.hparams.n_vocab
        return SteadyStep.after(batch, self._last, slot_info, self.memory, n_vocab)

    def _check(self, batch: Batch, *, begins: bool = False) -> None:
        """Raise unless a batch can be decoded, or with `begins` if its sequences were empty."""
        n_seq_max = self.sizes.n_seq_max
        next_position = [0] * n_seq_max if begins else self.memory.next_positions()
        unified = self.memory.n_stream == 1
        recurrent = self.memory.recurrent is not None
        check(batch, self.model.hparams.n_vocab, n_seq_max, unified, recurrent, next_position)
        if not self.is_causal:
            check_whole(batch, self.sizes.n_ubatch)
        if self.encoder is not None:
            check_encoded(batch, self.memory.n_source)
        if max(map(len, batch.seq_ids)) > 1:
            check_shared(batch, self.memory.histories())
            self._adapters.check(batch.seq_ids)

    def _ubatches_of(self, batch: Batch) -> list[UBatch]:
        """The batch's ubatches: those of the last batch if the tokens are of the same sequences."""
        if self._last_ubatches is not None and self._last_ubatches[0] == batch.seq_ids:
            return self._last_ubatches[1]
        unified = self.memory.n_stream == 1
        pieces = split(batch, self.sizes.n_ubatch, may_cut=self.is_causal)
        ubatches = [UBatch.of(runs, unified) for runs in pieces]
        if len(ubatches) == 1:
            self._last_ubatches = (list(batch.seq_ids), ubatches)
        return ubatches

    def _run(self, batch: Batch, slot_info: SlotInfo) -> tuple[Plan, NDArray[np.int64]]:
        """Run one ubatch. Returns its plan, and the indices of its output tokens in the batch."""
        ubatch = slot_info.ubatch
        outputs = [i for i, at in enumerate(ubatch.indices) if batch.outputs[at]]
        lora = self._adapters.of(ubatch, outputs)
        shape = self.shapes.of(slot_info, len(outputs)).with_lora(lora)
        plan = self._last = self.plans.get(shape)
        plan.inputs.fill(batch, slot_info, outputs, lora)
        plan.run()
        if self.memory.recurrent is not None:
            self.memory.recurrent.note_written(ubatch.run_seqs.tolist())
        return plan, ubatch.index[outputs]
