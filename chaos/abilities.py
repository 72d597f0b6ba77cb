"""What of the fault words this machine can carry out on real processes, and why not what it cannot."""

from collections.abc import Iterator

import msgspec

from snapline.chaos import preload
from snapline.errors import MisuseError
from snapline.sim.faults.faults import describe_words
from snapline.sim.faults.words import ClockWord, DiskWord, HangWord, HoldWord
from snapline.sim.scenario import FaultPart, Scenario

NEVER = {
    "hold": "a marker is bytes of a stream, which nothing overtakes",
    "disk: stale-read": "the file systems of one machine show at once what was written",
}
"""Words that real processes on one machine cannot suffer."""


class Ability(msgspec.Struct, frozen=True):
    """One word, how it is carried out here, and why not if it cannot be."""

    word: str
    means: str
    reason_against: str = ""


MEANS = {
    "network": "a gate before each process, without root",
    "slow": "SIGSTOP and SIGCONT by turns",
    "crash": "SIGKILL; at points by itself",
    "capture": "the encoder refuses",
    "pause": "SIGSTOP, SIGCONT",
    "hang: store": "file calls wait in a preloaded library",
    "hang: stop": "stop_when waits",
    "disk: power-cut": "SIGKILL, and files are cut back to their last sync",
    "disk: torn": "the same",
    "disk: bit-flip": "one bit of a file",
    "disk": "file calls fail in a preloaded library; at points by themselves",
    "clock": "a preloaded library; the wall clock only",
    "coordinator": "SIGKILL",
    "coordinator: depose": "SIGSTOP until another leads, SIGCONT",
    "coordinator: unknown-outcome": "the proposer is told that nobody knows",
    "membership": "SIGTERM; one more process",
}


def abilities() -> list[Ability]:
    """All words, as `snapline sim faults` lists them."""
    return [_ability(kind, word) for kind, word, _ in describe_words()]


def _ability(kind: str, word: str) -> Ability:
    first = word.partition(":")[0]
    means = MEANS.get(word) or MEANS.get(first) or MEANS[kind]
    return Ability(word, means, NEVER.get(word) or (preload.reason_against() if _needs_preload(word) else ""))


def _needs_preload(word: str) -> bool:
    return word == "clock" or word == "hang: store" or (word.startswith("disk") and word != "disk: bit-flip")


def problems(scenario: Scenario) -> Iterator[str]:
    """Sentences on what cannot be carried out here."""
    for index, fault in enumerate(scenario.fault):
        reason = reason_against(fault)
        if reason:
            yield f"fault[{index}].{fault.kind} cannot be carried out on real processes here: {reason}"


def reason_against(fault: FaultPart) -> str:
    """Why this one cannot be; "": it can."""
    match fault.word:
        case HoldWord():
            return NEVER["hold"]
        case DiskWord(mode="stale-read"):
            return NEVER["disk: stale-read"]
        case DiskWord(failpoint="", mode=mode) if mode != "bit-flip":
            return preload.reason_against()
        case ClockWord() | HangWord(what="store"):
            return preload.reason_against()
        case _:
            return ""


def check_abilities(scenario: Scenario) -> None:
    """Raises MisuseError: this machine cannot do what the scenario asks for."""
    for problem in problems(scenario):
        raise MisuseError(f"{scenario.name}: {problem}; `snapline chaos doctor` says what can be")
