"""`Llama`: loads a model file and generates text, with llama-cpp-python's interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Self

from ggmlpy.backends.base import Backend
from ggmlpy.common import log
from ggmlpy.common.arguments import as_whole, checked
from ggmlpy.common.limits import starting_threads
from ggmlpy.common.notebook import table
from ggmlpy.common.system_memory import give_back_free_memory
from ggmlpy.draft import DraftModel, DraftSource, Loaded, open_drafter
from ggmlpy.engine.adapter_methods import AdapterFiles, AdapterMethods, with_scales
from ggmlpy.engine.embedding_methods import N_SEQ_MAX
from ggmlpy.engine.engine import Engine
from ggmlpy.engine.prompt_cache import cache_limit
from ggmlpy.errors import GgmlpyError, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.overrides import Scalar
from ggmlpy.gguf.path import path_of
from ggmlpy.graph.types import TensorType
from ggmlpy.hub.fetch import model_of_repo
from ggmlpy.memory.layouts import choose_layout
from ggmlpy.models import load_model
from ggmlpy.models.rope_overrides import RopeOverrides, open_overridden
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import check_least
from ggmlpy.runtime.describe import Row, summary, summary_rows
from ggmlpy.runtime.opening import opener_for
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.tokenizer import Tokenizer

_GONE_WHEN_CLOSED = (
    "_answers",
    "_prompts",
    "_context",
    "_embedder",
    "_engine",
    "_file",
    "_fingerprint",
    "_opener",
    "fitted",
    "metadata",
    "model",
    "tokenizer",
)


class Llama(AdapterMethods):
    """A GGUF model that generates text: `llm(prompt)`, `create_chat_completion`, `generate`; that
    scores given texts: `score`; or that gives embeddings: `embed`, `rank`.

    Prompts reuse a prefix that the memory already holds. Methods may be called from several
    threads; requests run together as far as sequences allow.

    Raises FileError, TokenizerError, Unsupported, BackendError, AllocationError or ArgumentError if
    the model cannot be loaded.
    """

    @checked
    def __init__(
        self,
        model_path: str | bytes | PathLike[str],
        *,
        n_ctx: int = 0,
        n_ctx_seq: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        token_budget: int = 0,
        cache_ram: int | None = None,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        kv_layout: str | None = None,
        type_k: str | int | TensorType = "f16",
        type_v: str | int | TensorType = "f16",
        kv_rotation: bool | None = None,
        flash_attn: bool = True,
        backend: str | Backend | Sequence[str | Backend] = "auto",
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        override_tensors: Mapping[str, str] | None = None,
        kv_overrides: Mapping[str, Scalar] | None = None,
        rope: RopeOverrides | None = None,
        lora_adapters: AdapterFiles = (),
        control_vectors: AdapterFiles = (),
        control_vector_layer_range: tuple[int, int] | None = None,
        fit: bool = False,
        draft_model: DraftSource | Llama | None = None,
        seed: Annotated[int, as_whole] | None = None,  # of 64 bits without a sign
        verbose: bool = False,
    ) -> None:
        """Load a model.

        model_path     the GGUF file; of a split model, its first file; ~ is expanded. It must not
                       change while the model is in use: float weights are read from the mapped file
        n_ctx          tokens of all sequences together; 0: `n_seq_max` times `n_ctx_seq`, or what
                       the model was trained with, reduced to fit in half of the machine's memory
        n_ctx_seq      tokens that one sequence may have; 0: its equal part of `n_ctx`, or with
                       a cache that they share all of it
        n_batch        tokens of a batch, an upper limit of `n_ubatch`
        n_ubatch       tokens that are processed at a time: more make prompts faster, and take more
                       memory
        token_budget   tokens of a step in which any sequence decodes, so that long prompts do not
                       stop the others for long; 0: 128, or twice `n_seq_max` if that is more
        cache_ram      MiB of host memory for K and V of prompts and answers that others displace,
                       so that they are not run again; -1: no limit, 0: none, None: 8192, but at
                       most an eighth of the machine's memory
        n_seq_max      sequences that can run together
        kv_unified     True: the same as kv_layout="unified"
        kv_layout      the KV cache: "split", an equal part for each sequence; "unified", one that
                       all sequences share; "paged", one that they share in pages, of which those of
                       a common prefix are held once; None: "split"
        type_k, type_v types of the KV cache: "f32", "f16", "bf16", "q8_0", "q4_0" …, or ggml's ids
        kv_rotation    whether K and V of quantised types are stored rotated, which they lose less
                       by; None: where heads have a multiple of 64 elements, as in llama.cpp; True:
                       a multiple of 32
        flash_attn     attention as one fused node; False: as separate ones
        backend        a backend or its name: "cpu", "reference", an installed one; "auto" is the
                       fastest
        n_threads      CPU threads; None: one per core, or a single one for small steps
        n_gpu_layers   how many of the last layers, the output among them, lie on a backend with
                       memory of its own; -1: all
        override_tensors  {pattern: backend}: the backend of the tensors whose names the pattern, a
                       regular expression, matches; takes precedence over n_gpu_layers
        kv_overrides   {key: value} in place of the file's metadata
        rope           base, scale and scaling of rotary embeddings in place of the file's
        lora_adapters  files of LoRA adapters, or of each (file, scale): see `load_lora`
        control_vectors  files of control vectors, or of each (file, scale), which are summed
        control_vector_layer_range  the first and the last layer that have it: see
                       `set_control_vectors`
        fit            choose n_gpu_layers, and n_ctx where it is 0, by the free memory of devices:
                       all layers with a shorter context, else fewer layers
        draft_model    what proposes tokens that steps check together, for the same text in fewer
                       steps: a PromptLookup, a DraftModel, the file of a smaller model or a Llama
                       of one, or a function of the tokens so far that returns some
        seed           the default of all calls; None or -1: a random one for each
        verbose        print `describe()`, and timings after each completion; the logger "ggmlpy"
                       gets both at its level INFO
        """
        started = perf_counter()
        if n_threads is not None:
            check_least("n_threads", n_threads, 1)
        SamplingParams(seed=None if seed == -1 else seed)  # an error now, not in the first call
        check_least("n_batch", n_batch, 1)
        check_least("n_ubatch", n_ubatch, 1)
        check_least("token_budget", token_budget, 0)
        cache_limit(cache_ram)
        adapters = with_scales("lora_adapters", lora_adapters)
        layout = choose_layout(kv_layout, kv_unified)
        self._file = open_overridden(model_path, kv_overrides, rope)
        self.model = load_model(self._file)
        opener = self._opener = opener_for(
            self.model,
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx_seq,
            n_seq_max=n_seq_max,
            layout=layout,
            n_ubatch=min(n_ubatch, n_batch),
            type_k=type_k,
            type_v=type_v,
            kv_rotation=kv_rotation,
            flash_attn=flash_attn,
            backend=backend,
            n_threads=n_threads,
            n_gpu_layers=n_gpu_layers,
            override_tensors=override_tensors,
            fit=fit,
        )
        self.fitted = opener.fitted
        self._context = opener.open()
        metadata = self._file.metadata
        tokenizer = Tokenizer.from_metadata(metadata, self._file.name)
        n_rows = self.model.hparams.n_vocab
        if tokenizer.vocab.has_tokens and tokenizer.n_vocab > n_rows:
            raise WeightError(
                f'{self._file.name}: key "tokenizer.ggml.tokens" has {tokenizer.n_vocab} tokens,'
                f' must be at most {n_rows}, the rows of "token_embd.weight"'
            )
        drafter = None
        if draft_model is not None:
            source, loaded = _draft_source(draft_model)
            drafter = open_drafter(source, self._context, opener, tokenizer, loaded)
        engine = Engine(self._context, tokenizer, token_budget, cache_ram, drafter)
        super().__init__(engine, tokenizer, metadata, str(path_of(model_path)))
        self.seed = seed
        self.verbose = verbose
        self._n_batch = n_batch
        with _beside(tokenizer.prepare, give_back_free_memory), opener.tells_what_fits():
            self._context.warm_up()  # mostly packs and reads weights without the GIL
        for path, scale in adapters:
            self.load_lora(path, scale)
        if control_vectors:
            self.set_control_vectors(control_vectors, control_vector_layer_range)
        self._file.release_metadata()
        self.load_s = self._answers.load_s = perf_counter() - started
        if verbose or log.is_logged():
            log.show(self.describe())

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | PathLike[str] | None = None,
        *,
        token: str | None = None,
        revision: str | None = None,
        offline: bool = False,
        **kwargs: Any,
    ) -> Self:
        """A model of a repository on a Hugging Face hub, downloaded if the cache does not have it.

        repo_id           `user/repo`, or `user/repo:quant` as in "ggml-org/gemma-3-1b-it-GGUF:Q8_0"
        filename          the file's name in the repository, or a glob as "*Q8_0.gguf" that matches
                          one model; None: by its quantization, else Q4_K_M, else Q8_0, else the
                          first. All parts of a split model are downloaded
        additional_files  names or globs of other files to download
        local_dir         the folder for the files, instead of the hub's cache
        cache_dir         another folder for the cache
        token             of access, to a private or gated repository; None: $HF_TOKEN, or that of
                          `hf auth login`
        revision          a branch, a tag or a commit; None: main
        offline           use what the cache has
        kwargs            those of `Llama`

        `local_dir_use_symlinks` is not used. A download that was cut goes on from there, except
        into `local_dir`. Its progress goes to the listener of `ggmlpy.listening`, else it is shown
        on a terminal. Raises MissingPackage without huggingface_hub, MissingFile for what does not
        exist, DownloadError for what cannot be downloaded.
        """
        path = model_of_repo(
            repo_id,
            filename,
            more_files=additional_files or (),
            token=token,
            revision=revision,
            local_dir=local_dir,
            cache_dir=cache_dir,
            offline=offline,
        )
        return cls(path, **kwargs)

    # --- what it is ---

    @property
    def n_plans_built(self) -> int:
        """Graphs built and planned so far; steps of a shape seen before add none."""
        return self._context.n_plans_built

    def describe(self) -> str:
        """A table of sizes, caches, memory and backends, as text."""
        return summary(*self._described())

    def _described(self) -> tuple[GGUFFile, Context, int, int, str, float, list[Row]]:
        budget, cache = self.engine.token_budget, str(self.engine.slots.cache)
        drafter = self.engine.drafter
        more = [] if drafter is None else [("draft", str(drafter))]
        more += [(f"lora {id}", str(adapter)) for id, adapter in self.lora_adapters.items()]
        return self._file, self._context, self._n_batch, budget, cache, self.load_s, more

    def _repr_html_(self) -> str:
        """For notebooks: the rows of `describe`."""
        return table(repr(self), [] if self._closed else summary_rows(*self._described()))

    def __repr__(self) -> str:
        if self._closed:
            return f"Llama({Path(self.model_path).name!r}, closed)"
        h, sizes = self.model.hparams, self._context.sizes
        return (
            f"Llama({Path(self.model_path).name!r}, {h.architecture}, {h.n_layer} layers,"
            f" n_ctx={sizes.n_ctx}, n_ctx_seq={sizes.n_ctx_seq}, n_seq_max={sizes.n_seq_max},"
            f" backend={self._context.backends[0].name!r})"
        )

    def _embedding_context(self) -> Context:
        return self._opener.open_for_embeddings(N_SEQ_MAX)

    # --- its end ---

    def close(self) -> None:
        """End all running requests, close the file, and give the memory back.

        Everything else raises GgmlpyError from then on. What others still refer to, such as a
        context that `llm.engine` gave, keeps its memory. Raises GgmlpyError during a step, as in a
        logits_processor.
        """
        if self._closed:
            return
        self._answers.close()
        self._closed = True
        if self.engine.drafter is not None:
            self.engine.drafter.close()
        self.engine.adapters.close()
        self._file.close()
        for name in _GONE_WHEN_CLOSED:
            self.__dict__.pop(name, None)
        give_back_free_memory()

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            if name in _GONE_WHEN_CLOSED and self.__dict__.get("_closed"):
                raise GgmlpyError(f"{self.model_path}: the model is closed")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _draft_source(source: DraftSource | Llama) -> tuple[DraftSource, Loaded | None]:
    """What drafts, and what is used of a Llama if one does."""
    if isinstance(source, Llama):
        source = DraftModel(source)
    if not isinstance(source, DraftModel) or not isinstance(source.model, Llama):
        return source, None
    llm = source.model
    return source, Loaded(llm.model, llm.tokenizer, Path(llm.model_path).name, llm._opener)


@contextmanager
def _beside(*steps: Callable[[], None]) -> Iterator[None]:
    """Run the steps in order, in a thread that ends with the block."""

    def do() -> None:
        for step in steps:
            step()

    with ThreadPoolExecutor(1, "ggmlpy-load") as pool:
        with starting_threads():
            done = pool.submit(do)
        yield
        done.result()
