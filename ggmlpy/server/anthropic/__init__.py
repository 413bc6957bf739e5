"""Anthropic's API: messages, and the tokens that they have.

Source: the API reference at docs.anthropic.com/en/api/messages.
"""
