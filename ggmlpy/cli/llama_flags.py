"""llama.cpp's flags that no command of ours has, each with the reason.

A flag of llama.cpp is an option of the command that stands for its tool (`TOOLS`), under the same
name, or it is in `ABSENT`. `tests/cli/test_llama_flags.py` compares both with the flags that
llama.cpp's tools list, and docs/cli.md shows the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# llama.cpp's tools, and the commands that have their flags.
TOOLS = {
    "llama-completion": "generate",
    "llama-cli": "chat",
    "llama-perplexity": "perplexity",
    "llama-embedding": "embedding",
    "llama-tokenize": "tokenize",
    "llama-quantize": "quantize",
    "llama-imatrix": "imatrix",
    "llama-bench": "bench",
    "llama-batched-bench": "batched-bench",
}


@dataclass(frozen=True, slots=True)
class Absent:
    """Flags that llama.cpp has, and why some commands, or all (no names), do not have them."""

    names: tuple[str, ...]
    reason: str
    commands: tuple[str, ...] = ()

    def is_of(self, command: str) -> bool:
        return not self.commands or command in self.commands


def _absent(names: str, reason: str, commands: str = "") -> Absent:
    return Absent(tuple(names.split()), reason, tuple(commands.split()))


_NO_TEXT = "perplexity embedding tokenize imatrix batched-bench"  # generated
_MEASURED = "perplexity imatrix batched-bench embedding tokenize"

# Rows of one command come before those of all.
ABSENT = (
    # tokenize reads a vocabulary
    _absent(
        "-t --threads -c --ctx-size -ub --ubatch-size -fa --flash-attn -ctk --cache-type-k -ctv"
        " --cache-type-v -ot --override-tensor -ngl --gpu-layers --n-gpu-layers -fit --fit"
        " --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx"
        " --yarn-ext-factor --yarn-beta-slow --yarn-beta-fast --override-kv -cmoe --cpu-moe"
        " -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn",
        "only the vocabulary is read, no model runs",
        "tokenize",
    ),
    _absent("--stdin", "a text through a pipe is read without a flag", "tokenize"),
    # benchmarks run random tokens
    _absent(
        "-p --prompt -f --file -n --predict --n-predict",
        "tokens are random; -npp and -ntg say how many",
        "batched-bench",
    ),
    _absent(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx"
        " --yarn-ext-factor --yarn-beta-slow --yarn-beta-fast --override-kv",
        "these values do not change how long a model takes",
        "batched-bench",
    ),
    _absent("-fit --fit", "a measurement chooses no sizes: give -ngl and -c", "batched-bench"),
    _absent("--delay", "tests run one after another at once", "bench"),
    _absent("--progress", "a terminal shows the progress always", "bench"),
    _absent("-oe --output-err", "results go to stdout alone; -o chooses their form", "bench"),
    _absent("-embd --embeddings", "of a model without logits embeddings are measured", "bench"),
    _absent("-v --verbose", "there is nothing more to show", "bench"),
    # quantize
    _absent("--prune-layers", "not supported: all layers are written", "quantize"),
    _absent("--max-buffer-size", "a few rows are in memory at a time, at any size", "quantize"),
    # where no text is generated
    _absent("-n --predict --n-predict", "no text is generated", _NO_TEXT),
    _absent(
        "--samplers --sampler-seq --sampling-seq -s --seed --temp --temperature --top-k --top-p"
        " --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical"
        " --typical-p --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty"
        " --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n"
        " --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range"
        " --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --ignore-eos -l --logit-bias",
        "nothing is sampled",
        _NO_TEXT,
    ),
    _absent(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        "nothing is sampled",
        _NO_TEXT,
    ),
    _absent("--keep --context-shift --no-context-shift", "no text is generated", _NO_TEXT),
    _absent(
        "-e --escape --no-escape",
        "the text is taken as it is",
        "perplexity imatrix batched-bench",
    ),
    _absent("-bf --binary-file", "-f reads a text; another file is no text", "chat embedding"),
    _absent("-bf --binary-file", "-f reads the text", "tokenize imatrix batched-bench"),
    _absent(
        "-kvu --kv-unified -no-kvu --no-kv-unified",
        "the tasks share one cache, other chunks need none to share",
        "perplexity",
    ),
    _absent("--show-statistics", "not supported: the matrix is only written", "imatrix"),
    _absent("--attention", "the model's architecture decides", "embedding"),
    # chat
    _absent("-cnv --conversation", "`ggmlpy chat` is the conversation", "generate"),
    _absent("-no-cnv --no-conversation", "generate continues a prompt always", "generate"),
    _absent(
        "-i --interactive -if --interactive-first -mli --multiline-input -st --single-turn"
        " -sys --system-prompt -sysf --system-prompt-file --chat-template --chat-template-file",
        "`ggmlpy chat` talks with a model",
        "generate",
    ),
    _absent(
        "--in-prefix --in-prefix-bos --in-suffix",
        "the chat template of `ggmlpy chat` writes what stands around a message",
        "generate",
    ),
    _absent("-mli --multiline-input", "a line is a message", "chat"),
    _absent("-co --color", "the prompt is dim on a terminal, always", "generate"),
    _absent("-co --color", "what is typed looks like a prompt always", "chat"),
    _absent("-sp --special", "not supported: control tokens are not shown", "chat"),
    _absent("--display-prompt --no-display-prompt", "messages are not shown again", "chat"),
    _absent("--show-timings", "the speed is shown unless -q is given", "chat"),
    _absent("-o --output --output-file", "stdout has the answers: redirect it", "chat"),
    _absent("-cram --cache-ram", "one conversation needs no cache of others", "chat"),
    _absent("-ptc --print-token-count", "the number is shown at the end, and by --json"),
    _absent("--log-prompts-dir", "not supported"),
    # what is so always, or never
    _absent("--usage", "--help shows it"),
    _absent("--version", "`ggmlpy --version` shows it"),
    _absent("--completion-bash", "not supported"),
    _absent(
        "--warmup --no-warmup", "there is no such run; a cache keeps the kernels that are compiled"
    ),
    _absent("--jinja --no-jinja", "chat templates are always run by jinja2"),
    _absent("--perf --no-perf", "times are always taken; generate -q hides them"),
    _absent("--simple-io", "output to a pipe is always plain"),
    _absent("-dt --defrag-thold", "cells need not be neighbours: there is nothing to defragment"),
    _absent("--swa-full", "layers with a window keep what it sees, and no more"),
    _absent("-ctxcp --ctx-checkpoints --swa-checkpoints", "not supported"),
    _absent("--no-repack --repack -nr", "the backend decides how it keeps weights"),
    _absent("-b --batch-size", "-ub is the number of tokens that run at a time"),
    _absent(
        "-tb --threads-batch",
        "prompts and decoding run on the same threads: -t is their number",
    ),
    _absent("-np --parallel", "one text at a time; `Llama.generate` runs many together"),
    _absent("-gan --grp-attn-n -gaw --grp-attn-w", "not supported: --rope-scale extends a context"),
    _absent("--yarn-attn-factor", "not supported: the file's rope.scaling.attn_factor counts"),
    _absent("-v --verbose --log-verbose", "there is nothing more to show", f"chat {_MEASURED}"),
    _absent(
        "--log-disable --log-file --log-jsonl --no-log-jsonl --log-colors -lv --verbosity"
        " --log-verbosity --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        "messages go to stderr, which can be redirected; there is no log",
    ),
    _absent("--verbose-prompt", "`ggmlpy tokenize` shows the tokens of a prompt"),
    # processors, memory and devices
    _absent(
        "-C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch"
        " --cpu-strict-batch",
        "the system places threads: `taskset` limits its choice",
    ),
    _absent("--numa", "the system places threads: `numactl` limits its choice"),
    _absent("--prio --prio-batch", "`nice` sets the priority of a process"),
    _absent("--poll --poll-batch", "threads that wait spin for a moment, then sleep"),
    _absent(
        "-lm --load-mode -lzm --lazy-mode",
        "model files are mapped into memory always",
    ),
    _absent("--check-tensors", "not supported"),
    _absent("-dev --device", "--backend names the devices, as in cuda:1"),
    _absent("--list-devices", "not supported: --backend names devices, as in cuda:1"),
    _absent("-sm --split-mode -ts --tensor-split", "--backend cuda,cuda:1 shares the layers"),
    _absent("-mg --main-gpu", "--backend cuda:1 names a GPU"),
    _absent(
        "-kvo --kv-offload -nkvo --no-kv-offload",
        "the K/V cache of a layer lies where the layer does: -ngl",
    ),
    _absent(
        "--op-offload --no-op-offload -nopo --no-host",
        "backends decide about weights of another memory",
    ),
    _absent("-fitt --fit-target -fitc --fit-ctx", "not supported: --fit decides by what is free"),
    _absent("--rpc", "not supported: devices are those of this machine"),
    _absent("-bs --backend-sampling", "a device finds the tokens to sample from by itself"),
    # sources of models
    _absent("-cl --cache-list", "`hf cache ls` lists what was downloaded"),
    _absent("-dr --docker-repo", "not supported: -hf and -mu download models"),
    _absent(
        "--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default"
        " --vision-gemma-4b-default --vision-gemma-12b-default --spec-default",
        "a model is named: -hf USER/REPO",
    ),
    # what is not supported
    _absent(
        "--lora --lora-scaled --control-vector --control-vector-scaled"
        " --control-vector-layer-range",
        "generate, chat, embedding and perplexity have it",
    ),
    _absent(
        "-mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto"
        " --mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image --audio --video"
        " --image-min-tokens --image-max-tokens --video-fps --video-timestamp-interval"
        " --video-ffmpeg-dir",
        "not supported: models read text only",
    ),
    _absent(
        "--reasoning-preserve --no-reasoning-preserve",
        "`--chat-template-kwargs '{\"preserve_reasoning\": true}'`",
        "chat",
    ),
    _absent(
        "--skip-chat-parsing --no-skip-chat-parsing",
        "`--reasoning-format none` leaves reasoning in the answer; there are no tools",
        "chat",
    ),
    _absent(
        "--reasoning-budget-message", "`--reasoning-budget` ends reasoning without one", "chat"
    ),
    _absent(
        "--reasoning-format -rea --reasoning --reasoning-effort --reasoning-preserve"
        " --reasoning-budget --reasoning-budget-message"
        " --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing",
        "not supported by this command: the text is shown as the model writes it",
    ),
    _absent("--server-base", "not supported: the model runs here"),
    # drafts
    _absent(
        "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd"
        " --cache-type-v-draft",
        "K and V of the draft model are f16",
    ),
    _absent(
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
        "not supported: -md names a file, `hf download USER/REPO FILE` downloads it",
    ),
    _absent(
        "--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd"
        " --threads-batch-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft"
        " --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft",
        "the draft model runs on the same threads: -t is their number",
    ),
    _absent(
        "--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft"
        " --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-cpu-mask-batch -Cbd"
        " --cpu-mask-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft",
        "the system places threads: `taskset` limits its choice",
    ),
    _absent(
        "--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe -cmoed"
        " --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft"
        " --spec-draft-device -devd --device-draft",
        "-ngld places the layers of the draft model on the backends of the model",
    ),
    _absent("--spec-synth-len --spec-synth-rates", "what is accepted is never invented"),
    _absent("--spec-draft-p-split --draft-p-split", "a draft is one sequence, no tree"),
    _absent(
        "--spec-draft-backend-sampling --no-spec-draft-backend-sampling",
        "a draft has the most likely tokens, nothing is sampled",
    ),
    _absent(
        "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match"
        " --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits"
        " --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits",
        "not supported: --spec-type ngram-simple looks up n-grams",
    ),
    _absent("--spec-ngram-simple-min-hits", "one place with the same tokens is enough"),
)


# Flags of earlier versions, which its tools do not list any more.
FORMER = (
    _absent(
        "--mmap --no-mmap --mlock -dio --direct-io --no-direct-io",
        "model files are mapped into memory always",
    ),
    _absent(
        "-cb --cont-batching -nocb --no-cont-batching",
        "requests are batched continuously always: `Llama.generate`",
    ),
    _absent("-ins --instruct -cml --chatml", "`ggmlpy chat` talks with a model"),
)


def why_absent(flag: str, command: str) -> str | None:
    """Why a command does not have a flag of llama.cpp; None if llama.cpp has no such flag."""
    rows = (row for row in (*ABSENT, *FORMER) if flag in row.names and row.is_of(command))
    return next((row.reason for row in rows), None)


def as_markdown() -> Iterator[str]:
    """The table in docs/cli.md, line by line."""
    yield "| flags of llama.cpp | of | |"
    yield "|---|---|---|"
    for row in ABSENT:
        flags = ", ".join(f"`{name}`" for name in row.names)
        commands = ", ".join(f"`{name}`" for name in row.commands) or "all"
        yield f"| {flags} | {commands} | {row.reason} |"
