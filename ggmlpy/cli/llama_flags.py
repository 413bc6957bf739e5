"""llama.cpp's flags that have no effect, or that no command of ours has, each with the reason.

A flag of llama.cpp is an option of the command that stands for its tool (`TOOLS`), under the same
name, or it is in `ACCEPTED`, if it asks for what happens anyway, or in `ABSENT`.
`tests/cli/test_llama_flags.py` compares them with the flags that llama.cpp's tools list, and
docs/cli.md shows the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# llama.cpp's tools, and the commands that have their flags.
TOOLS = {
    "llama-completion": "generate",
    "llama-cli": "chat",
    "llama-server": "serve",
    "llama-perplexity": "perplexity",
    "llama-embedding": "embedding",
    "llama-tokenize": "tokenize",
    "llama-quantize": "quantize",
    "llama-imatrix": "imatrix",
    "llama-bench": "bench",
    "llama-batched-bench": "batched-bench",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Flags that llama.cpp has, and why some commands, or all (no names), have no use for them."""

    names: tuple[str, ...]
    reason: str
    commands: tuple[str, ...] = ()

    def is_of(self, command: str) -> bool:
        return not self.commands or command in self.commands


def _row(names: str, reason: str, commands: str = "") -> Row:
    return Row(tuple(names.split()), reason, tuple(commands.split()))


_NO_TEXT = "perplexity embedding tokenize imatrix batched-bench"  # generated
_TIMED = "perplexity imatrix batched-bench embedding"
_MEASURED = f"{_TIMED} tokenize"

# What happens anyway: commands take these flags, and do nothing about them.
ACCEPTED = (
    _row("-no-cnv --no-conversation", "generate continues a prompt always", "generate"),
    _row("-cnv --conversation", "chat is a conversation always", "chat"),
    _row("--no-warmup", "there is no such run", "generate chat serve perplexity imatrix embedding"),
    _row("--jinja", "chat templates are always run by jinja2", "generate chat serve"),
    _row("--simple-io", "output to a pipe is always plain", "generate chat"),
    _row("--perf", "times are always taken", f"generate chat serve {_TIMED}"),
    _row("--log-disable", "there is no log", f"generate chat {_MEASURED}"),
    _row("-cb --cont-batching", "requests are batched continuously always", "serve"),
    _row("--cache-prompt", "prompts reuse what any sequence holds always", "serve"),
    _row("--cache-idle-slots", "what idle sequences hold is kept, see --cache-ram", "serve"),
    _row(
        "--embedding --embeddings --rerank --reranking",
        "the endpoints of embeddings and scores are always there",
        "serve",
    ),
)

