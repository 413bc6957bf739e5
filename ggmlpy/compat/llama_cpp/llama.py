"""`Llama` with llama-cpp-python's names, arguments and results, on ggmlpy's engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.cores import default_n_threads
from ggmlpy.compat.llama_cpp import constants, llama_chat_format
from ggmlpy.compat.llama_cpp.context_view import ContextView
from ggmlpy.compat.llama_cpp.embedding import EmbeddingMethods
from ggmlpy.compat.llama_cpp.evaluation import (
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    Scores,
    StoppingCriteria,
    StoppingCriteriaList,
)
from ggmlpy.compat.llama_cpp.llama_cache import (
    BaseLlamaCache,
    LlamaCache,
    LlamaDiskCache,
    LlamaRAMCache,
    longest_token_prefix,
)
from ggmlpy.compat.llama_cpp.llama_chat_format import Jinja2ChatFormatter
from ggmlpy.compat.llama_cpp.llama_grammar import LlamaGrammar
from ggmlpy.compat.llama_cpp.llama_speculative import LlamaDraftModel
from ggmlpy.compat.llama_cpp.llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from ggmlpy.compat.llama_cpp.llama_types import *  # noqa: F403 - scripts import them from here too
from ggmlpy.compat.llama_cpp.model_view import ModelView
from ggmlpy.compat.llama_cpp.parameters import (
    check_parameters,
    check_unknown,
    rope_overrides,
)
from ggmlpy.compat.llama_cpp.saved import LlamaState
from ggmlpy.gguf import GGUFFile
from ggmlpy.hub.fetch import model_of_repo
from ggmlpy.llama import Llama as Engine
from ggmlpy.text.tokenizer import Tokenizer

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]


class Llama(EmbeddingMethods):
    """A model file, with llama-cpp-python's interface."""

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = constants.LLAMA_SPLIT_MODE_LAYER,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: dict[str, bool | int | float | str] | None = None,
        seed: int = constants.LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = constants.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        pooling_type: int = constants.LLAMA_POOLING_TYPE_UNSPECIFIED,
        attention_type: int = constants.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool = False,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: llama_chat_format.LlamaChatCompletionHandler | None = None,
        draft_model: LlamaDraftModel | None = None,
        tokenizer: BaseLlamaTokenizer | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        """Load a model. `docs/llama-cpp-python.md` says what each argument means here.

        Arguments without effect here issue a NoEffect warning unless they have their default; those
        that would change results and are not available raise Unsupported. `seed` 0xFFFFFFFF, 0 and
        -1 are random ones. Raises ValueError for a file that does not exist or cannot be used.
        """
        self._engine: Engine | None = None
        self._parameters: dict[str, Any] = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "kwargs", "__class__")
        }
        check_parameters(self._parameters)
        if n_threads is not None and n_threads <= 0:  # the default, as there
            self._parameters["n_threads"] = None
        check_unknown(kwargs)
        path = os.fspath(model_path)
        if not Path(path).exists():
            raise ValueError(f"Model path does not exist: {path}")
        self.model_path = path
        self.verbose = verbose
        self.chat_format = chat_format
        self.chat_handler = chat_handler
        self.spm_infill = spm_infill
        self.tensor_split, self.kv_overrides, self.numa = tensor_split, kv_overrides, numa
        self.lora_base, self.lora_scale, self.lora_path = lora_base, lora_scale, lora_path
        self._embedding = embedding
        self._pooling_type = pooling_type
        tokenizer_of_file = self._load(vocab_only)
        self.n_threads = self.n_threads_batch = self._n_threads_in_use()
        self._model = ModelView(self._file, tokenizer_of_file)
        self.metadata = self._model.metadata()
        self.tokenizer_ = LlamaTokenizer(self) if tokenizer is None else tokenizer
        n_ctx = (n_ctx or self._model.n_ctx_train()) if vocab_only else self._model_in_use.n_ctx()
        super().__init__(
            self._model.n_vocab() if vocab_only else self._model_in_use.n_vocab(),
            n_ctx,
            seed=seed or constants.LLAMA_DEFAULT_SEED,
            n_batch=min(n_ctx, n_batch),
            logits_all=logits_all or draft_model is not None,
        )
        self.last_n_tokens_size = last_n_tokens_size
        self.draft_model = draft_model
        self.model_params = self._values(_MODEL)
        self.context_params = self._values(_CONTEXT)
        self.context_params.n_ctx, self.context_params.n_batch = n_ctx, self.n_batch
        self.context_params.n_seq_max = 1
        self.context_params.embeddings = embedding
        self.context_params.n_threads = self.context_params.n_threads_batch = self.n_threads
        self._chat_handlers = self._handlers_of_file()
        self._choose_chat_format()

    def _load(self, vocab_only: bool) -> Tokenizer:
        """Load the model, or open its file. Returns its tokenizer."""
        if vocab_only:
            self._file = GGUFFile.open(self.model_path)
            return Tokenizer.from_metadata(self._file.metadata, self._file.name)
        p = self._parameters
        n_batch = min(p["n_ctx"], p["n_batch"]) if p["n_ctx"] else p["n_batch"]
        self._engine = Engine(
            self.model_path,
            n_ctx=p["n_ctx"],
            n_batch=n_batch,
            n_ubatch=min(n_batch, p["n_ubatch"]),
            n_threads=p["n_threads"],
            n_gpu_layers=p["n_gpu_layers"],
            type_k="f16" if p["type_k"] is None else p["type_k"],
            type_v="f16" if p["type_v"] is None else p["type_v"],
            kv_overrides=p["kv_overrides"],
            rope=rope_overrides(p),
            draft_model=p["draft_model"],
            lora_adapters=[(p["lora_path"], p["lora_scale"])] if p["lora_path"] else [],
            verbose=self.verbose,
        )
        self._file = self._engine._file
        return self._engine.tokenizer

    def _n_threads_in_use(self) -> int:
        """CPU threads: of the backend, or of a vocabulary only what a model would get."""
        backends = [] if self._engine is None else self._engine._context.backends
        on_cpu = (each.n_threads for each in backends if isinstance(each, CpuBackend))
        return next(on_cpu, self._parameters["n_threads"] or default_n_threads())

    def _values(self, names: Sequence[str]) -> SimpleNamespace:
        """Arguments by name, where llama-cpp-python has a struct."""
        return SimpleNamespace(**{name: self._parameters[name] for name in names})

    # --- the chat template ---

    def _handlers_of_file(self) -> dict[str, llama_chat_format.LlamaChatCompletionHandler]:
        m = self._model
        bos, eos = m.token_bos(), m.token_eos()
        bos_token = m.token_get_text(bos) if bos >= 0 else ""
        eos_token = m.token_get_text(eos) if eos >= 0 else ""
        return {
            name: Jinja2ChatFormatter(
                template, eos_token, bos_token, stop_token_ids=[eos]
            ).to_chat_handler()
            for name, template in _templates(self.metadata).items()
        }

    def _choose_chat_format(self) -> None:
        if self.chat_format is not None or self.chat_handler is not None:
            return
        if "chat_template.default" in self._chat_handlers:
            guessed = llama_chat_format.guess_chat_format_from_gguf_metadata(self.metadata)
            self.chat_format = guessed or "chat_template.default"
        else:
            self.chat_format = "llama-2"

    # --- properties ---

    def n_ctx(self) -> int:
        """Tokens of the context."""
        return self._n_ctx

    def n_embd(self) -> int:
        """Elements of a token's embedding."""
        return self._model.n_embd()

    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return self._n_vocab

    def tokenizer(self) -> LlamaTokenizer:
        """The tokenizer of the file."""
        return LlamaTokenizer(self)

    def token_eos(self) -> int:
        """The token that ends a text, -1 if there is none."""
        return self._model.token_eos()

    def token_bos(self) -> int:
        """The token that begins a text, -1 if there is none."""
        return self._model.token_bos()

    def token_nl(self) -> int:
        """The token of a line break."""
        return self._model.token_nl()

    @property
    def _ctx(self) -> ContextView:
        """What scripts ask of the context; made anew, so that it does not keep the model."""
        return ContextView(self)

    @property
    def ctx(self) -> Any:
        """Not available: llama-cpp-python has a pointer of the C interface here."""
        raise AttributeError(_NO_POINTERS.format("ctx", "engine"))

    @property
    def model(self) -> Any:
        """Not available: llama-cpp-python has a pointer of the C interface here."""
        raise AttributeError(_NO_POINTERS.format("model", "model"))

    @property
    def ggmlpy(self) -> Engine:
        """The `ggmlpy.Llama` that runs the model."""
        return self._model_in_use

    # --- files and processes ---

    def __getstate__(self) -> dict[str, Any]:
        """The arguments: the model is loaded again where it is unpickled."""
        return dict(self._parameters)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def close(self) -> None:
        """Free the memory of the model. Most methods raise RuntimeError then."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._free()
            engine.close()
        elif self._parameters["vocab_only"]:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it was loaded
            self.close()

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: list[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | Literal["auto"] = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Llama:
        """A model of a repository on a hub, whose file matches `filename`, a name or a pattern.

        Files go to the hub's cache, or `cache_dir`, or as themselves to `local_dir`. `kwargs` are
        those of `Llama`. Needs the package huggingface_hub. Raises MissingFile (a ValueError) if
        not just one file matches.
        """
        path = model_of_repo(
            repo_id,
            filename,
            more_files=additional_files or (),
            local_dir=local_dir,
            cache_dir=cache_dir,
        )
        return cls(model_path=str(path), **kwargs)

    @staticmethod
    def logits_to_logprobs(logits: Scores | list[Any], axis: int = -1) -> Scores:
        """log(softmax(logits)) along an axis, in f32."""
        x = np.asarray(logits, np.single)
        top = x.max(axis=axis, keepdims=True)
        below = x - np.where(np.isfinite(top), top, np.single(0))
        with np.errstate(divide="ignore"):
            total = np.log(np.exp(below).sum(axis=axis, keepdims=True))
        out: Scores = below - total
        return out

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """How many of their first tokens two sequences have in common."""
        return longest_token_prefix(a, b)


_MODEL = ("n_gpu_layers", "split_mode", "main_gpu", "vocab_only")

_CONTEXT = (
    *("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "type_k", "type_v"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "pooling_type", "attention_type"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
    *("embedding", "offload_kqv", "flash_attn", "op_offload", "swa_full", "no_perf"),
)

_NO_POINTERS = (
    "Llama.{0} is a pointer of llama.cpp's C interface, which is not there:"
    " Llama.ggmlpy.{1} is the object that has its functions"
)


def _templates(metadata: Mapping[str, str]) -> dict[str, str]:
    """The chat templates of a file by the names of their formats."""
    prefix = "tokenizer.chat_template"
    named = {
        key.removeprefix("tokenizer."): text
        for key, text in metadata.items()
        if key.startswith(f"{prefix}.")
    }
    if prefix in metadata:
        named["chat_template.default"] = metadata[prefix]
    return named
