"""Speed of a model on this machine: of prompts, of decoding, of memory.

In: a loaded model. Out: samples of seconds, tokens/s, GB/s.
"""
