"""Every CPU kernel, one file per family. Importing this declares them all; nothing is compiled."""

from ggmlpy.backends.cpu.kernels import norm

__all__ = ["norm"]
