"""Parameters of kernels as numpy types: the structs of `kernels/common.cuh`.

    ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("eps", "f4")], align=True)

is `struct Args { Tensor y; Tensor x; float eps; };`.
"""

from __future__ import annotations

import numpy as np

# A number of elements: its bound, and the index of its form in the counts of a run, or -1.
COUNT = np.dtype([("bound", "i4"), ("form", "i4")], align=True)

# An operand or result: address of the first element, elements and byte strides per dimension.
TENSOR = np.dtype([("data", "u8"), ("ne", COUNT, (4,)), ("nb", "i8", (4,))], align=True)

# Scratch memory of a step.
SPAN = np.dtype([("data", "u8"), ("n_bytes", "i8")], align=True)

# The second parameter of every kernel: addresses of the run's counts and of its failure, and which
# launch of the plan this is, from 1 on.
RUN = np.dtype([("counts", "u8"), ("failure", "u8"), ("launch", "i4"), ("unused", "i4")])

# The first index out of range of a run: the launch that found it, 0 if there is none.
FAILURE = np.dtype([("launch", "i4"), ("unused", "i4"), ("value", "i8")])
