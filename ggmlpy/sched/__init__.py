"""Scheduling of graphs: a backend for each node, splits, passes, memory, plans.

In: a Graph and backends. Out: an Executable, or the values of `compute`.
"""
