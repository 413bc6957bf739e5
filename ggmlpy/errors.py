"""Every error that a file or a caller can cause.

    GgmlpyError
    ├── ArgumentError (TypeError, ValueError)  an argument of another type, or out of its range
    ├── ShapeError (ValueError)          a tensor's shape, type or strides do not fit the op
    ├── IndexOutOfRange (IndexError)     an index tensor has a value out of range
    ├── CallbackError (RuntimeError)     a function of the caller, called by a custom op, raised
    ├── FileError (ValueError)           a file cannot be used
    │   ├── MissingFile (FileNotFoundError)  there is no such file, or it is a folder
    │   ├── DownloadError                a file cannot be downloaded: no connection, no access
    │   ├── GGUFError                    not a GGUF file, or a damaged one
    │   ├── WeightError                  a tensor or key that the model needs is missing or wrong
    │   └── StateError                   not a saved state, a damaged one, or one of another model
    ├── TokenizerError (ValueError)      text cannot be tokenized with the file's vocabulary
    ├── TemplateError (ValueError)       a chat template cannot be used
    ├── GrammarError (ValueError)        a grammar or JSON schema cannot be used
    ├── SamplingError (ValueError)       a sampling parameter out of range, logits without a maximum
    ├── Unsupported (ValueError)         an architecture, mode or combination that is not available
    ├── MissingPackage (ImportError)     an optional package is needed that is not installed
    ├── BackendError (RuntimeError)      a backend is not installed, or cannot run here
    │   └── KernelError                  no backend has a kernel for a node
    ├── AllocationError (MemoryError)    there is not enough memory
    ├── BadBatch (ValueError)            tokens that do not fit the vocabulary, context or memory
    ├── WriteError (ValueError)          a node would write into memory that it must not change
    └── CacheFull (RuntimeError)         the KV cache has no free cells for the batch

ArgumentError and BadBatch are siblings. A wrong argument of a function (a size, a sequence that
does not exist) raises ArgumentError. Tokens that cannot be decoded raise BadBatch: a token outside
the vocabulary, a position that does not follow what the memory holds, more tokens than the context
of a sequence. ArgumentError is both a TypeError and a ValueError, since Python's own functions
raise either.

A message says where, what was found, and what must be there. Assertions check internal invariants
only.
"""

from __future__ import annotations


class GgmlpyError(Exception):
    """The root: `except ggmlpy.GgmlpyError` catches everything a file or a caller can cause."""


class ArgumentError(GgmlpyError, TypeError, ValueError):
    """An argument has a wrong type (a number for a tensor), is out of its range, or contradicts
    another one."""


class ShapeError(GgmlpyError, ValueError):
    """A tensor's shape, type or strides do not fit the op."""


class IndexOutOfRange(GgmlpyError, IndexError):
    """A value of an index tensor is negative, or not below the size of the indexed dimension."""


class CallbackError(GgmlpyError, RuntimeError):
    """A function of the caller that a custom op calls has raised; the cause is that error."""


class FileError(GgmlpyError, ValueError):
    """A file cannot be used."""


class MissingFile(FileError, FileNotFoundError):
    """There is no such file, or the path is a folder."""


class DownloadError(FileError):
    """A file cannot be downloaded: no connection, no access, or no space for it."""


class GGUFError(FileError):
    """Not a GGUF file, or a damaged one."""


class WeightError(FileError):
    """A tensor or key that the model needs is missing, or has the wrong shape or type."""


class StateError(FileError):
    """Not a saved state, a damaged one, or one of another model."""


class TokenizerError(GgmlpyError, ValueError):
    """Text cannot be tokenized with the vocabulary of the file."""


class TemplateError(GgmlpyError, ValueError):
    """A chat template cannot be used."""


class GrammarError(GgmlpyError, ValueError):
    """A grammar or a JSON schema that cannot be used, or cannot be followed any further."""


class SamplingError(GgmlpyError, ValueError):
    """A sampling or stop parameter is out of its range, or logits have no finite maximum."""


class Unsupported(GgmlpyError, ValueError):
    """An architecture, a mode or a combination of options that is not available here."""


class MissingPackage(GgmlpyError, ImportError):
    """An optional package is needed that is not installed."""


class BackendError(GgmlpyError, RuntimeError):
    """A backend is not installed, or cannot run on this machine."""


class KernelError(BackendError):
    """No backend in use has a kernel for a node."""


class AllocationError(GgmlpyError, MemoryError):
    """There is not enough memory, or not in one piece."""


class BadBatch(GgmlpyError, ValueError):
    """Tokens, positions or sequence ids of a batch that cannot be decoded."""


class CacheFull(GgmlpyError, RuntimeError):
    """The KV cache has no free cells for the batch; nothing was changed."""


class WriteError(GgmlpyError, ValueError):
    """A node would write into a weight, read-only memory, or memory that it also reads."""
