"""The page at /: its files in static/, and /engine, which tells it what the engine does.

HTML, CSS and ES modules as browsers take them: nothing is built, and nothing is loaded from
elsewhere. Texts of models become nodes of text, never HTML.
"""
