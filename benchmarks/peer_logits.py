"""llama.cpp's logits of a model, in a process of its own and kept as an .npz file.

    /path/to/its/python -m benchmarks.peer_logits MODEL OUT f32       what `Peer.record` runs

The tokens are seeded: a prompt of N_PROMPT in one batch, then N_DECODE tokens one at a time, with
outputs everywhere. llama.cpp computes them as exactly as it can: K and V in f32, no flash
attention, weights as they are in the file, two threads. Of K and V in another type it is asked with
flash attention, without which it has no quantised V. A model with an encoder and a decoder
encodes the prompt first; of a model that is only an encoder the outputs are its embeddings.

The child needs llama-cpp-python's bindings and numpy only, since it runs in that interpreter. It
is a child because llama.cpp aborts the process where an assertion fails.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_PROMPT = 37
N_DECODE = 4
N_CTX = 128
N_UBATCH = 64
SEED = 1
ROOT = Path(__file__).parents[1]
_LOAD_PLAINLY = 0  # LLAMA_LOAD_MODE_NONE: read, not mapped
_POOLING_NONE = 0
_ENCODERS = r"bert|-embed(ding)?$"  # architectures without logits, which has_decoder does not tell
_ERROR = 4  # ggml's level of such messages


class PeerError(Exception):
    """llama.cpp is not where it must be, or cannot load or run a model: what it says."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What llama.cpp computes of a model."""

    tokens: NDArray[np.int64]  # [N_PROMPT + N_DECODE]
    logits: NDArray[np.float32]  # of every token, in numpy's order: [n_tokens, n_vocab]
    kind: str  # "logits", or "embeddings" of a model that is only an encoder
    has_memory: bool  # without it, the tokens after the prompt were run without what is before

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Raises KeyError for a file without what is recorded today."""
        with np.load(path) as kept:
            return cls(kept["tokens"], kept["logits"], str(kept["kind"]), bool(kept["has_memory"]))

    def save(self, path: Path) -> None:
        np.savez(
            path,
            tokens=self.tokens,
            logits=self.logits,
            kind=np.array(self.kind),
            has_memory=np.array(self.has_memory),
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """A built llama.cpp, with the interpreter that has llama-cpp-python's dependencies."""

    folder: Path  # llama.cpp's sources; what was built is in build/bin
    python: Path
    bindings: Path  # the folder that has the package llama_cpp
    timeout_s: float = 120

    @property
    def binaries(self) -> Path:
        return self.folder / "build" / "bin"

    @classmethod
    def given(cls, options: argparse.Namespace, timeout_s: float = 120) -> Peer:
        """What the options of `add_options` name. Raises PeerError if something is not there."""
        folder: Path = options.llama_cpp.resolve()
        peer = cls(folder, options.peer, options.bindings or folder.parent.parent, timeout_s)
        if not peer.binaries.is_dir():
            raise PeerError(f"--llama-cpp is {options.llama_cpp}: it has no build/bin; build it")
        if not (peer.bindings / "llama_cpp").is_dir():
            raise PeerError(
                f"{peer.bindings} has no package llama_cpp: --bindings names its folder"
            )
        return peer

    def version(self) -> str:
        code = (
            "import llama_cpp as l; print(l.__version__,"
            " '(llama.cpp ' + l.llama_version().decode() + ')')"
        )
        return self._run(["-c", code]).strip()

    def record(
        self,
        model: Path,
        out: Path,
        cache_type: str = "f32",
        n_vocab: int = 0,
        *,
        lora: Sequence[tuple[Path, float]] = (),
        control: Path | None = None,
    ) -> Recording:
        """Ask for a model's logits with a type of K and V, and keep them in `out`. Tokens are of
        the first `n_vocab`, 0 for all. The model has LoRA adapters with their scales, and the
        control vector of an .npy file, [n_layer - 1, n_embd]. Raises PeerError."""
        paths = str(model.resolve()), str(out.resolve())
        changes = {
            "lora": [[str(path.resolve()), scale] for path, scale in lora],
            "control": None if control is None else str(control.resolve()),
        }
        options = cache_type, str(n_vocab), json.dumps(changes)
        self._run(["-m", "benchmarks.peer_logits", *paths, *options])
        return Recording.load(out)

    def kept(self, model: Path, out: Path) -> Recording:
        """As `record`, or what is in `out` if that was made after the model. Raises PeerError."""
        if out.exists() and out.stat().st_mtime >= model.stat().st_mtime:
            try:
                return Recording.load(out)
            except KeyError:
                pass  # by an older version of this file
        return self.record(model, out)

    def _run(self, arguments: list[str]) -> str:
        environment = {
            **os.environ,
            "LLAMA_CPP_LIB_PATH": str(self.binaries.resolve()),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.bindings.resolve())]),
        }
        try:
            done = subprocess.run(
                [str(self.python.absolute()), *arguments],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"no answer after {self.timeout_s:g} s") from None
        except OSError as error:
            raise PeerError(f"{self.python}: {error.strerror}") from error
        if done.returncode:
            raise PeerError(_reason(done.stderr, done.returncode))
        return done.stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where llama.cpp is, and which models are run."""
    parser.add_argument("--llama-cpp", type=Path, required=True, help="its sources, built")
    parser.add_argument("--peer", type=Path, default=Path(sys.executable), help="its interpreter")
    parser.add_argument("--bindings", type=Path, help="the folder of the package llama_cpp")
    parser.add_argument("--only", default="", metavar="REGEX", help="models of some names")


def selected(names: Iterable[str], only: str, where: str) -> list[str]:
    """Those that match, in order. Raises PeerError if `only` is no pattern, or none matches."""
    try:
        found = sorted(name for name in names if re.search(only, name))
    except re.error as error:
        raise PeerError(f"--only is {only!r}, which is no regular expression: {error}") from None
    if not found:
        raise PeerError(f"--only is {only!r}: no name in {where} matches it")
    return found


def _reason(stderr: str, returncode: int) -> str:
    """The line that says why the child failed: a failed assertion, or the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    asserts = [line for line in lines if "GGML_ASSERT" in line or "GGML_ABORT" in line]
    if asserts:
        return asserts[0].rpartition("/")[2]
    return lines[-1] if lines and returncode > 0 else f"the process died with {returncode}"


