"""Other packages import it in the place of llama-cpp-python."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import pytest

from ggmlpy.compat import llama_cpp
from ggmlpy.compat.llama_cpp import (
    Llama,
)
from ggmlpy.compat.llama_cpp._utils import suppress_stdout_stderr
from ggmlpy.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding

IMPORTS = """
from llama_cpp import llama_cpp as inner
from llama_cpp._logger import set_verbose
from llama_cpp._utils import suppress_stdout_stderr
from llama_cpp.llama import CreateCompletionResponse
import llama_cpp.llama_cpp as lc
"""


def test_output_can_be_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    for disable in (True, False):
        with suppress_stdout_stderr(disable=disable):
            print("out", file=sys.stdout)
            print("err", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os.write(1, b"1")
            os.write(2, b"2")
        assert capfd.readouterr() == (("out\n1", "err\n2") if disable else ("", ""))
        print("again", flush=True)
        os.write(2, b"again")
        assert capfd.readouterr() == ("again\n", "again")


def test_other_packages_can_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, name)
    llama_cpp.install_as_llama_cpp()
    try:
        assert import_module("llama_cpp").Llama is Llama
        speculative = import_module("llama_cpp.llama_speculative")
        assert speculative.LlamaPromptLookupDecoding is LlamaPromptLookupDecoding
        script: dict[str, Any] = {}
        exec(IMPORTS, script)
        assert script["CreateCompletionResponse"] is llama_cpp.CreateCompletionResponse
        assert script["lc"].GGML_TYPE_Q8_0 == script["inner"].GGML_TYPE_Q8_0 == 8
        assert script["lc"].llama_max_devices() == llama_cpp.llama_max_devices()
        with pytest.raises(AttributeError, match="C interface"):
            _ = script["lc"].llama_decode
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
            del sys.modules[name]
    monkeypatch.setitem(sys.modules, "llama_cpp", sys)
    with pytest.raises(ImportError, match="imported already"):
        llama_cpp.install_as_llama_cpp()
