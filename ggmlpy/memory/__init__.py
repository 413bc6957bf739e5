"""What is kept of sequences: batches and ubatches, KV caches, recurrent states, saved states.

In: batches of tokens, and operations on sequences. Out: cells for tokens, lists of cells, saved
states.
"""
