"""Random graphs: programs drawn by a seed, run on backends, checked, and shrunk where they fail."""
