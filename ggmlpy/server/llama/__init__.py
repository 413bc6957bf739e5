"""llama-server's own API: completion, infill, tokens, properties, slots, adapters.

Source: tools/server/README.md of llama.cpp.
"""
