"""Development tools that need a built llama.cpp."""
