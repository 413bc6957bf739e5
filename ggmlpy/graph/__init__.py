"""Lazy graphs: types, shapes, tensors, ops as such, and their dumps. No backend, no file.

In: arrays, bytes and ops. Out: a Graph, its nodes in running order.
"""
