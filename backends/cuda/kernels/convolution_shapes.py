"""What launchers of convolutions and of pooling share: signals, images and volumes as operands.

Kernels take [W, H, C, N], or [W, H, D, C * N] with the number of channels of a volume, which is 0
for images (convolution.cuh). Signals are images of one line.
"""

from __future__ import annotations

from ggmlpy.backends.cuda.kernel import Layout, Work
from ggmlpy.backends.step import Step
from ggmlpy.graph.tensor import Tensor

STEPS = 9  # numbers of the struct Steps
_LARGEST = 1 << 29  # of a parameter: then places in padded lines fit into 32 bits


def numbers_fit(step: Step) -> bool:
    """Whether kernels can compute the places of windows in 32 bits."""
    assert step.node.op is not None
    params = step.node.op.params().values()
    return all(value < _LARGEST for value in params if isinstance(value, int))


def as_images(x: Tensor) -> Layout:
    """Signals [W, C, N] as images [W, 1, C, N]."""
    width, channels, n, _ = x.ne
    step, to_channel, to_next, _ = x.nb
    return Layout(x, (width, 1, channels, n), (step, to_channel, to_channel, to_next))


def steps_of(w: Work) -> list[int]:
    """The field of STEPS numbers: strides, paddings and dilations along lines, from line to line
    and from plane to plane; those of one window where an op has none."""
    signals = not w.params.get("is_2D", True)
    found = []
    for name, none in (("s", 1), ("p", 0), ("d", 1)):
        for axis in range(3):
            unused = signals and axis == 1
            found.append(none if unused else w.params.get(f"{name}{axis}", none))
    return found
