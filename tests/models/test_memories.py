"""What every architecture keeps of past tokens: in pages, saved and loaded, at other positions.

Each of these gives the bits of a context that did not need it, or is refused with the reason.
Moving is not exact, because keys are rotated twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Unsupported
from ggmlpy.backends import get_backend
from ggmlpy.memory.fingerprint import Fingerprint
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.models import Model
from ggmlpy.runtime.context import Context
from tests.models.checks import nmse
from tests.models.test_architectures import SHALLOW, TOKENS, context, loaded

N = 13
CUTS = (11, 12, N)  # a prompt, then two tokens
DISTANCE = 5
NO_FILE = Fingerprint({}, "")
# Their q grows with the position, so a layer's keys depend on those of the tokens before it.
WITH_TEMPERATURE = ("mistral3", "mistral3-experts")


def opened(model: Model, **options: Any) -> Context:
    # Only the hash of n-grams, a function of Python, runs on the reference backend.
    if model.hparams.architecture != "qwen4exp":
        return context(model, **options)
    return context(model, [get_backend("cpu", 2), get_backend("reference", 1)], **options)


def decoded(run: Context, seq: int = 0, until: int = N) -> NDArray[np.float32]:
    """The results of the first tokens of a sequence."""
    if not run.is_causal:
        return run.decode(TOKENS[:N], seq=seq, all_logits=True).copy()
    if run.encoder is not None:
        run.encode(TOKENS[:7], seq=seq)
    parts = [TOKENS[a:b] for a, b in zip((0, *CUTS), CUTS, strict=False) if b <= until]
    return np.concatenate([run.decode(part, seq=seq, all_logits=True).copy() for part in parts])


@pytest.mark.parametrize("name", SHALLOW)
def test_pages_states_and_other_positions(tmp_path: Path, name: str) -> None:
    model = loaded(tmp_path, name)
    run = opened(model)
    assert run.is_causal == model.hparams.is_causal
    want = decoded(run)
    pages = opened(model, kv_layout="paged", n_seq_max=2, n_ctx=256)
    decoded(pages, seq=0)
    np.testing.assert_array_equal(decoded(pages, seq=1), want, "paged")
    if not run.is_causal:
        return
    run.clear()
    decoded(run, until=N - 1)
    check_saved(run, opened(model, kv_layout="unified", n_seq_max=2, n_ctx=256), want[-1])
    check_moved(run, want[-1], 1e-2 if name in WITH_TEMPERATURE else 1e-8)


def check_saved(run: Context, other: Context, want: NDArray[np.float32]) -> None:
    """What `run` holds, saved and loaded into another layout, gives the last token `want`."""
    if run.encoder is not None:
        with pytest.raises(Unsupported, match="sequences of an encoder-decoder model cannot be"):
            take_state(run.memory, 0)
        return
    state = LlamaState({0: take_state(run.memory, 0, TOKENS[: N - 1])}, "m", NO_FILE)
    again = LlamaState.from_bytes(state.to_bytes())
    n_vocab = other.model.hparams.n_vocab
    again.check_fits("m", NO_FILE, other.memory, n_vocab)
    decoded(other, seq=0)
    put_state(other.memory, 1, again.sequences[0])
    got = other.decode(TOKENS[N - 1 : N], seq=1)[0]
    np.testing.assert_array_equal(got, want, "loaded")


def check_moved(run: Context, want: NDArray[np.float32], most: float) -> None:
    """After all tokens have moved the last one is like `want`, since attention is relative."""
    model = run.model
    reason = "the model has recurrent layers" if run.memory.recurrent else model.fixed_by
    if reason:
        with pytest.raises(Unsupported, match=f"^positions cannot move: {reason}$"):
            run.seq_add(0, 0, None, DISTANCE)
        got = run.decode(TOKENS[N - 1 : N])[0]
        np.testing.assert_array_equal(got, want, "refused")
        return
    run.seq_add(0, 0, None, DISTANCE)
    assert run.n_past() == N - 1 + DISTANCE
    assert nmse(run.decode(TOKENS[N - 1 : N])[0], want) < most
