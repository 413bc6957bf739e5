"""The command line of the fuzzer: `python -m tests.fuzz --help`."""

from tests.fuzz.command import main
from tests.fuzz.kinds import KINDS

main(KINDS)
