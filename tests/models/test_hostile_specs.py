"""Every architecture with a few keys that are others: a typed error, or a model that runs.

A key gets another number, a number of another type, a list or a text, and some files get keys of
other architectures. Half of the files have the tensors that such a model would have, so that more
than the first check of a shape is reached. Nothing is computed. One process opens all files,
within a limit of memory, and is judged here, line by line.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import GgmlpyError, WeightWarning
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from tests.gguf_builder import Typed, build_gguf
from tests.models.seeded import metadata_of, write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import SHALLOW, context
from tests.models.test_hostile_keys import MEMORY_BYTES

N_FILES = 4  # of each specification
TIME_LIMIT_S = 20  # of one file
SMALL = (0, 1, 2, 3, 5, 7, 12)
WHOLE = (-1, 2**20, 2**31 - 1, 2**31, 2**32, 2**63 - 1)
REAL = (float("nan"), float("inf"), -1.0, 0.0, 1e-300, 1e38, 1e300, 0.5)
MARK = "not on one line of text "  # precedes messages that are not
TEXTS = ("text", "two\nlines", "\x1b[31mred\r")
OTHERS = (*TEXTS, True, Typed("i32", [1, 2, 3]), Typed("f32", [0.5]), Typed("f64", [1e300]))
ANY_KEYS = sorted(dict(pair for spec in SPECS.values() for pair in spec.keys.items()).items())
# With these the number of tensors would follow, or their size.
SIZES = {"block_count", "decoder_block_count", "embedding_length"}


def changed(rng: random.Random, value: Any) -> Any:
    """Another value of a key."""
    if isinstance(value, list) and rng.random() < 0.6:
        is_real = isinstance(value[0], float)
        one = rng.choice(REAL[2:] if is_real else (*SMALL, *WHOLE))
        at = rng.randrange(len(value))
        other = [*value[:at], one, *value[at + rng.randrange(2) :]]
        return Typed("f64", other) if is_real else Typed("i64", [min(n, 2**63 - 1) for n in other])
    if rng.random() < 0.15:
        return rng.choice(OTHERS)
    if isinstance(value, float):
        return Typed("f64", rng.choice(REAL))
    number = rng.choice(SMALL if rng.random() < 0.5 else WHOLE)
    return number if number in SMALL else Typed("i64", number)


def variants(folder: Path, name: str) -> Iterator[tuple[str, Callable[[], Path]]]:
    """Files of a specification with one or two keys that are others."""
    rng, spec, path = random.Random(name), SPECS[name], folder / "m.gguf"
    tensors = GGUFFile.open(write_seeded(folder, "sound", spec)).tensors
    zeros = {name: ("f32", t.ne[: t.n_dims], bytes(t.n_bytes)) for name, t in tensors.items()}
    for _ in range(N_FILES):
        pairs = rng.choices(list(spec.keys.items()), k=rng.choice((1, 1, 2)))
        if rng.random() < 0.25:
            pairs = [rng.choice(ANY_KEYS)]
        keys = {key: changed(rng, value) for key, value in pairs}
        if not SIZES & keys.keys() and all(value in SMALL for value in keys.values()):
            other = replace(spec, keys={**spec.keys, **keys})
            yield f"{name} with {keys} and its tensors", partial(write_seeded, folder, "m", other)
        else:
            metadata = metadata_of(spec) | {f"{spec.architecture}.{k}": v for k, v in keys.items()}
            yield f"{name} with {keys}", partial(build_gguf, path, metadata, zeros)


def outcome(make: Callable[[], Path]) -> str:
    """What comes of making a file, loading it and running tokens, on one line."""
    signal.alarm(TIME_LIMIT_S)
    try:
        run = context(load_model(GGUFFile.open(make())), "null")
        if run.encoder is not None:
            run.encode([1, 2, 3])
        run.decode([1, 2, 3, 4, 5], all_logits=True)
    except GgmlpyError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"untyped {error!r}"
    finally:
        signal.alarm(0)
    return "runs"


def main(folder: str) -> None:
    """Print a line for each file. SIGALRM ends the process."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("error")
    for name in SHALLOW:
        for what, make in variants(Path(folder), name):
            print(what, end=": ", flush=True)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", WeightWarning)
                result = outcome(make)
            shown = [result, *(str(warning.message) for warning in told)]
            print(result if all(map(str.isprintable, shown)) else f"{MARK}{shown!r}")


@pytest.mark.skipif(os.name != "posix", reason="memory cannot be limited on this system")
def test_some_values_of_some_keys(tmp_path: Path) -> None:
    program = "import sys; from tests.models.test_hostile_specs import main; main(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, lines[-1:] + done.stderr.splitlines()[-1:]
    assert not [line for line in lines if ": untyped " in line or f": {MARK}" in line]
    assert len(lines) == N_FILES * len(SHALLOW)
    n_run = sum(line.endswith(": runs") for line in lines)
    assert len(lines) / 5 < n_run < len(lines) * 2 / 3
