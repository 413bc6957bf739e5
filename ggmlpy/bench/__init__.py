"""Speed of a model on this machine, and how good it is: of prompts, of decoding, of memory;
perplexity, accuracy on tasks, divergence from another model.

In: a loaded model, and texts. Out: samples of seconds, tokens/s, GB/s; estimates with their errors.
"""
