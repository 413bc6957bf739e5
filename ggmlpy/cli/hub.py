"""Options that name a model on a hub or by its URL, for every command that takes a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ggmlpy.cli.command import flag, option
from ggmlpy.cli.loading import downloading
from ggmlpy.common.quoting import printable

_SECTION = "Model from a hub"
_NAMES = ("hf_repo", "hf_file", "hf_token", "model_url", "offline")
_OPTIONS = (
    option(
        "hf_repo",
        "-hf -hfr --hf-repo USER/REPO[:QUANT]",
        "A model of a Hugging Face repository, which is kept in its cache; QUANT is as in Q8_0.",
        show_default="Q4_K_M, else Q8_0, else the first",
        section=_SECTION,
    ),
    option(
        "hf_file",
        "-hff --hf-file FILE",
        "A file of that repository, instead of a quantization.",
        section=_SECTION,
    ),
    option(
        "hf_token",
        "-hft --hf-token TOKEN",
        "An access token, for private or gated repositories.",
        show_default="$HF_TOKEN",
        section=_SECTION,
    ),
    option("model_url", "-mu --model-url URL", "A model by its URL.", section=_SECTION),
    flag("offline", "--offline", "Use only what was downloaded before.", section=_SECTION),
)


def or_from_hub(
    name: str, *, several: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: options that give the command's parameter `name`, the path of its model, or with
    `several` a list of paths."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**given: Any) -> Any:
            hub = {each: given.pop(each) for each in _NAMES}
            path = given.get(name)
            found = _downloaded(path, **hub)
            if found is not None:
                given[name] = [found] if several else found
            return command(**given)

        for each in reversed(_OPTIONS):
            run = each(run)
        return run

    return decorate


def _downloaded(
    path: Any,
    hf_repo: str | None,
    hf_file: str | None,
    hf_token: str | None,
    model_url: str | None,
    offline: bool,
) -> Path | None:
    """The local path of the model that the options name; None if they name none."""
    if hf_repo is None and hf_file is not None:
        raise click.UsageError("-hff names a file of a repository: -hf USER/REPO must name it.")
    if hf_repo is None and model_url is None:
        return None
    if hf_repo is not None and model_url is not None:
        raise click.UsageError("-hf and -mu cannot be used together.")
    if path:
        option = "-mu" if hf_repo is None else "-hf"
        raise click.UsageError(f"{option} and a file cannot be used together.")
    from ggmlpy.hub.fetch import model_of_repo, model_of_url

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its hints are for Python users
    with downloading(printable(hf_repo or model_url or "")):
        if hf_repo is not None:
            return model_of_repo(hf_repo, hf_file, token=hf_token, offline=offline)
        return model_of_url(model_url or "", token=hf_token, offline=offline)
