"""The module of llama.cpp's constants and of the functions that ask what the library can do.

import llama_cpp.llama_cpp as C        # C.GGML_TYPE_Q8_0, C.llama_supports_gpu_offload()
"""

from __future__ import annotations

from ggmlpy.compat.llama_cpp.constants import *  # noqa: F403 - one list of names
from ggmlpy.compat.llama_cpp.library import *  # noqa: F403
from ggmlpy.compat.llama_cpp.library import absent


def __getattr__(name: str) -> object:
    raise absent(name)
