"""Other libraries' interfaces on ggmlpy's engine."""
