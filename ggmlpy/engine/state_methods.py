"""The methods of `Llama` that save and restore what the memory holds."""

from __future__ import annotations

from pathlib import Path

from ggmlpy.common.arguments import kind_of
from ggmlpy.common.own_folder import default_folder
from ggmlpy.engine.embedding_methods import EmbeddingMethods
from ggmlpy.engine.slot_states import load_states, save_states
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.kept_digests import KeptDigests
from ggmlpy.memory.fingerprint import Fingerprint
from ggmlpy.memory.llama_state import LlamaState


class StateMethods(EmbeddingMethods):
    """A model whose sequences can be saved, restored and cleared."""

    _file: GGUFFile
    _fingerprint: Fingerprint | None = None

    @property
    def held_tokens(self) -> dict[int, list[int]]:
        """The tokens that the memory holds, by sequence; prompts reuse them as a prefix.

        Raises GgmlpyError during a step, as in a logits_processor.
        """
        with self._answers.exclusive():
            self.engine.check_idle_step()
            slots = self.engine.slots.all
            return {slot.seq: list(slot.tokens) for slot in slots if slot.tokens}

    def save_state(self, path: str | Path | None = None, *, seq: int | None = None) -> LlamaState:
        """The state of sequence `seq`, or of all sequences, for `load_state` here or elsewhere.

        With `path` it is also written to a file, atomically. The first state that a model saves or
        loads hashes its whole file, once for all processes; `progress.listening` reports the
        progress. Raises ArgumentError for a sequence that does not exist, FileError for a file that
        cannot be written, and for a model file that cannot be read or has changed, GgmlpyError
        during a step, as in a logits_processor.
        """
        self._check_open()
        fingerprint = self._own_fingerprint()  # outside the lock, so that others can generate
        with self._answers.exclusive():
            self.engine.check_idle_step()
            states = save_states(self.engine.slots, seq)
        state = LlamaState(states, Path(self.model_path).name, fingerprint)
        if path is not None:
            state.write(path)
        return state

    def load_state(self, state: LlamaState | bytes | str | Path, *, seq: int | None = None) -> None:
        """Replace what the memory holds by a state that `save_state` saved.

        `state` may also be the bytes of one, or the path of its file. It may come from a model with
        other n_ctx, streams, K/V types (K and V are converted), flash_attn and backend, but with
        the same weights and hyper-parameters. With `seq` a state of one sequence becomes that
        sequence, and the others stay.

        Raises StateError for a damaged state or one of another model, ArgumentError for a sequence
        that does not exist, CacheFull if it does not fit, GgmlpyError while requests run. Nothing
        is changed then.
        """
        self._check_open()
        if isinstance(state, bytes | bytearray | memoryview):
            state = LlamaState.from_bytes(bytes(state))
        elif isinstance(state, str | Path):
            state = LlamaState.read(state)
        elif not isinstance(state, LlamaState):
            raise ArgumentError(
                f"load_state: state is {kind_of(state)}: it must be a LlamaState, bytes or a path"
            )
        fingerprint = self._own_fingerprint()
        with self._answers.exclusive():
            self.engine.check_idle_step()
            state.check_fits(
                self._file.name, fingerprint, self.engine.context.memory, self.engine.n_vocab
            )
            load_states(self.engine.slots, state.sequences, seq)

    def _own_fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = Fingerprint.of(self._file, KeptDigests(default_folder()))
        return self._fingerprint

    def reset(self) -> None:
        """Clear the memory, and end all running requests.

        This does not change later results, but prompts cannot reuse anything.
        """
        self._answers.reset()
