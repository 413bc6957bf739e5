"""What backends may skip: ops, and numbers of cases by op."""

from __future__ import annotations

from collections import Counter

# Functions of the caller, and gradients of attention, run on the reference alone.
ON_REFERENCE = ("flash_attn_back", "map_custom1", "map_custom2", "map_custom3", "custom_4d")
# Copies of types that numpy cannot write: the reference has no kernel for them.
COPIES = Counter(cpy=84, cont=42)
