"""The GPU benchmark's results as a table in Markdown: figures, ceilings, targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import rounded

Values = dict[str, Any]

MANY_REGISTERS = 168  # with 128 threads a block, 3 blocks of a multiprocessor
SPILLED_BYTES = 64
SHOWN_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of the table.

    measured  as text, with its unit
    value     what is compared with the target, as `shown` tells it: a share of a ceiling, a ratio
    target    None where there is none
    at_least  whether more is better
    """

    what: str
    measured: str
    value: float | None = None
    shown: str = ""
    target: float | None = None
    at_least: bool = True

    @property
    def verdict(self) -> str:
        if self.target is None or self.value is None:
            return ""
        return "yes" if (self.value >= self.target) == self.at_least else "**no**"

    @property
    def target_text(self) -> str:
        if self.target is None:
            return ""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {_as(self.shown, self.target)}"

    @property
    def value_text(self) -> str:
        return "" if self.value is None else _as(self.shown, self.value)


def _as(shown: str, value: float) -> str:
    """A number as a share, a ratio or microseconds."""
    if shown.startswith("of "):
        return f"{value:.0%}"
    return f"{value:.2f}" if shown.startswith("x") else rounded(value)


class Figures:
    """What the parts have measured, and the lines that follow from it."""

    def __init__(self, results: Values) -> None:
        self._parts: dict[str, Values] = results["parts"]

    def of(self, part: str) -> Values:
        values: Values = self._parts.get(part, {}).get("values", {})
        return values

    def rows(self, part: str) -> list[Values]:
        rows: list[Values] = self.of(part).get("rows", [])
        return [row for row in rows if "does_not_fit" not in row]

    @property
    def copy_gbs(self) -> float | None:
        return self.of("ceilings").get("copy_gbs")

    @property
    def f16_tflops(self) -> float | None:
        return self.of("ceilings").get("f16_tflops")

    def lines(self) -> Iterator[Line]:
        """Every figure, in the order of the table."""
        for lines in (
            self._ceilings, self._decode, self._prompt, self._attention, self._streams,
            self._layouts, self._products, self._host,
        ):  # fmt: skip
            yield from lines()

    def _ceilings(self) -> Iterator[Line]:
        values = self.of("ceilings")
        if self.copy_gbs:
            yield Line("copies in device memory, read + written", f"{rounded(self.copy_gbs)} GB/s")
        if values.get("upload_gbs"):
            yield Line("copies from pinned memory", f"{rounded(values['upload_gbs'])} GB/s")
        for name, rate in values.get("products", {}).items():
            yield Line(f"product of f16 by {name}", f"{rounded(rate)} TFLOP/s")

    def _decode(self) -> Iterator[Line]:
        targets = {"f16": 0.8, "q8_0": 0.8, "q4_0": 0.7, "q4_K": 0.7}
        for type, values in self._by_type("decode"):
            measured = f"{rounded(values.get('tokens_per_s'))} t/s"
            share = _ratio(values.get("gbs"), self.copy_gbs)
            yield Line(f"decode, {type}", measured, share, "of bandwidth", targets.get(type))

    def _prompt(self) -> Iterator[Line]:
        for type, values in self._by_type("prompt"):
            for row in values.get("rows", []):
                measured = f"{rounded(row['tokens_per_s'])} t/s, {rounded(row['tflops'])} TFLOP/s"
                share = _ratio(row["tflops"], self.f16_tflops)
                target = 0.6 if type == "f16" else 0.4
                yield Line(f"prompt of {row['n']}, {type}", measured, share, "of f16 peak", target)

    def _attention(self) -> Iterator[Line]:
        for row in self.rows("attention"):
            decodes = row["n_query"] == 1
            what = (
                f"attention, heads of {row['head']}, {row['type']}:"
                f" {row['n_seqs']} x {row['n_query']} on {row['n_kv']}"
            )
            rate = f"{rounded(row['gbs'])} GB/s" if decodes else f"{rounded(row['tflops'])} TFLOP/s"
            torch = row.get("PyTorch us")
            measured = f"{rounded(row['us'])} us, {rate}"
            measured += f" (PyTorch {rounded(torch)} us)" if torch else ""
            if decodes:
                share, shown = _ratio(row["gbs"], self.copy_gbs), "of bandwidth"
            else:
                share, shown = _ratio(row["tflops"], self.f16_tflops), "of f16 peak"
            target = None if row["type"] != "f16" else 0.8 if decodes else 0.5
            yield Line(what, measured, share, shown, target)

    def _streams(self) -> Iterator[Line]:
        for name in self._parts:
            if not name.startswith("streams at "):
                continue
            depth = name.removeprefix("streams at ")
            for row in self.rows(name):
                measured = (
                    f"{rounded(row['tokens_per_s'])} t/s, {rounded(row['step_us'])} us a step"
                )
                target = 1.4 if (row["n"], depth) == (32, "4096") else None
                what = f"{row['n']} sequence{'s' * (row['n'] > 1)} at {depth}, {row['type']}"
                yield Line(
                    what, measured,
                    self._floors(row), "x bytes / bandwidth", target, at_least=False,
                )  # fmt: skip

    def _layouts(self) -> Iterator[Line]:
        rows = self.rows("layouts")
        split = next((row for row in rows if row["layout"] == "split"), None)
        for row in rows:
            what = f"{row['n']} sequences at {row['depth']}, {row['layout']}"
            measured = f"{rounded(row['step_us'])} us a step"
            if row is split:
                floors = self._floors(row)
                yield Line(what, measured, floors, "x bytes / bandwidth", 1.4, at_least=False)
            else:
                ratio = _ratio(row["step_us"], split["step_us"] if split else None)
                yield Line(what, measured, ratio, "x split", 1.3, at_least=False)

    def _products(self) -> Iterator[Line]:
        f16 = {row["n"]: row for row in self.rows("products f16")}
        for type, values in self._by_type("products"):
            for row in values.get("rows", []):
                others = [v for k, v in f16.get(row["n"], {}).items() if k.endswith(" us")]
                measured = f"{rounded(row['us'])} us, {rounded(row['gbs'])} GB/s"
                measured += f", {rounded(row['tflops'])} TFLOP/s"
                advantage = _ratio(min(others, default=None), row["us"])
                yield Line(
                    f"mul_mat, {type}, {row['n']} columns", measured, advantage, "x f16 product"
                )

    def _host(self) -> Iterator[Line]:
        values = self.of("launches")
        for name, found in values.items():
            if not name.endswith(" sequences"):
                continue
            shown = "1 sequence" if name == "1 sequences" else name
            measured = (
                f"{rounded(found['step_us'])} us a step, {rounded(found['device_us'])} of the"
                f" device, {found['launches']} launches"
            )
            target = 60.0 if name == "1 sequences" else None
            yield Line(
                f"host's share, {shown}", measured,
                found["host_us"], "us", target, at_least=False,
            )  # fmt: skip
            if "without_graph_us" in found:
                yield Line(
                    f"{shown}, launched one by one", f"{rounded(found['without_graph_us'])} us"
                )
        for key, what in (
            ("fewer_than_planned", "fewer sequences than the context allows"),
            ("embedding_on_host", "the token embedding on the host"),
        ):
            if key in values:
                found = values[key]
                yield Line(what, f"{rounded(found['step_us'])} us a step")
        if "gbs" in self.of("upload"):
            yield Line(
                "weights from a file in the page cache", f"{rounded(self.of('upload')['gbs'])} GB/s"
            )
        found = self.of("compile")
        if "cold_s" in found:
            measured = f"{found['cold_s']:.1f} s, from the cache {found.get('warm_s', 0):.2f} s"
            yield Line("all kernels compiled", measured)

    def _by_type(self, kind: str) -> Iterator[tuple[str, Values]]:
        for name in self._parts:
            if name.startswith(f"{kind} ") and self.of(name):
                yield name.removeprefix(f"{kind} "), self.of(name)

    def _floors(self, row: Values) -> float | None:
        """The step's time in units of what moving its bytes would take."""
        return _ratio(self.copy_gbs, row["gbs"])


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


