"""A seeded generator of simple English stories: a small world, and plots that happen in it."""
