"""What is kept of sequences: batches and ubatches, KV caches, recurrent states, saved states.

In: batches of tokens, and what is to be done with sequences. Out: cells for tokens, masks, states.
"""