# --- text ---------------------------------------------------------------------------------------


def markdown(results: Values) -> str:
    """The whole report."""
    about, parts = results["about"], results["parts"]
    lines = [f"# GPU benchmark: {about['device']}", ""]
    lines += [f"- {key}: {text}" for key, text in _about(results)]
    lines += ["", "## Figures", ""]
    is_judged = not results["settings"].get("is_quick")
    lines += table(list(Figures(results).lines()), is_judged)
    lines += ["", "## Conformance", ""]
    for name in ("tests of models' ops", "tests of other ops"):
        lines += _tests(name, parts.get(name, {}).get("values", {}))
    lines += _kernels(parts.get("kernels", {}).get("values", {}))
    lines += _unfinished(parts)
    return "\n".join(lines) + "\n"


def _about(results: Values) -> Iterator[tuple[str, str]]:
    about, parts = results["about"], results["parts"]
    dates = sorted(entry["date"] for entry in parts.values() if "date" in entry)
    commits = dict.fromkeys(entry["commit"] for entry in parts.values() if entry.get("commit"))
    yield "device", f"{about['settings']}"
    if about.get("nvidia_smi", "-") != "-":
        yield "nvidia-smi", about["nvidia_smi"]
    if dates:
        yield "measured", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    yield "commit", ", ".join(commits) or "-"
    yield "versions", ", ".join(f"{name} {text}" for name, text in about["versions"].items())
    yield "command", f"`{about.get('command', '')}`"
    if results["settings"].get("is_quick"):
        yield "note", "a dry run with tiny shapes: no figure means anything"


