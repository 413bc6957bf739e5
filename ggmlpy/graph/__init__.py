"""Lazy graphs: types, shapes, buffers, tensors, the base of ops, and dumps; no backends or files.

In: arrays, bytes and ops. Out: a Graph, its nodes in running order.
"""
