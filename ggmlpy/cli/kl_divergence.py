"""What `ggmlpy perplexity --kl-divergence` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggmlpy.cli.show import write_json

if TYPE_CHECKING:
    from ggmlpy.bench.kl_divergence import Divergence
    from ggmlpy.llama import Llama

_SHARES = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001)
_LEAST_TOKENS = 100  # for the statistics at the end, as in llama.cpp


def show_divergence(load: Callable[[int, int], Llama], path: Path, as_json: bool) -> None:
    """Compare a model with the predictions in a file. `load` gets the tokens of a chunk, and how
    many chunks run at a time."""
    from ggmlpy.bench.kl_divergence import Base, Divergence
    from ggmlpy.bench.perplexity import Chunks, bos_of, perplexity

    base = Base(path)
    llm = load(base.n_ctx, 1)
    found = Divergence(base)
    found.check(llm.n_vocab())
    bos = bos_of(llm)
    tokens = [[*([] if bos is None else [bos]), *c[bos is not None :]] for c in base.chunks]
    starts = [i * base.n_ctx for i in range(len(tokens))]
    chunks = Chunks(tokens, starts, base.n_ctx // 2 + 1)
    if not as_json:
        print(
            "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
            "              Δp RMS            Same top p"
        )
    for i, _ in enumerate(perplexity(llm, chunks, found.add), 1):
        if not as_json:
            _show_chunk(i, found)
    if as_json:
        write_json({"model": Path(llm.model_path).name, **_as_json(found)})
    elif found.n >= _LEAST_TOKENS:
        _show_all(found)


def _show_chunk(i: int, found: Divergence) -> None:
    values = found.statistics()
    ppl, ratio, kld = values["ppl"], values["ln_ratio"], values["kld"]
    rms, same = values["rms_p_diff"], values["same_top"]
    print(
        f"{i:4d}    {ppl[0]:9.4f} ± {ppl[1]:9.4f}    {ratio[0]:10.5f} ± {ratio[1]:10.5f}"
        f"    {kld[0]:10.5f} ± {kld[1]:10.5f}    {100 * rms[0]:6.3f} ± {100 * rms[1]:6.3f} %"
        f"    {100 * same[0]:6.3f} ± {100 * same[1]:6.3f} %",
        flush=True,
    )


def _show_all(found: Divergence) -> None:
    values = found.statistics()

    def line(label: str, name: str) -> str:
        value, error = values[name]
        return f"{label:30}: {value:10.6f} ± {error:10.6f}"

    def percent(label: str, name: str) -> str:
        value, error = values[name]
        return f"{label:11}: {100 * value:6.3f} ± {100 * error:5.3f} %"

    print("\n====== Perplexity statistics ======")
    print(line("Mean PPL(Q)", "ppl"))
    print(line("Mean PPL(base)", "ppl_base"))
    print(f"{'Cor(ln(PPL(Q)), ln(PPL(base)))':30}: {100 * found.correlation():6.2f}%")
    print(line("Mean ln(PPL(Q)/PPL(base))", "ln_ratio"))
    print(line("Mean PPL(Q)/PPL(base)", "ratio"))
    print(line("Mean PPL(Q)-PPL(base)", "difference"))
    print("\n====== KL divergence statistics ======")
    print(f"{'Mean    KLD':11}: {values['kld'][0]:10.6f} ± {values['kld'][1]:10.6f}")
    for label, value in _percentiles(found.kld):
        print(f"{label + ' KLD':11}: {value:10.6f}")
    print("\n====== Token probability statistics ======")
    print(percent("Mean    Δp", "p_diff"))
    for label, value in _percentiles(found.p_diff):
        print(f"{label + ' Δp':11}: {100 * value:6.3f}%")
    print(percent("RMS Δp", "rms_p_diff"))
    print(percent("Same top p", "same_top"))


def _percentiles(values: list[float]) -> list[tuple[str, float]]:
    from ggmlpy.bench.kl_divergence import percentile

    names = {0.5: "Median "}
    between = [(names.get(s, f"{100 * s:4.1f}%  "), percentile(values, s)) for s in _SHARES]
    return [("Maximum", max(values)), *between, ("Minimum", min(values))]


def _as_json(found: Divergence) -> dict[str, Any]:
    values: dict[str, Any] = {"n_ctx": found.base.n_ctx, "n_scored": found.n}
    for name, (value, error) in found.statistics().items():
        values |= {name: value, f"{name}_error": error}
    for name, numbers in (("kld", found.kld), ("p_diff", found.p_diff)):
        values[f"{name}_percentiles"] = {
            label.strip().lower(): value for label, value in _percentiles(numbers)
        }
    return values | {"correlation": found.correlation()}
