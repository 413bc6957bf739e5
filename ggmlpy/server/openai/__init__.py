"""OpenAI's API: chat completions, responses, completions, embeddings, models.

Source: the API reference at platform.openai.com/docs/api-reference. Options of llama-server are
taken as well.
"""
