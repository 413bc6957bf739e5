"""Weight formats: how groups of 16 rows are stored or packed, and how they are multiplied."""
