"""A CUDA device on the CPU: runs the same `.cu` files, and checks what they do.

A kernel is compiled as C++ with a header that defines CUDA's words (`cuda_on_cpu.hpp`). Its loads
and stores call the runtime (`emulator.cpp`), which knows what each launch may access. It is for
tests: a GPU would compute the same, but would not tell of a race or a read of undefined memory.
"""

from ggmlpy.backends.cuda.emulated.compiler import available
from ggmlpy.backends.cuda.emulated.driver import EmulatedDriver
from ggmlpy.backends.cuda.emulated.work import EmulationError

__all__ = ["EmulatedDriver", "EmulationError", "available"]
