"""Ordinary scripts of llama-cpp-python's users: what they call, and what they look at.

Each is a function of the module `llama_cpp`, of a model file and of an empty folder, and gives a
value that JSON has. `record_scripts.py` runs them with llama-cpp-python, `test_user_scripts.py`
with `ggmlpy.compat.llama_cpp`. Where a script is in `SHAPES` only names and types of its result are
compared: its texts depend on random draws, or on which white space a grammar allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Script = Callable[[Any, str, Path], Any]

SCRIPTS: dict[str, Script] = {}
SHAPES: set[str] = set()

PROMPT = "A girl named Sara had a loose tooth. One day,"  # answered with certainty
MESSAGES = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tom and Lily were best friends."},
]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "enum": [1, 2]},
    },
    "required": ["city", "days"],
}
TOOL = {"name": "forecast", "description": "The weather to come.", "parameters": CITY}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def shape_only(function: Script) -> Script:
    SHAPES.add(function.__name__)
    return script(function)


def load(llama_cpp: Any, model: str, **options: Any) -> Any:
    return llama_cpp.Llama(model_path=model, **{"n_ctx": 256, "verbose": False, **options})


def first_tokens(llm: Any, prompt: str, n: int, **options: Any) -> list[int]:
    return list(islice(llm.generate(llm.tokenize(prompt.encode()), temp=0.0, **options), n))


# --- completions ---


@script
def completion(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    output = llm(PROMPT, max_tokens=11, stop=["."], echo=True, temperature=0)
    return [output, llm.create_completion(PROMPT, max_tokens=4, temperature=0.0)["usage"]]


@script
def completion_of_tokens(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    tokens = llm.tokenize(PROMPT.encode("utf-8"))
    return llm.create_completion(prompt=tokens, max_tokens=10, temperature=0)


@script
def streaming(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    stream = llm(PROMPT, max_tokens=11, temperature=0, stop=["stairs"], stream=True)
    pieces = list(stream)
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    reason = pieces[-1]["choices"][0]["finish_reason"]
    return [text, reason, pieces[0], pieces[-1]["choices"][0]["logprobs"]]


@script
def biased(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    token = llm.tokenize(b" dragon", add_bos=False)[0]
    output = llm(PROMPT, max_tokens=3, temperature=0, logit_bias={str(token): 100.0})
    return [token, output["choices"]]


@script
def log_probabilities(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, logits_all=True)
    output = llm(
        "One day, a girl named Sara felt something strange.",
        max_tokens=4,
        temperature=0,
        logprobs=1,
    )
    logprobs = output["choices"][0]["logprobs"]
    return [logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"]]


@shape_only  # the prompt of a model without tokens for gaps is not the same
def infill(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    output = llm.create_completion(
        "def double(x):", suffix="\n    return y", max_tokens=5, temperature=0, top_p=1.0
    )
    return output["choices"][0]


@script
def penalties(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, last_n_tokens_size=32)
    output = llm(
        "The cat sat on the mat. The cat",
        max_tokens=12,
        temperature=0,
        repeat_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.5,
    )
    return output["choices"][0]["text"]


@shape_only
def drawn(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, seed=42)
    outputs = [
        llm(
            PROMPT,
            max_tokens=8,
            temperature=0.8,
            top_k=20,
            top_p=0.9,
            min_p=0.05,
            typical_p=1.0,
            mirostat_mode=mode,
            seed=seed,
        )
        for mode, seed in ((0, 1), (2, 1), (0, 1))
    ]
    assert outputs[0]["choices"] == outputs[2]["choices"]
    return outputs


# --- chats ---


@script
def chat(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, chat_format="chatml")
    return llm.create_chat_completion(messages=MESSAGES, max_tokens=10, temperature=0)


@script
def chat_of_the_default_format(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    first = llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0)
    turns = [
        *MESSAGES,
        first["choices"][0]["message"],
        {"role": "user", "content": "And then?"},
    ]
    return [
        llm.chat_format,
        first,
        llm.create_chat_completion(turns, max_tokens=3, temperature=0)["usage"],
    ]


@script
def chat_streaming(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, chat_format="chatml")
    stream = llm.create_chat_completion(MESSAGES, max_tokens=10, temperature=0, stream=True)
    chunks = list(stream)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    text = "".join(delta["content"] for delta in deltas if "content" in delta)
    return [text, deltas[0], chunks[0], chunks[-1]]


@shape_only
def json_mode(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, chat_format="chatml")
    return llm.create_chat_completion(
        messages=MESSAGES,
        response_format={"type": "json_object"},
        temperature=0.7,
        max_tokens=16,
    )


@shape_only
def json_schema(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, chat_format="chatml")
    answer = llm.create_chat_completion(
        messages=MESSAGES, response_format={"type": "json_object", "schema": CITY}, temperature=0
    )
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert value["city"] in ("Oslo", "Rome")
    return [answer, value]


@shape_only
def tools(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, n_ctx=512, chat_format="chatml-function-calling")
    answer = llm.create_chat_completion(
        messages=MESSAGES,
        tools=[{"type": "function", "function": TOOL}],
        tool_choice={"type": "function", "function": {"name": "forecast"}},
        temperature=0,
    )
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    return [answer, call["name"], json.loads(call["arguments"])]


@shape_only
def functions(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    answer = llm.create_chat_completion(
        messages=MESSAGES,
        functions=[TOOL],
        function_call={"name": "forecast"},
        temperature=0,
    )
    return [answer, json.loads(answer["choices"][0]["message"]["function_call"]["arguments"])]


@script
def grammar(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    rules = 'root ::= " a " animal "."\nanimal ::= "cat" | "dog"'
    made = llama_cpp.LlamaGrammar.from_string(rules, verbose=False)
    output = llm("Once there was", grammar=made, max_tokens=16, temperature=0)
    return output["choices"]


# --- steps of one's own ---


@script
def logits_processors(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    banned = llm.tokenize(b" everything", add_bos=False)

    def without_everything(input_ids: Any, scores: Any) -> Any:
        assert input_ids.ndim == scores.ndim == 1
        scores[banned] = -np.inf
        return scores

    processors = llama_cpp.LogitsProcessorList([without_everything])
    output = llm(
        "Tom and Lily were best friends.", max_tokens=8, temperature=0, logits_processor=processors
    )
    return output["choices"]


@script
def stopping_criteria(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    lengths: list[int] = []

    def at_twenty(input_ids: Any, logits: Any) -> bool:
        lengths.append(len(input_ids))
        return len(input_ids) >= 20

    criteria = llama_cpp.StoppingCriteriaList([at_twenty])
    output = llm(PROMPT, max_tokens=32, temperature=0, stopping_criteria=criteria)
    return [sorted(set(lengths)), output["choices"], output["usage"]]


@script
def token_by_token(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    tokens = llm.tokenize(PROMPT.encode())
    made: list[int] = []
    for token in llm.generate(tokens, top_k=1, top_p=1.0, temp=0.0, repeat_penalty=1.0):
        if token == llm.token_eos() or len(made) == 10:
            break
        made.append(token)
    return [made, llm.detokenize(made).decode("utf-8"), llm.n_tokens]


@script
def eval_and_sample(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    llm.reset()
    llm.eval(llm.tokenize(b"Lily and Tom"))
    made: list[int] = []
    for _ in range(8):
        made.append(llm.sample(temp=0.0))
        llm.eval([made[-1]])
    return [made, llm.n_tokens, [int(token) for token in llm.eval_tokens]]


@script
def logits_of_each_token(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, logits_all=True)
    llm.eval(llm.tokenize(b"Once upon a time"))
    rows = llm.scores[: llm.n_tokens]
    logprobs = llm.logits_to_logprobs(rows)
    return [list(rows.shape), rows.argmax(axis=1).tolist(), logprobs.max(axis=1).tolist()]


@script
def many_prompts(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    prompts = [PROMPT, "Tom and Lily were best friends.", "One of her teeth was loose!"]
    return [llm.detokenize(first_tokens(llm, prompt, 6)).decode() for prompt in prompts]


@script
def lookup_decoding(llama_cpp: Any, model: str, folder: Path) -> Any:
    lookup = import_module(f"{llama_cpp.__name__}.llama_speculative").LlamaPromptLookupDecoding
    llm = load(llama_cpp, model, draft_model=lookup(num_pred_tokens=4))
    prompt = "The cat sat. The cat sat. The cat"
    return llm(prompt, max_tokens=12, temperature=0)["choices"][0]["text"]


# --- tokens ---


@script
def tokenization(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model, vocab_only=True)
    texts = ["Once upon a time", " two  spaces\n\tand a tab", "Grüße 🙂 世界", "<s>x</s>", ""]
    found = []
    for text in texts:
        tokens = llm.tokenize(text.encode())
        marked = llm.tokenize(text.encode(), add_bos=False, special=True)
        found.append([tokens, marked, llm.detokenize(tokens).decode()])
    named = [llm.token_bos(), llm.token_eos(), llm.token_nl(), llm.n_vocab()]
    return [found, named]


@script
def tokenizer_object(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    tokenizer = llm.tokenizer()
    tokens = tokenizer.encode("Tom saw a dog.")
    return [tokens, tokenizer.decode(tokens)]


@script
def sizes(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    names = ("general.architecture", "llama.context_length", "llama.block_count")
    return [[llm.n_ctx(), llm.n_vocab(), llm.n_embd()], [llm.metadata[name] for name in names]]


# --- embeddings ---


@script
def embeddings(llama_cpp: Any, model: str, folder: Path) -> Any:
    mean = llama_cpp.LLAMA_POOLING_TYPE_MEAN
    llm = load(llama_cpp, model, embedding=True, pooling_type=mean)
    one = llm.create_embedding("A cat sat.")
    two = llm.create_embedding(["A cat sat.", "The dog ran home."])
    unit = llm.embed("A cat sat.", normalize=True)
    for entry in (*one["data"], *two["data"]):
        entry["embedding"] = entry["embedding"][:8]
    return [one, two, unit[:8]]


@script
def embeddings_of_tokens(llama_cpp: Any, model: str, folder: Path) -> Any:
    none = llama_cpp.LLAMA_POOLING_TYPE_NONE
    llm = load(llama_cpp, model, embedding=True, pooling_type=none)
    rows, n_tokens = llm.embed("A cat sat.", return_count=True)
    return [len(rows), n_tokens, [row[:4] for row in rows]]


# --- what is kept ---


@script
def states(llama_cpp: Any, model: str, folder: Path) -> Any:
    llm = load(llama_cpp, model)
    llm.eval(llm.tokenize(b"Tom and Lily were"))
    state = llm.save_state()
    texts = []
    for adjective in (b" best", b" good"):
        llm.load_state(state)
        llm.eval(llm.tokenize(adjective, add_bos=False))
        made = []
        for _ in range(6):
            made.append(llm.sample(temp=0.0))
            llm.eval([made[-1]])
        texts.append(llm.detokenize(made).decode())
    return [state.n_tokens, texts]


def cached(llm: Any, cache: Any) -> Any:
    llm.set_cache(cache)
    texts = [llm(PROMPT, max_tokens=8, temperature=0)["choices"][0]["text"] for _ in range(2)]
    longer = llm(PROMPT + texts[0], max_tokens=3, temperature=0)["choices"][0]["text"]
    return [texts, longer, cache.cache_size > 0]


@script
def ram_cache(llama_cpp: Any, model: str, folder: Path) -> Any:
    return cached(load(llama_cpp, model), llama_cpp.LlamaRAMCache(capacity_bytes=1 << 28))


@script
def disk_cache(llama_cpp: Any, model: str, folder: Path) -> Any:
    return cached(load(llama_cpp, model), llama_cpp.LlamaDiskCache(cache_dir=str(folder)))
