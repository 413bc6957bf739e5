"""Weight formats: how 16 rows are repacked side by side, and how a block of them is multiplied."""