# Rows of one command come before those of all.
ABSENT = (
    # tokenize reads a vocabulary
    _row(
        "-t --threads -c --ctx-size -ub --ubatch-size -fa --flash-attn -ctk --cache-type-k -ctv"
        " --cache-type-v -ot --override-tensor -ngl --gpu-layers --n-gpu-layers -fit --fit"
        " --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx"
        " --yarn-ext-factor --yarn-beta-slow --yarn-beta-fast --override-kv -cmoe --cpu-moe"
        " -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn",
        "only the vocabulary is read, no model runs",
        "tokenize",
    ),
    _row("--stdin", "a text through a pipe is read without a flag", "tokenize"),
    # benchmarks run random tokens
    _row(
        "-p --prompt -f --file -n --predict --n-predict",
        "tokens are random; -npp and -ntg say how many",
        "batched-bench",
    ),
    _row(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx"
        " --yarn-ext-factor --yarn-beta-slow --yarn-beta-fast --override-kv",
        "these values do not change how long a model takes",
        "batched-bench",
    ),
    _row("-fit --fit", "a measurement chooses no sizes: give -ngl and -c", "batched-bench"),
    _row("--no-warmup", "a test is run once before it is measured, always", "bench batched-bench"),
    _row("--delay", "tests run one after another at once", "bench"),
    _row("--progress", "a terminal shows the progress always", "bench"),
    _row("-oe --output-err", "results go to stdout alone; -o chooses their form", "bench"),
    _row("-embd --embeddings", "of a model without logits embeddings are measured", "bench"),
    _row("-v --verbose", "there is nothing more to show", "bench"),
    # quantize
    _row("--prune-layers", "not supported: all layers are written", "quantize"),
    _row("--max-buffer-size", "a few rows are in memory at a time, at any size", "quantize"),
    # where no text is generated
    _row("-n --predict --n-predict", "no text is generated", _NO_TEXT),
    _row(
        "--samplers --sampler-seq --sampling-seq -s --seed --temp --temperature --top-k --top-p"
        " --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical"
        " --typical-p --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty"
        " --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n"
        " --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range"
        " --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --ignore-eos -l --logit-bias",
        "nothing is sampled",
        _NO_TEXT,
    ),
    _row(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
        "nothing is sampled",
        _NO_TEXT,
    ),
    _row("--keep --context-shift --no-context-shift", "no text is generated", _NO_TEXT),
    _row(
        "-e --escape --no-escape",
        "the text is taken as it is",
        "perplexity imatrix batched-bench",
    ),
    _row("-bf --binary-file", "-f reads a text; another file is no text", "chat embedding"),
    _row("-bf --binary-file", "-f reads the text", "tokenize imatrix batched-bench"),
    _row(
        "-kvu --kv-unified -no-kvu --no-kv-unified",
        "the tasks share one cache, other chunks need none to share",
        "perplexity",
    ),
    _row("--show-statistics", "not supported: the matrix is only written", "imatrix"),
    _row("--attention", "the model's architecture decides", "embedding"),
    # chat
    _row("-cnv --conversation", "`ggmlpy chat` is the conversation", "generate"),
    _row(
        "-i --interactive -if --interactive-first -mli --multiline-input -st --single-turn"
        " -sys --system-prompt -sysf --system-prompt-file --chat-template --chat-template-file",
        "`ggmlpy chat` talks with a model",
        "generate",
    ),
    _row(
        "--in-prefix --in-prefix-bos --in-suffix",
        "the chat template of `ggmlpy chat` writes what stands around a message",
        "generate",
    ),
    _row("-mli --multiline-input", "a line is a message", "chat"),
    _row("-co --color", "the prompt is dim on a terminal, always", "generate"),
    _row("-co --color", "what is typed looks like a prompt always", "chat"),
    _row("-sp --special", "not supported: control tokens are not shown", "chat"),
    _row("--display-prompt --no-display-prompt", "messages are not shown again", "chat"),
    _row("--show-timings", "the speed is shown unless -q is given", "chat"),
    _row("-o --output --output-file", "stdout has the answers: redirect it", "chat"),
    _row("-cram --cache-ram", "one conversation needs no cache of others", "chat"),
    _row("-ptc --print-token-count", "the number is shown at the end, and by --json"),
    _row("--log-prompts-dir", "--log-prompts has them in the log", "serve"),
    _row("--log-prompts-dir", "not supported"),
    # serve
    _row(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file -r --reverse-prompt"
        " --embd-normalize",
        "a request says it: `grammar`, `json_schema`, `stop`, `embd_normalize`",
        "serve",
    ),
    _row(
        "--reasoning-preserve --no-reasoning-preserve",
        "`--chat-template-kwargs '{\"preserve_reasoning\": true}'`",
        "serve",
    ),
    _row("--reasoning-budget-message", "`reasoning_budget` ends reasoning without one", "serve"),
    _row(
        "--skip-chat-parsing --no-skip-chat-parsing",
        "`--reasoning-format none` leaves reasoning in the content",
        "serve",
    ),
    _row("-e --escape --no-escape", "texts come in JSON", "serve"),
    _row("-sp --special", "not supported: control tokens are not shown", "serve"),
    _row("-nocb --no-cont-batching", "requests are batched continuously always", "serve"),
    _row("--no-cache-prompt", "answers do not depend on what is reused", "serve"),
    _row("--no-cache-idle-slots", "--cache-ram 0 keeps nothing", "serve"),
    _row("-sps --slot-prompt-similarity", "a prompt takes what any sequence holds", "serve"),
    _row("--cache-reuse -cms --checkpoint-min-step", "not supported", "serve"),
    _row("--kv-unified-per-slot", "not supported: a sequence may have all that is free", "serve"),
    _row("--spm-infill", "not supported: the prefix comes first", "serve"),
    _row("--lora-init-without-apply", "--lora-scaled FILE:0 loads an adapter so", "serve"),
    _row(
        "--cors-methods --cors-headers --cors-credentials --no-cors-credentials",
        "--cors-origins says who may ask, by any method and header, without credentials",
        "serve",
    ),
    _row("--sse-ping-interval", "a silent stream sends a comment every 15 seconds", "serve"),
    _row("--threads-http", "an event loop serves all connections", "serve"),
    _row("--api-prefix", "not supported: a proxy can take one off", "serve"),
    _row("--path", "not supported: the page is the package's", "serve"),
    _row("--reuse-port --tags", "not supported", "serve"),
    _row(
        "--prefill-assistant --no-prefill-assistant",
        "a request says it: `continue_final_message`",
        "serve",
    ),
    _row("--models-preset", "not supported: --models-dir offers a folder", "serve"),
    _row(
        "--ui-config --webui-config --ui-config-file --webui-config-file",
        "not supported: the page has no settings of the server",
        "serve",
    ),
    _row(
        "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy --tools"
        " --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent -no-ag --no-agent",
        "not supported: the server itself runs no tools",
        "serve",
    ),
    _row("--mtmd-batch-max-tokens --media-path", "not supported: models read text only", "serve"),
    _row(
        "-lv --verbosity --log-verbosity --log-colors --log-prefix --no-log-prefix"
        " --log-timestamps --no-log-timestamps",
        "not supported: a line has its time and level, and with --log-jsonl their names",
        "serve",
    ),
    _row(
        "--fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec"
        " --fim-qwen-30b-default",
        "a model is named: -hf USER/REPO",
        "serve",
    ),
    _row(
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
        "earlier names of --spec-ngram-simple-size-n and the like",
        "serve",
    ),
    _row(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "not supported: --spec-type ngram-simple looks up n-grams",
        "serve",
    ),
    # what is so always, or never
    _row("--usage", "--help shows it"),
    _row("--version", "`ggmlpy --version` shows it"),
    _row("--completion-bash", "not supported"),
    _row("--warmup", "there is no such run; a cache keeps the kernels that are compiled"),
    _row("--no-jinja", "chat templates are always run by jinja2"),
    _row("--perf --no-perf", "times are always taken; generate -q hides them"),
    _row("-dt --defrag-thold", "cells need not be neighbours: there is nothing to defragment"),
    _row("--swa-full", "layers with a window keep what it sees, and no more"),
    _row("-ctxcp --ctx-checkpoints --swa-checkpoints", "not supported"),
    _row("--no-repack --repack -nr", "the backend decides how it keeps weights"),
    _row("-b --batch-size", "only the vocabulary is read, no model runs", "tokenize"),
    _row(
        "-tb --threads-batch",
        "prompts and decoding run on the same threads: -t is their number",
    ),
    _row("-np --parallel", "one text at a time; `Llama.generate` runs many together"),
    _row("-gan --grp-attn-n -gaw --grp-attn-w", "not supported: --rope-scale extends a context"),
    _row("--yarn-attn-factor", "not supported: the file's rope.scaling.attn_factor counts"),
    _row("-v --verbose --log-verbose", "there is nothing more to show", f"chat {_MEASURED}"),
    _row(
        "--log-file --log-jsonl --no-log-jsonl --log-colors -lv --verbosity"
        " --log-verbosity --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        "messages go to stderr, which can be redirected; there is no log",
    ),
    _row("--verbose-prompt", "`ggmlpy tokenize` shows the tokens of a prompt"),
    # processors, memory and devices
    _row(
        "-C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch"
        " --cpu-strict-batch",
        "the system places threads: `taskset` limits its choice",
    ),
    _row("--numa", "the system places threads: `numactl` limits its choice"),
    _row("--prio --prio-batch", "`nice` sets the priority of a process"),
    _row("--poll --poll-batch", "threads that wait spin for a moment, then sleep"),
    _row(
        "-lm --load-mode -lzm --lazy-mode",
        "model files are mapped into memory always",
    ),
    _row("--check-tensors", "not supported"),
    _row("-dev --device", "--backend names the devices, as in cuda:1"),
    _row("--list-devices", "not supported: --backend names devices, as in cuda:1"),
    _row("-sm --split-mode -ts --tensor-split", "--backend cuda,cuda:1 shares the layers"),
    _row("-mg --main-gpu", "--backend cuda:1 names a GPU"),
    _row(
        "-kvo --kv-offload -nkvo --no-kv-offload",
        "the K/V cache of a layer lies where the layer does: -ngl",
    ),
    _row(
        "--op-offload --no-op-offload -nopo --no-host",
        "backends decide about weights of another memory",
    ),
    _row("-fitt --fit-target -fitc --fit-ctx", "not supported: --fit decides by what is free"),
    _row("--rpc", "not supported: devices are those of this machine"),
    _row("-bs --backend-sampling", "a device finds the tokens to sample from by itself"),
    # sources of models
    _row("-cl --cache-list", "`hf cache ls` lists what was downloaded"),
    _row("-dr --docker-repo", "not supported: -hf and -mu download models"),
    _row(
        "--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default"
        " --vision-gemma-4b-default --vision-gemma-12b-default --spec-default",
        "a model is named: -hf USER/REPO",
    ),
    # what is not supported
    _row(
        "--lora --lora-scaled --control-vector --control-vector-scaled"
        " --control-vector-layer-range",
        "generate, chat, embedding and perplexity have it",
    ),
    _row(
        "-mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto"
        " --mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image --audio --video"
        " --image-min-tokens --image-max-tokens --video-fps --video-timestamp-interval"
        " --video-ffmpeg-dir",
        "not supported: models read text only",
    ),
    _row(
        "--reasoning-preserve --no-reasoning-preserve",
        "`--chat-template-kwargs '{\"preserve_reasoning\": true}'`",
        "chat",
    ),
    _row(
        "--skip-chat-parsing --no-skip-chat-parsing",
        "`--reasoning-format none` leaves reasoning in the answer; there are no tools",
        "chat",
    ),
    _row("--reasoning-budget-message", "`--reasoning-budget` ends reasoning without one", "chat"),
    _row(
        "--reasoning-format -rea --reasoning --reasoning-effort --reasoning-preserve"
        " --reasoning-budget --reasoning-budget-message"
        " --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing",
        "not supported by this command: the text is shown as the model writes it",
    ),
    _row("--server-base", "not supported: the model runs here"),
    # drafts
    _row(
        "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd"
        " --cache-type-v-draft",
        "K and V of the draft model are f16",
    ),
    _row(
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft",
        "not supported: -md names a file, `hf download USER/REPO FILE` downloads it",
    ),
    _row(
        "--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd"
        " --threads-batch-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft"
        " --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft",
        "the draft model runs on the same threads: -t is their number",
    ),
    _row(
        "--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft"
        " --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-cpu-mask-batch -Cbd"
        " --cpu-mask-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft",
        "the system places threads: `taskset` limits its choice",
    ),
    _row(
        "--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe -cmoed"
        " --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft"
        " --spec-draft-device -devd --device-draft",
        "-ngld places the layers of the draft model on the backends of the model",
    ),
    _row("--spec-synth-len --spec-synth-rates", "what is accepted is never invented"),
    _row("--spec-draft-p-split --draft-p-split", "a draft is one sequence, no tree"),
    _row(
        "--spec-draft-backend-sampling --no-spec-draft-backend-sampling",
        "a draft has the most likely tokens, nothing is sampled",
    ),
    _row(
        "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match"
        " --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits"
        " --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits",
        "not supported: --spec-type ngram-simple looks up n-grams",
    ),
    _row("--spec-ngram-simple-min-hits", "one place with the same tokens is enough"),
)


