"""llama-cpp-python's interface on ggmlpy's engine.

    from ggmlpy.compat.llama_cpp import Llama        # instead of: from llama_cpp import Llama

Names, arguments, positions and results are those of llama-cpp-python 0.3.36.
`install_as_llama_cpp()` lets other packages, which import `llama_cpp`, use it too. The functions of
llama.cpp's C interface are not there: their names raise an error that says so.
"""

from __future__ import annotations

import sys
from typing import Any

from ggmlpy.compat.llama_cpp import (
    _logger,
    _utils,
    llama,
    llama_cache,
    llama_chat_format,
    llama_cpp,
    llama_grammar,
    llama_speculative,
    llama_tokenizer,
    llama_types,
)
from ggmlpy.compat.llama_cpp.constants import *  # noqa: F403 - one list of names
from ggmlpy.compat.llama_cpp.library import *  # noqa: F403
from ggmlpy.compat.llama_cpp.library import absent
from ggmlpy.compat.llama_cpp.llama import *  # noqa: F403
from ggmlpy.compat.llama_cpp.llama_types import *  # noqa: F403
from ggmlpy.compat.llama_cpp.parameters import NoEffect as NoEffect

__version__ = "0.3.36"
"""The version of llama-cpp-python whose interface this is."""

_MODULES = (
    _logger,
    _utils,
    llama,
    llama_cache,
    llama_chat_format,
    llama_cpp,
    llama_grammar,
    llama_speculative,
    llama_tokenizer,
    llama_types,
)


def install_as_llama_cpp() -> None:
    """Let `import llama_cpp`, in this process, mean this package. Call it before others import it.

    Raises ImportError if llama-cpp-python was imported already.
    """
    own = sys.modules[__name__]
    if sys.modules.get("llama_cpp", own) is not own:
        raise ImportError(
            "llama_cpp was imported already: call install_as_llama_cpp() before anything imports it"
        )
    sys.modules["llama_cpp"] = own
    for module in _MODULES:
        sys.modules[f"llama_cpp.{module.__name__.rpartition('.')[2]}"] = module


def __getattr__(name: str) -> Any:
    raise absent(name)
