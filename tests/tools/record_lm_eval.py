"""Records what lm-eval's local-completions sends, and what it makes of ggmlpy's answers.

    PYTHONPATH=. python tests/tools/record_lm_eval.py    # with lm-eval[api] 0.4.13 installed

The HTTP request is left out: each prompt of a request goes to `Llama.create_completion`. Writes
tests/engine/lm_eval.json, which `tests/engine/test_lm_eval.py` replays.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from ggmlpy import Llama, packaged_model

FILE = Path(__file__).parents[1] / "engine" / "lm_eval.json"
PROMPTS = ["A girl named Sara had a loose tooth. One day,", "Tom and Lily were best friends."]
ENDINGS = [" she was playing", " he fell", " They did everything together.", " green"]


class Tokens:
    """The tokenizer that lm-eval asks for: without BOS, as it is by default."""

    bos_token_id, eos_token_id = 0, 1
    eos_token = "</s>"

    def __init__(self, llm: Llama) -> None:
        self.llm = llm

    def __call__(self, texts: list[str], **options: Any) -> Any:
        found = self.encode(texts) if isinstance(texts, str) else list(map(self.encode, texts))
        return type("Encoding", (), {"input_ids": found})()

    def encode(self, text: str, **options: Any) -> list[int]:
        return self.llm.tokenizer.encode(text)


class Recorded(LocalCompletionsAPI):  # type: ignore[misc]
    """lm-eval's client, whose server is a model of this process."""

    def __init__(self, llm: Llama) -> None:
        super().__init__(
            model="stories", base_url="none", tokenizer_backend="none", batch_size=2, max_length=512
        )
        self.llm, self.sent = llm, list[dict[str, Any]]()
        self.tokenizer, self.tokenized_requests = Tokens(llm), True
        self.tokenizer_backend = "huggingface"

    def model_call(
        self, messages: Any, *, generate: bool = True, gen_kwargs: Any = None, **kwargs: Any
    ) -> Any:
        payload = self._create_payload(
            self.create_message(messages),
            generate=generate,
            gen_kwargs=gen_kwargs,
            seed=self._seed,
            eos=self.eos_string,
            **kwargs,
        )
        self.sent.append(json.loads(json.dumps(payload)))
        choices = []
        for i, prompt in enumerate(payload.pop("prompt")):
            (choice,) = self.llm.create_completion(prompt, **payload)["choices"]
            choices.append({**choice, "index": i})
        return {"choices": choices}


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


def main() -> None:
    with Llama(packaged_model(), n_ctx=512) as llm:
        api = Recorded(llm)
        pairs = [(prompt, ending) for prompt in PROMPTS for ending in ENDINGS]
        scores = api.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
        whole = [(text,) for text in PROMPTS]
        rolling = api.loglikelihood_rolling(
            instances("loglikelihood_rolling", whole), disable_tqdm=True
        )
        until = {"until": ["."], "max_gen_toks": 9, "temperature": 0}
        asked: list[tuple[Any, ...]] = [(text, dict(until)) for text in PROMPTS]
        texts = api.generate_until(instances("generate_until", asked), disable_tqdm=True)
    found = {
        "version": version("lm-eval"),
        "sent": api.sent,
        "loglikelihood": [
            [*pair, round(logprob, 5), greedy]
            for pair, (logprob, greedy) in zip(pairs, scores, strict=True)
        ],
        "rolling": [[text, round(x, 5)] for (text,), x in zip(whole, rolling, strict=True)],
        "generated": [list(each) for each in zip(PROMPTS, texts, strict=True)],
    }
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
