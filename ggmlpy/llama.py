"""`Llama`: a model file with everything needed to write text, as llama-cpp-python users know it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend
from ggmlpy.common.arguments import as_whole, checked
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.own_folder import default_folder
from ggmlpy.common.system_memory import give_back_free_memory
from ggmlpy.engine.completions import Completions
from ggmlpy.engine.engine import Engine
from ggmlpy.errors import AllocationError, BadBatch, StateError, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.kept_digests import KeptDigests
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.batch import check_tokens
from ggmlpy.memory.cache_types import cache_type
from ggmlpy.memory.fingerprint import Fingerprint
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.memory.sequences import decide_sizes
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least, choose_sizes, reduce_to_memory
from ggmlpy.runtime.describe import summary
from ggmlpy.sampling import SamplingParams
from ggmlpy.sched.compute import backends_for
from ggmlpy.text.tokenizer import Tokenizer


class Llama(Completions):
    """A GGUF model ready to generate: `llm(prompt)`, `create_chat_completion`, `generate`.

    What the memory holds is never run again where a prompt begins like it. Raises FileError,
    Unsupported or BackendError, each with what is wrong and what must be.

    May be used from several threads: what they ask for runs together, as sequences allow.
    """

    @checked
    def __init__(
        self,
        model_path: str | PathLike[str],
        *,
        n_ctx: int = 0,
        n_ctx_seq: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        type_k: str | int | TensorType = "f16",
        type_v: str | int | TensorType = "f16",
        flash_attn: bool = True,
        backend: str | Backend | Sequence[str | Backend] = "auto",
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        override_tensors: Mapping[str, str] | None = None,
        seed: Annotated[int, as_whole] | None = None,  # of 64 bits without a sign
        verbose: bool = False,
    ) -> None:
        """Load a model.

        model_path     the GGUF file; of a split model, its first file. It must stay as it is while
                       the model is in use: float weights are read where it is mapped
        n_ctx          tokens of all sequences together; 0: `n_seq_max` times `n_ctx_seq`, or what
                       the model was trained with, as far as half of the machine's memory holds it
        n_ctx_seq      tokens that one sequence may have; 0: its equal part of `n_ctx`, or with
                       `kv_unified` all of it
        n_batch        tokens that are given at a time: `n_ubatch` is never more
        n_ubatch       tokens that run at a time: more read prompts faster and take more memory
        n_seq_max      sequences that can be under way together
        kv_unified     they share one cache, not one for each: a sequence may take what others leave
        type_k, type_v types of the KV cache: "f32", "f16", "bf16", "q8_0", "q4_0" …, or ggml's ids
        flash_attn     attention as one fused node; False: step by step
        backend        what computes: "cpu", "reference", an installed one; "auto" is the fastest
        n_threads      CPU threads; None: one a core, and one alone where there is little to do
        n_gpu_layers   how many of the last layers, the output among them, lie on a backend with
                       memory of its own; -1: all
        override_tensors  for names of tensors that a pattern matches (a regular expression) the
                       backend that they lie on, before n_gpu_layers
        seed           of every call that names none; None or -1: a fresh one each time
        verbose        print what was decided (`describe`), and timings after each completion
        """
        started = perf_counter()
        if n_threads is not None:
            check_least("n_threads", n_threads, 1)
        SamplingParams(seed=None if seed == -1 else seed)  # refused now, not by the first call
        check_least("n_batch", n_batch, 1)
        check_least("n_ubatch", n_ubatch, 1)
        self._file = GGUFFile.open(model_path)
        self.model = load_model(self._file)
        total, most = choose_sizes(
            n_ctx, n_ctx_seq, n_seq_max, kv_unified, self.model.hparams.n_ctx_train
        )
        types = cache_type("type_k", type_k), cache_type("type_v", type_v)
        sizes = decide_sizes(total, n_seq_max, kv_unified, min(n_ubatch, n_batch), most)
        if not n_ctx and not n_ctx_seq:
            sizes = reduce_to_memory(self.model.memory, sizes, *types)
        try:
            self._context = Context(
                self.model,
                backends_for(backend, n_threads),
                n_ctx=sizes.n_ctx,
                n_ctx_seq=sizes.n_ctx_seq,
                n_ubatch=sizes.n_ubatch,
                n_seq_max=sizes.n_seq_max,
                kv_unified=sizes.unified,
                type_k=types[0],
                type_v=types[1],
                flash_attn=flash_attn,
                n_gpu_layers=n_gpu_layers,
                override_tensors=override_tensors or {},
            )
        except MemoryError as error:
            raise AllocationError(
                f"a KV cache for n_ctx = {sizes.n_ctx} tokens: {error}; say a smaller n_ctx"
            ) from None
        metadata = self._file.metadata
        tokenizer = Tokenizer.from_metadata(metadata, self._file.name)
        n_rows = self.model.hparams.n_vocab
        if tokenizer.vocab.has_tokens and tokenizer.n_vocab > n_rows:
            raise WeightError(
                f'{self._file.name}: key "tokenizer.ggml.tokens" has {tokenizer.n_vocab} tokens,'
                f' must be at most {n_rows}, the rows of "token_embd.weight"'
            )
        super().__init__(Engine(self._context, tokenizer), tokenizer, metadata, str(model_path))
        self.seed = seed
        self.verbose = verbose
        self._n_batch = n_batch
        self._fingerprint: Fingerprint | None = None
        with _beside(tokenizer.prepare, give_back_free_memory):
            self._context.warm_up()  # mostly packing or reading weights: leaves Python to others
        self._file.release_metadata()
        self.load_s = self._answers.load_s = perf_counter() - started
        if verbose:
            print(self.describe(), file=sys.stderr)

    # --- what it is ---

    def n_ctx(self) -> int:
        """Tokens of all sequences together."""
        return self._context.sizes.n_ctx

    def n_ctx_seq(self) -> int:
        """Tokens that one sequence may have."""
        return self._context.sizes.n_ctx_seq

    def n_vocab(self) -> int:
        """Tokens in the vocabulary; rows that pad the embedding beyond it are no tokens."""
        return self.engine.n_vocab

    def n_embd(self) -> int:
        """Elements of a token's embedding."""
        return self.model.hparams.n_embd

    def token_bos(self) -> int | None:
        """The token that begins a text."""
        return self.tokenizer.bos_id

    def token_eos(self) -> int | None:
        """The token that ends a text."""
        return self.tokenizer.eos_id

    def token_eot(self) -> int | None:
        """The token that ends a turn in a conversation."""
        return self.tokenizer.eot_id

    @property
    def n_plans_built(self) -> int:
        """Graphs built and planned so far; steps of a shape seen before add none."""
        return self._context.n_plans_built

    def describe(self) -> str:
        """A table of what was loaded and decided: sizes, caches, memory, backends."""
        return summary(self._file, self._context, self._n_batch, self.load_s)

    def __repr__(self) -> str:
        h, sizes = self.model.hparams, self._context.sizes
        return (
            f"Llama({Path(self.model_path).name!r}, {h.architecture}, {h.n_layer} layers,"
            f" n_ctx={sizes.n_ctx}, n_ctx_seq={sizes.n_ctx_seq}, n_seq_max={sizes.n_seq_max},"
            f" backend={self._context.backends[0].name!r})"
        )

    # --- tokens and logits ---

    def tokenize(self, text: str | bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """The text's token ids, of bytes in UTF-8 too. `special` parses control tokens in it."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of token ids; control tokens are left out unless `special`."""
        return self.tokenizer.decode(tokens, special=special)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits of a fresh sequence at every token: [n_tokens, n_vocab]. Resets the model.

        Raises BadBatch for tokens outside the vocabulary, or more than the context of a sequence.
        """
        self._check_open()
        if len(tokens) > self.n_ctx_seq():
            raise BadBatch(
                f"{len(tokens)} tokens, a sequence may have n_ctx_seq = {self.n_ctx_seq()}"
            )
        check_tokens(tokens, self.n_vocab())
        with self._answers.lock:
            self.reset()
            logits = self._context.decode(tokens, all_logits=True)[:, : self.n_vocab()].copy()
            self.reset()
        return logits

    # --- what the memory holds ---

    @property
    def held_tokens(self) -> dict[int, list[int]]:
        """The tokens that the memory holds, by sequence: a prompt that begins like them runs on."""
        with self._answers.lock:
            slots = self.engine.slots.all
            return {slot.seq: list(slot.tokens) for slot in slots if slot.tokens}

    def save_state(self, path: str | Path | None = None, *, seq: int | None = None) -> LlamaState:
        """What the memory holds of sequence `seq`, or of all: to `load_state` here or elsewhere.

        With `path` it is written to a file too, whole or not at all. The first state that a model
        saves or loads reads all of its file, once for all processes; `progress.listening` tells how
        far that is. Raises BadBatch for a sequence that there is not, FileError for a file that
        cannot be written, and for a model's that cannot be read or was written to meanwhile.
        """
        self._check_open()
        fingerprint = self._own_fingerprint()  # not under the lock: others generate meanwhile
        with self._answers.lock:
            states = self.engine.slots.save(seq)
        state = LlamaState(states, Path(self.model_path).name, fingerprint)
        if path is not None:
            state.write(path)
        return state

    def load_state(self, state: LlamaState | bytes | str | Path, *, seq: int | None = None) -> None:
        """Hold what `save_state` saved, instead of all that is held: prompts go on from there.

        `state` may be the bytes of one, or the path of its file. It may come from a model with any
        other n_ctx, streams, K/V types (K and V are converted), flash_attn and backend, but of the
        same weights and hyper-parameters. With `seq` a state of one sequence becomes that sequence,
        others stay.

        Raises StateError for what is damaged or of another model, BadBatch for a sequence that
        there is not or that is being written, CacheFull where there is no room; nothing is changed
        then.
        """
        self._check_open()
        if isinstance(state, bytes | bytearray | memoryview):
            state = LlamaState.from_bytes(bytes(state))
        elif isinstance(state, str | Path):
            state = LlamaState.read(state)
        elif not isinstance(state, LlamaState):
            raise StateError(
                f"a state is a LlamaState, bytes or a path, not {type(state).__name__}"
            )
        fingerprint = self._own_fingerprint()
        with self._answers.lock:
            self.engine.check_idle_step()
            state.check_fits(self._file.name, fingerprint, self._context.memory, self.n_vocab())
            self.engine.slots.load(state.sequences, seq)

    def _own_fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = Fingerprint.of(self._file, KeptDigests(default_folder()))
        return self._fingerprint

    def reset(self) -> None:
        """Forget what the memory holds, and end what is being written.

        Never changes a later result, only what has to be run again.
        """
        self._answers.reset()

    def close(self) -> None:
        """End what is being written and let go of the file: what uses the model then raises."""
        if not self._closed:
            self.reset()
            self._closed = True
            self._file.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _beside(*steps: Callable[[], None]) -> Iterator[None]:
    """Does the steps one after another in a thread of their own, which ends with the block."""

    def do() -> None:
        for step in steps:
            step()

    with ThreadPoolExecutor(1, "ggmlpy-load") as pool:
        with starting_threads():
            done = pool.submit(do)
        yield
        done.result()