# Flags of earlier versions, which its tools do not list any more.
FORMER = (
    _row(
        "-mmp --mmap --no-mmap -dio --direct-io -ndio --no-direct-io",
        "model files are mapped into memory always",
    ),
    _row("--mlock", "the system decides which pages of the model file stay in memory"),
    _row("-no-cnv --no-conversation", "`ggmlpy generate` continues a prompt", "chat"),
    _row("-ins --instruct -cml --chatml", "`ggmlpy chat` talks with a model"),
)


def why_absent(flag: str, command: str) -> str | None:
    """Why a command does not have a flag of llama.cpp; None if llama.cpp has no such flag."""
    rows = (row for row in (*ABSENT, *FORMER) if flag in row.names and row.is_of(command))
    return next((row.reason for row in rows), None)


def accepted_by(command: str) -> list[Row]:
    """The flags that a command takes without an effect."""
    return [row for row in ACCEPTED if row.is_of(command)]


def as_markdown() -> Iterator[str]:
    """The table in docs/cli.md, line by line."""
    yield "| flags of llama.cpp | of | |"
    yield "|---|---|---|"
    for row in (*ACCEPTED, *ABSENT):
        flags = ", ".join(f"`{name}`" for name in row.names)
        commands = ", ".join(f"`{name}`" for name in row.commands) or "all"
        effect = "accepted without effect: " if row in ACCEPTED else ""
        yield f"| {flags} | {commands} | {effect}{row.reason} |"
