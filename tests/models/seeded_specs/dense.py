"""The specifications of the tiny models without experts."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import BIASES, EXPERTS, HEAD_NORMS, QK_NORMS, spec

DENSE_SPECS: dict[str, Seeded] = {
    "arcee": spec("arcee", r"rope_freqs\.weight", without=r".*\.ffn_gate\.weight"),
    "deci": spec(
        "deci",
        keys={
            "block_count": 4,
            "attention.head_count": [4, 6, 3, 8],
            "attention.head_count_kv": [2, 1, 3, 4],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [88, 40, 56, 72],
        },
    ),
    "ernie4_5": spec("ernie4_5", BIASES),
    "exaone": spec("exaone"),
    "exaone4": spec("exaone4", QK_NORMS, shapes=HEAD_NORMS),
    "llama": spec(
        "llama", BIASES + r"|rope_freqs\.weight|.*\.(attn_output|ffn_gate|ffn_up|ffn_down)\.bias"
    ),
    "llama-experts": spec("llama", keys=EXPERTS),
    "seed_oss": spec("seed_oss", BIASES),
    "smollm3": spec("smollm3", keys={"block_count": 5}),
}
