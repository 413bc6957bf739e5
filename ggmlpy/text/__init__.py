"""Text to tokens and back: tokenizers, chat templates, stop strings.

In: a file's vocabulary and template, text, messages. Out: tokens, prompts, text to show.
"""
