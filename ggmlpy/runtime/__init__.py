"""From batches to logits: graphs kept by shape, their inputs, steady steps, the Context.

In: a model, a memory, batches. Out: logits of the tokens that asked for them.
"""
