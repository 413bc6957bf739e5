"""Chat templates that llama-cpp-python has as constants: texts in Jinja of four known formats."""

from __future__ import annotations

CHATML_BOS_TOKEN = "<s>"
CHATML_EOS_TOKEN = "<|im_end|>"
CHATML_CHAT_TEMPLATE = (
    "{% for turn in messages %}"
    "<|im_start|>{{ turn['role'] }}{{ '\\n' }}{{ turn['content'] }}<|im_end|>{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)

_LLAMA3_MARK = "<|start_header_id|>{{ %s }}<|end_header_id|>{{ '\\n\\n' }}"
LLAMA3_INSTRUCT_CHAT_TEMPLATE = (
    "{% for turn in messages %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    + _LLAMA3_MARK
    % "turn['role']"
    + "{{ turn['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + _LLAMA3_MARK % "'assistant'" + "{% endif %}"
)


def _instruct(end: str) -> str:
    """The format of Mistral's instruct models, with what stands behind an answer's EOS token."""
    return (
        "{{ bos_token }}"
        "{% for turn in messages %}"
        "{% set asks = loop.index is odd %}"
        "{% if (turn['role'] == 'user') != asks %}"
        "{{ raise_exception('roles must be user and assistant in turn, the user first') }}"
        "{% elif asks %}[INST] {{ turn['content'] }} [/INST]"
        "{% elif turn['role'] == 'assistant' %}{{ turn['content'] }}{{ eos_token }}"
        + end
        + "{% else %}"
        "{{ raise_exception('roles must be user and assistant') }}"
        "{% endif %}{% endfor %}"
    )


MISTRAL_INSTRUCT_BOS_TOKEN = "<s>"
MISTRAL_INSTRUCT_EOS_TOKEN = "</s>"
MISTRAL_INSTRUCT_CHAT_TEMPLATE = _instruct("{{ ' ' }}")
MIXTRAL_INSTRUCT_CHAT_TEMPLATE = _instruct("")
