"""Records prompts that llama.cpp's templates make: tests/unit/peer_templates.json.

    PYTHONPATH=LLAMA_CPP_PYTHON python -m tests.tools.record_templates

with llama-cpp-python's built package. The names are those of ggmlpy.text.named_templates.
"""

from __future__ import annotations

import ctypes
import json
from importlib import import_module
from pathlib import Path

from ggmlpy.text.named_templates import NAMES

OUT = Path(__file__).parents[1] / "unit" / "peer_templates.json"
Messages = list[dict[str, str]]
CHATS: list[Messages] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": " A\n<b>? "}],
    [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": " two "},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five \u00e9"},
    ],
]


def main() -> None:
    """Render every chat with every template."""
    lib = import_module("llama_cpp")
    found: dict[str, list[str]] = {}
    for name in NAMES:
        found[name] = []
        for chat in CHATS:
            messages = (lib.llama_chat_message * len(chat))()
            for message, given in zip(messages, chat, strict=True):
                message.role, message.content = given["role"].encode(), given["content"].encode()
            out = ctypes.create_string_buffer(1 << 16)
            n = lib.llama_chat_apply_template(
                name.encode(), messages, len(chat), True, out, len(out)
            )
            found[name].append(out.raw[:n].decode())
    rows = [f"{json.dumps(name)}: {json.dumps(texts)}" for name, texts in found.items()]
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
