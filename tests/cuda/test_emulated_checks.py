"""Mistakes of kernels are found, each with what it is and where; their twins without it pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.cuda.emulated import EmulatedDriver, EmulationError, available
from ggmlpy.backends.cuda.emulated.compiler import required
from tests.cuda.test_emulated import downloaded, launch, uploaded

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

FILE = str(Path(__file__).parent / "emulated_mistakes.cu")
THREADS = 64

# By kernel: the message, and the number of blocks.
MISTAKES = {
    "no_barrier": (r"a race: .* with no barrier between|undefined: .* is a barrier missing", 1),
    "no_warp_barrier": (r"a race: .* no barrier between|undefined: .* is a barrier missing", 1),
    "no_barrier_between_rounds": (
        r"a race: \w+ 4 bytes at static shared memory, which thread \d+ \w+ with no",
        1,
    ),
    "reads_over": (r"out of bounds: reads 4 bytes at x \+ 256, which has 256 bytes", 1),
    "writes_over": (r"out of bounds: writes 4 bytes at y \+ 256, which has 256 bytes", 1),
    "writes_over_bytes": (r"a race|out of bounds: writes 4 bytes at y \+ 254", 1),
    "over_shared": (r"out of bounds: writes 4 bytes at dynamic shared memory \+ 256", 1),
    "over_array": (r"out of bounds: index 64 of an array", 1),
    "undefined_shared": (r"undefined: reads 4 bytes at static shared memory,", 1),
    "undefined_global": (r"undefined: reads 4 bytes at y \+ \d+, which were not written", 1),
    "blocks_write_one_word": (r"a race: writes 4 bytes at y \+ 0, which another block .* wrote", 2),
    "blocks_read_what_others_write": (
        r"a race: .* at y \+ 12, which another block|undefined: .* y \+ 12,",
        2,
    ),
    "reads_before_others_arrive": (r"a race: .* at y \+ [48], which another block", 2),
    "plain_beside_atomic": (r"a race: .* at y \+ [04]", 1),
    "barrier_in_branch": (r"ends while \d+ threads wait at __syncthreads|__syncthreads after", 1),
    "barrier_and_shuffle": (
        r"wait at different places, 32 wait at __syncthreads, 32 wait at a ",
        1,
    ),
    "shuffle_in_branch": (r"ends while lanes of its warp wait|a shuffle with lanes that have", 1),
    "no_wait": (r"reads 4 bytes at static shared .*: no copy_async_wait", 1),
    "waits_for_another_group": (r"reads 4 bytes at static shared .*: no copy_async_wait", 1),
    "misaligned": (r"misaligned: an access at 0x[0-9a-f]+, which is no multiple of 16", 1),
    "writes_what_it_may_read": (r"writes 4 bytes at x \+ \d+, which it may only read", 1),
    "divides_by_zero": (r"divided by 0", 1),
}


def run(name: str, n_blocks: int, seed: int, *, right: bool) -> None:
    driver = EmulatedDriver(seed=seed)
    x = uploaded(driver, np.ones(THREADS, np.float32))
    y = driver.allocate(4 * THREADS * n_blocks)
    if name in ("plain_beside_atomic", "reads_before_others_arrive"):
        driver.fill(y.address, 0, y.n_bytes)
    launch(
        driver,
        name,
        y,
        x,
        n_blocks=n_blocks,
        threads=THREADS,
        n=1,
        shared_bytes=4 * THREADS,
        defines=[("RIGHT", "1")] if right else [],
        file=FILE,
    )
    driver.synchronize()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    if name == "misaligned" and "clang" in required().version:
        pytest.skip("clang loads the parts of a vector that are used, without a check of the whole")
    message, n_blocks = MISTAKES[name]
    for seed in range(3):
        with pytest.raises(EmulationError, match=message) as found:
            run(name, n_blocks, seed, right=False)
        assert f"{name}(): " in str(found.value)
        assert "block " in str(found.value)
        run(name, n_blocks, seed, right=True)


def test_where_a_mistake_is() -> None:
    text = Path(FILE).read_text(encoding="utf-8").splitlines()
    line = next(i + 1 for i, line in enumerate(text) if "data)[i + (WRONG ? 1 : 0)] =" in line)
    with pytest.raises(EmulationError) as found:
        run("writes_over", 1, 0, right=False)
    assert f"emulated_mistakes.cu:{line}, block 0, thread 63: " in str(found.value)


def test_an_error_is_told_once() -> None:
    driver = EmulatedDriver()
    x, y = uploaded(driver, np.ones(THREADS, np.float32)), driver.allocate(4 * THREADS)
    launch(driver, "writes_over", y, x, threads=THREADS, file=FILE)
    event = driver.record()
    with pytest.raises(EmulationError):
        event.synchronize()
    driver.fill(y.address, 0, y.n_bytes)
    assert downloaded(driver, y, "f4").tolist() == [0.0] * THREADS


def test_copies_keep_what_is_undefined() -> None:
    driver = EmulatedDriver()
    x, y = driver.allocate(4 * THREADS), driver.allocate(4 * THREADS)
    launch(driver, "reads_over", y, x, threads=THREADS, defines=[("RIGHT", "1")], file=FILE)
    with pytest.raises(EmulationError, match="undefined: reads 4 bytes at x"):
        driver.synchronize()
    other = driver.allocate(4 * THREADS)
    driver.copy(other.address, x.address, 4 * THREADS)
    launch(driver, "reads_over", y, other, threads=THREADS, defines=[("RIGHT", "1")], file=FILE)
    with pytest.raises(EmulationError, match="undefined: reads 4 bytes at x"):
        driver.synchronize()
    driver.fill(other.address, 0, 4 * THREADS)
    launch(driver, "reads_over", y, other, threads=THREADS, defines=[("RIGHT", "1")], file=FILE)
    driver.synchronize()
