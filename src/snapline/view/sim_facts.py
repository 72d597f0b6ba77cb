"""Types of the documents of simulations in files. Missing values get a neutral default."""

import msgspec


class FoundViolation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold."""

    oracle: str = ""
    guarantee: str = ""
    t_ns: int = 0
    text: str = ""


class RunHead(msgspec.Struct, frozen=True):
    """Fields of a `result.json` that a list shows."""

    kind: str
    name: str
    seed: int
    verdict: str
    violations: tuple[FoundViolation, ...] = ()
    pending: tuple[str, ...] = ()
    error: str = ""
    messages: int = 0
    virtual_ns: int = 0
    commit: str = ""

    @property
    def why(self) -> str:
        """Return the problem as a sentence; "" if there is none."""
        if self.violations:
            return self.violations[0].text
        return self.pending[0] if self.pending else self.error.strip().rpartition("\n")[2]

    @property
    def oracles(self) -> str:
        """Oracles that found it."""
        return ", ".join(dict.fromkeys([f"{each.guarantee} {each.oracle}".strip() for each in self.violations]))


class FoundRun(msgspec.Struct, frozen=True):
    """A run's folder that was found.

    Attributes:
        place: address below `/simulation/…`: the number of the given folder, and the path from there.
        written_s: time of the file, in seconds since 1970.
        protocol: name of the protocol, or the fleet's own module.
        shrunk: address of the shrunk form, or "".
        of: address of the run that this one was shrunk from, or "".
    """

    place: str
    head: RunHead
    written_s: float = 0.0
    protocol: str = ""
    shrunk: str = ""
    of: str = ""


class SweepFound(msgspec.Struct, frozen=True):
    """Common finding of some seeds of a sweep."""

    verdict: str = ""
    oracle: str = ""
    guarantee: str = ""
    count: int = 0
    seeds: tuple[int, ...] = ()
    text: str = ""
    repeat: str = ""


class SweepFacts(msgspec.Struct, frozen=True):
    """The document of `snapline sim sweep -o json`."""

    kind: str
    name: str
    verdict: str = ""
    runs: int = 0
    verdicts: dict[str, int] = {}
    findings: tuple[SweepFound, ...] = ()
    never_hit: tuple[str, ...] = ()
    checked: int = 0
    divergences: tuple[dict[str, object], ...] = ()
    is_stopped: bool = False
    elapsed_s: float = 0.0
    messages: int = 0


class FoundSweep(msgspec.Struct, frozen=True):
    """A sweep's file that was found; fields as in `FoundRun`."""

    place: str
    facts: SweepFacts
    written_s: float = 0.0


class FoundReports(msgspec.Struct, frozen=True):
    """Reports in the folders.

    Attributes:
        runs, sweeps: newest first.
        is_cut: the search reached a limit. older: number of runs found but not read.
        unreadable: number of files that are damaged or not reports of this release.
    """

    runs: tuple[FoundRun, ...] = ()
    sweeps: tuple[FoundSweep, ...] = ()
    is_cut: bool = False
    older: int = 0
    unreadable: int = 0
