"""ggmlpy: a ggml-style compute-graph runtime in Python."""
