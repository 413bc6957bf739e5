"""Detection of unordered memory accesses, by vector clocks.

Each queue, and the host, is a timeline, whose n-th piece of work has the time n. A clock has for
each timeline the time up to which its work is known to be complete. Work may access bytes only if
earlier work that accessed them is complete by its clock, unless both only read. This does not
depend on when work actually runs, so a missing wait is found in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.errors import BackendError

Clock = dict[str, int]  # by the name of a timeline


class HazardError(BackendError):
    """Work accesses memory without waiting for earlier work that accessed it."""


def merge(clock: Clock, other: Clock) -> None:
    """Advance each time of `clock` to that of `other`, where that is later."""
    for name, time in other.items():
        clock[name] = max(clock.get(name, 0), time)


@dataclass(frozen=True, slots=True)
class Access:
    """An access of bytes `begin` up to `end` of a buffer by one piece of work."""

    begin: int
    end: int
    writes: bool
    timeline: str
    time: int
    what: str  # for messages

    def meets(self, other: Access) -> bool:
        return self.begin < other.end and other.begin < self.end

    def covers(self, other: Access) -> bool:
        return self.begin <= other.begin and other.end <= self.end


class History:
    """The accesses of one buffer with which later ones must be ordered."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._accesses: list[Access] = []

    def add(self, access: Access, clock: Clock) -> None:
        """Record an access by work with this clock. Raises HazardError."""
        self.check(access, clock)
        self._accesses = [x for x in self._accesses if not _replaces(access, x)]
        self._accesses.append(access)

    def check(self, access: Access, clock: Clock) -> None:
        """Raise HazardError for an access that is not ordered with an earlier one."""
        for before in self._accesses:
            ordered = before.time <= clock.get(before.timeline, 0)
            if before.meets(access) and (before.writes or access.writes) and not ordered:
                raise HazardError(
                    f"{access.what} {_verb(access)} bytes {access.begin} to {access.end} of"
                    f" {self._name} without waiting for {before.what}, which {_verb(before)}"
                    f" {before.begin} to {before.end}"
                )


def _replaces(access: Access, before: Access) -> bool:
    """Whether work that is ordered after `access` is ordered after `before` too."""
    same_kind = access.writes or (not before.writes and before.timeline == access.timeline)
    return same_kind and access.covers(before)


def _verb(access: Access) -> str:
    return "writes" if access.writes else "reads"
