"""What backends may skip: ops, and numbers of cases by op."""

from __future__ import annotations

import re
from collections import Counter

# Functions of the caller, and gradients of attention, run on the reference alone.
ON_REFERENCE = ("flash_attn_back", "map_custom1", "map_custom2", "map_custom3", "custom_4d")
# Copies of types that numpy cannot write: the reference has no kernel for them.
COPIES = Counter(cpy=84, cont=42)

_SPANS = re.compile(r"(ssm_scan|gated_delta_net|gated_linear_attn|rwkv_wkv[67]) .*i32\[2,\d+\]")


def has_spans(test_id: str) -> bool:
    """Whether a test is of a scan with spans: CUDA has no kernel, so that the CPU runs it."""
    return _SPANS.search(test_id) is not None
