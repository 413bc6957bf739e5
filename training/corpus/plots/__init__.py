"""The plots: each a function that plays one story on a stage."""
