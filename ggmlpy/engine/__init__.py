"""Continuous batching: requests, slots, and the results in OpenAI's form.

In: requests. Out: pieces of text, completions.
"""
