"""What layers are made of: linear maps, norms, attention, experts, state-space layers.

In: the tensors of a file, taken by name and checked. Out: callables that add nodes to a graph. Each
is a dataclass of its tensors; `take` looks them up.
"""
