"""Weight formats: how groups of 16 rows lie, packed or as stored, and how they are multiplied."""