# --- in the peer's interpreter --------------------------------------------------------------------


class _Model:
    """A model and a context, through llama-cpp-python's low-level interface."""

    def __init__(self, path: str, cache_type: str) -> None:
        self._cache_type = cache_type
        self.api: Any = importlib.import_module("llama_cpp")
        self._errors: list[str] = []
        self._log = self.api.llama_log_callback(self._note)  # must outlive the library's use of it
        self.api.llama_log_set(self._log, ctypes.c_void_p(0))
        self.api.llama_backend_init()
        options = self.api.llama_model_default_params()
        options.n_gpu_layers = 0
        options.use_extra_bufts = False
        options.load_mode = _LOAD_PLAINLY
        self.model: Any = self.api.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            raise self._fail("cannot load it")
        self.has_encoder = bool(self.api.llama_model_has_encoder(self.model))
        self.has_decoder = bool(self.api.llama_model_has_decoder(self.model))
        self.has_logits = self.has_decoder and not re.search(_ENCODERS, self._architecture())
        self.context: Any = self.api.llama_init_from_model(self.model, self._context_options())
        if not self.context:
            raise self._fail("cannot make a context")
        vocabulary = self.api.llama_model_get_vocab(self.model)
        self.n_vocab: int = self.api.llama_vocab_n_tokens(vocabulary)
        memory = self.api.llama_get_memory(self.context)
        self.has_memory = self.has_decoder and bool(memory)

    def _architecture(self) -> str:
        name = ctypes.create_string_buffer(64)
        self.api.llama_model_meta_val_str(self.model, b"general.architecture", name, len(name))
        return name.value.decode()

    def _context_options(self) -> Any:
        options = self.api.llama_context_default_params()
        options.n_ctx = N_CTX
        options.n_batch = options.n_ubatch = N_UBATCH
        options.n_seq_max = 1
        options.n_threads = options.n_threads_batch = 2
        type = getattr(self.api, f"GGML_TYPE_{self._cache_type.upper()}")
        options.type_k = options.type_v = type
        options.flash_attn_type = self._cache_type != "f32"
        if not self.has_logits:
            options.embeddings = True
            options.pooling_type = _POOLING_NONE
        return options

    def _note(self, level: int, text: bytes, user_data: Any) -> None:
        if level == _ERROR:
            self._errors.append(text.decode(errors="replace").strip())

    def _fail(self, what: str) -> PeerError:
        return PeerError("; ".join(self._errors[-2:]) or what)

    def add_adapters(self, files: Sequence[tuple[str, float]]) -> None:
        """Let the context have LoRA adapters."""
        loaded = [self.api.llama_adapter_lora_init(self.model, path.encode()) for path, _ in files]
        if not all(loaded):
            raise self._fail("cannot load an adapter")
        pointers = (self.api.llama_adapter_lora_p_ctypes * len(files))(*loaded)
        scales = (ctypes.c_float * len(files))(*(scale for _, scale in files))
        if self.api.llama_set_adapters_lora(self.context, pointers, len(files), scales):
            raise self._fail("cannot set adapters")

    def add_control_vector(self, path: str) -> None:
        """Let the context have a control vector in all layers but the first."""
        values = np.ascontiguousarray(np.load(path), np.float32)
        data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        n_layer, n_embd = values.shape
        if self.api.llama_set_adapter_cvec(self.context, data, values.size, n_embd, 1, n_layer + 1):
            raise self._fail("cannot set a control vector")

    def encode(self, tokens: list[int]) -> None:
        if self.api.llama_encode(self.context, self._batch(tokens, 0)):
            raise self._fail("cannot encode the prompt")

    def decode(self, tokens: list[int], n_past: int) -> list[NDArray[np.float32]]:
        """The logits (or the embeddings) of every token."""
        run = self.api.llama_decode if self.has_decoder else self.api.llama_encode
        if run(self.context, self._batch(tokens, n_past)):
            raise self._fail("cannot decode")
        return [self._output(i) for i in range(len(tokens))]

    def _batch(self, tokens: list[int], n_past: int) -> Any:
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = n_past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        return batch

    def _output(self, i: int) -> NDArray[np.float32]:
        if self.has_logits:
            found, n = self.api.llama_get_logits_ith(self.context, i), self.n_vocab
        else:
            found = self.api.llama_get_embeddings_ith(self.context, i)
            n = self.api.llama_model_n_embd_out(self.model)
        if not found:
            raise self._fail("has no output")
        return np.ctypeslib.as_array(found, (n,)).copy()


def _record(path: str, cache_type: str, n_vocab: int, changes: dict[str, Any]) -> Recording:
    model = _Model(path, cache_type)
    if changes["lora"]:
        model.add_adapters(changes["lora"])
    if changes["control"] is not None:
        model.add_control_vector(changes["control"])
    n_vocab = n_vocab or model.n_vocab
    tokens = np.random.default_rng(SEED).integers(0, n_vocab, N_PROMPT + N_DECODE)
    prompt = tokens[:N_PROMPT].tolist()
    if model.has_encoder and model.has_decoder:
        model.encode(prompt)
    rows = model.decode(prompt, 0)
    for n_past in range(N_PROMPT, N_PROMPT + N_DECODE):
        rows += model.decode([int(tokens[n_past])], n_past)
    kind = "logits" if model.has_logits else "embeddings"
    return Recording(tokens, np.stack(rows), kind, model.has_memory)


def main() -> None:
    path, out, cache_type, n_vocab, changes = sys.argv[1:]
    try:
        _record(path, cache_type, int(n_vocab), json.loads(changes)).save(Path(out))
    except PeerError as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
