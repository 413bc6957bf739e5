"""Records the flags that llama.cpp's tools list: tests/cli/llama_flags.json, and the environment
variables of llama-server: tests/cli/llama_variables.json.

    python -m tests.tools.record_flags --bin DIR

DIR has the built tools. Only names are kept: those of one option, and the tools that have it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

from ggmlpy.cli.llama_flags import TOOLS

OUT = Path(__file__).parents[1] / "cli" / "llama_flags.json"
VARIABLES = OUT.with_name("llama_variables.json")
_VARIABLE = re.compile(r"\(env: ([A-Z0-9_]+)\)")
_NAME = re.compile(r"(--?[A-Za-z][\w-]*)(,? +|$)")


def listed(help: str) -> list[str]:
    """The names of each option in the help of a tool, separated by spaces."""
    rows = []
    for line in help.splitlines():
        if len(line) - len(line.lstrip()) > 4:
            continue
        names, rest = [], line.strip()
        while found := _NAME.match(rest):
            names.append(found[1])
            rest = rest[found.end() :]
        if names:
            rows.append(" ".join(names))
    return rows


def variables(help: str) -> dict[str, str]:
    """The names of the options that an environment variable gives, by the variable."""
    found: dict[str, str] = {}
    names = ""
    for line in help.splitlines():
        names = (listed(line) or [names])[0]
        if variable := _VARIABLE.search(line):
            found[variable[1]] = names
    return found


def main() -> None:
    """Ask each tool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    folder = parser.parse_args().bin
    tools_of: dict[str, list[str]] = {}
    for tool in TOOLS:
        done = subprocess.run([folder / tool, "--help"], capture_output=True, text=True)
        for names in listed(done.stdout + done.stderr):
            tools_of.setdefault(names, []).append(tool.removeprefix("llama-"))
    rows = [f'"{names}": "{" ".join(tools)}"' for names, tools in tools_of.items()]
    OUT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    done = subprocess.run([folder / "llama-server", "--help"], capture_output=True, text=True)
    VARIABLES.write_text(json.dumps(variables(done.stdout), indent=0) + "\n")


if __name__ == "__main__":
    main()