def table(lines: Sequence[Line], is_judged: bool = True) -> list[str]:
    """Lines of Markdown."""
    found = ["| | measured | | | target | met |", "|---|---|---:|---|---|---|"]
    for line in lines:
        shown = line.shown if line.value is not None else ""
        cells = (
            line.what, line.measured, line.value_text, shown, line.target_text,
            line.verdict if is_judged else "",
        )  # fmt: skip
        found.append("| " + " | ".join(cells) + " |")
    return found


def _tests(name: str, values: Values) -> list[str]:
    if not values:
        return [f"{name}: none ran."]
    lines = [
        f"{name}: {values['pass']} passed, {values['fail']} failed, {values['skip']} skipped;"
        f" {values['n_done']} of {values['n_tests']} ran.",
        "",
    ]
    failures = values["failures"]
    lines += [f"- `{one['id']}`: {_cell(one['message'])}" for one in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"- … {len(failures) - SHOWN_FAILURES} more, see the JSON file")
    return [*lines, ""] if failures else lines


def _kernels(values: Values) -> list[str]:
    """Kernels that take many registers, or spill."""
    taken = values.get("taken", [])
    if not taken:
        return []
    large = [t for t in taken if t[2] > MANY_REGISTERS or t[3] > SPILLED_BYTES]
    lines = [
        "## Kernels",
        "",
        f"{len(taken)} kernels in {values['n_units']} units for {values.get('arch', '-')}."
        f" Those with more than {MANY_REGISTERS} registers or {SPILLED_BYTES} bytes of local"
        " memory:",
        "",
    ]
    if not large:
        return [*lines[:-1], "none.", ""]
    lines += ["| kernel | registers | local bytes | shared bytes |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {regs} | {local} | {shared} |" for _, name, regs, local, shared in large]
    return [*lines, ""]


def _unfinished(parts: dict[str, Values]) -> list[str]:
    """Parts that have no complete result, and why."""
    lines = []
    for name, entry in parts.items():
        if entry["status"] != "done":
            error = entry.get("error", "").splitlines()
            lines.append(f"- {name}: {entry['status']}{f', {_cell(error[0])}' if error else ''}")
    return ["", "## Not complete", "", *lines] if lines else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
