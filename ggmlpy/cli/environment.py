"""llama-server's environment variables, which give options of `ggmlpy serve` where the command line
does not."""

from __future__ import annotations

import click

# Those whose name is LLAMA_ARG_ and the option's.
_PLAIN = (
    "--threads --ctx-size --n-predict --flash-attn --rope-scale --rope-freq-base"
    " --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-beta-slow --yarn-beta-fast"
    " --cache-type-k --cache-type-v --override-tensor --cpu-moe --n-cpu-moe --n-cpu-ffn"
    " --n-gpu-layers --fit --model --model-url --hf-repo --hf-file --log-file --log-jsonl --offline"
    " --temperature --top-k --top-p --min-p --repeat-penalty --presence-penalty"
    " --frequency-penalty --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min"
    " --n-gpu-layers-draft --spec-draft-model --spec-type --cache-ram --kv-unified --alias --host"
    " --port --cors-origins --ui --api-key-file --ssl-key-file --ssl-cert-file --timeout"
    " --models-dir --models-max --models-autoload --chat-template --chat-template-file --pooling"
    " --chat-template-kwargs --reasoning --reasoning-effort --context-shift"
)
ENVIRONMENT = {
    **{f"LLAMA_ARG_{name[2:].upper().replace('-', '_')}": name for name in _PLAIN.split()},
    "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
}
"""Options by the variables."""


def with_environment(command: click.Command) -> click.Command:
    """The command, whose options are given by variables too."""
    variables = {name: variable for variable, name in ENVIRONMENT.items()}
    for param in command.params:
        for name in param.opts:
            if name in variables:
                param.envvar = variables[name]
    return command
