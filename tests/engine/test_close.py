"""What `close` gives back, and that nothing works after it."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import ggmlpy
from ggmlpy import Llama
from ggmlpy.common import log
from ggmlpy.errors import GgmlpyError
from tests.resident import linux, resident_bytes

# What is known without the model.
STAYS = {"close", "from_pretrained", "load_s", "model_path", "seed", "verbose"}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "create_chat_completion": ([{"role": "user", "content": "x"}],),
    "create_completion": ("x",),
    "detokenize": ([1],),
    "embed": ("x",),
    "generate": (["x"],),
    "load_lora": ("x.gguf",),
    "load_state": (b"",),
    "logits": ([1],),
    "pieces": ("x", ggmlpy.SamplingParams()),
    "rank": ("x", ["y"]),
    "request": ("x",),
    "score": (["x"], ["y"]),
    "score_tokens": ([([1], [2])],),
    "set_control_vectors": ([],),
    "tokenize": ("x",),
    "unload_lora": (object.__new__(ggmlpy.LoraAdapter),),
}


def everything_of(llm: Llama) -> dict[str, Any]:
    """What a model holds: by a name, an object that can be referred to weakly."""
    context, memory = llm.engine.context, llm.engine.context.memory
    assert llm._embedder is not None
    found = {
        "context": context,
        "memory": memory,
        "plans": context.plans,
        "model": llm.model,
        "file": llm._file.tensors and llm._file._parts[0]._file,
        "tokenizer": llm.tokenizer,
        "engine": llm.engine,
        "embedder": llm._embedder,
    }
    for name, leaf in llm.model.weights.leaves.items():
        found[name] = leaf
        assert leaf.place is not None
        found[f"{name}, its buffer"] = leaf.place.buffer
    return found


def weak(objects: dict[str, Any]) -> dict[str, weakref.ref[Any]]:
    found = {}
    for name, each in objects.items():
        try:
            found[name] = weakref.ref(each)
        except TypeError:  # one with slots
            assert name in ("file", "engine"), name
    return found


def test_closing_lets_go_of_all(tiny_path: Path) -> None:
    llm = Llama(tiny_path, backend="cpu", n_threads=2, n_ctx=128, n_seq_max=2)
    stream = llm("abc", stream=True, max_tokens=8)
    next(stream)
    llm.create_completion("abcd", max_tokens=4)
    llm.embed("abc")
    held = weak(everything_of(llm))
    assert len(held) > 40
    llm.close()
    assert [name for name, ref in held.items() if ref() is not None] == ["tokenizer"]
    with pytest.raises(GgmlpyError, match="was reset or closed"):
        list(stream)
    del stream
    assert held["tokenizer"]() is None


@linux
def test_closing_unmaps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "stories.gguf"
    path.write_bytes(ggmlpy.packaged_model().read_bytes())
    with Llama(path, backend="reference", n_ctx=16) as llm:
        llm("Once", max_tokens=1)
        assert resident_bytes(path) > 0
    assert resident_bytes(path) == 0


def test_no_thread_stays(tiny_path: Path) -> None:
    with Llama(tiny_path, backend="reference"):
        pass
    before = threading.active_count()
    for _ in range(3):
        with Llama(tiny_path, backend="reference") as llm:
            llm("abc", max_tokens=2)
    assert threading.active_count() == before


def test_nothing_works_after_it(tiny_path: Path) -> None:
    llm = Llama(tiny_path, backend="reference")
    names = {name for name in dir(llm) if not name.startswith("_")}
    llm.close()
    llm.close()
    assert repr(llm) == "Llama('tiny.gguf', closed)"
    assert names >= STAYS
    for name in sorted(names - STAYS):
        with pytest.raises(GgmlpyError, match=r"tiny\.gguf: the model is closed"):
            value = getattr(llm, name)
            assert inspect.ismethod(value), f"{name} is {value!r}"
            required = [
                ["x"]
                for parameter in inspect.signature(value).parameters.values()
                if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD
            ]
            value(*ARGUMENTS.get(name, required))
    for use in (lambda: llm("x"), lambda: llm.__enter__()):
        with pytest.raises(GgmlpyError, match="closed"):
            use()
    for name in STAYS:
        getattr(llm, name)
    assert not hasattr(llm, "no_such_name")


def test_a_step_cannot_close(tiny: Llama) -> None:
    def closes(tokens: Any, logits: Any) -> Any:
        tiny.close()
        return logits

    with pytest.raises(GgmlpyError, match="a step is running"):
        tiny("abc", max_tokens=1, logits_processor=closes)
    assert tiny("abc", max_tokens=1)


# --- what is said ---


def test_verbose_is_printed_where_nothing_is_logged(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Llama(tiny_path, backend="reference", verbose=True) as llm:
        llm("abc", max_tokens=1)
    err = capsys.readouterr().err
    assert "n_ctx_seq" in err
    assert "prompt" in err


def test_the_logger_gets_it(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "ggmlpy"),
        Llama(tiny_path, backend="reference") as llm,
    ):
        about = llm.describe()
        llm("abc", max_tokens=1)
        timings = str(llm.timings)
    said = [(r.name, r.levelno, r.getMessage()) for r in caplog.records]
    assert said == [("ggmlpy", logging.INFO, about), ("ggmlpy", logging.INFO, timings)]
    assert capsys.readouterr().err == ""


def test_without_a_handler_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    log.show("one")
    log.show("two", printed=False)
    assert capsys.readouterr().err == "one\n"


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    code = "import ggmlpy; print(ggmlpy.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ggmlpy.__version__ == version("ggmlpy")
