"""Runners of the form of `snapline.sim.run.run` that are quick, and wrong in ways that are known."""

import gc
import os
import signal
import time
from hashlib import blake2b

import msgspec

from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.result import ExecutedFault, Result, Violation
from snapline.sim.scenario import Scenario, TriggerPart

LATE = 7
"""Of ten delays, those from here on make a message late."""

SLEEP_S = 600.0


class Ledger:
    """The journal of a toy run with its rolling hash."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.waypoints: list[str] = []
        self._hash = blake2b(digest_size=16)

    def note(self, entry: str) -> None:
        self.entries.append(entry)
        self._hash.update(entry.encode())
        if len(self.entries) % 1000 == 0:
            self.waypoints.append(self._hash.hexdigest())

    def piece(self, window_at: int | None) -> list[str]:
        return [] if window_at is None else self.entries[window_at * 1000 : (window_at + 1) * 1000]

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()


def toy(scenario: Scenario, seed: int, *, choices: Choices | None = None, window_at: int | None = None) -> Result:
    """Messages go round; each may be late. It is wrong when a crash meets two late messages, three apart.

    So the smallest failing run has one fault, two agents, four messages and two choices.
    """
    choices = choices or RandomChoices(seed)
    ledger = Ledger()
    late: list[int] = []
    violations: list[Violation] = []
    t_ns = scenario.network.delay.least_ns
    crashes = sum(part.crash is not None for part in scenario.fault)
    for number in range(scenario.fleet.pattern.messages):
        delay = choices.pick("net", ("a", "b", number), 10)
        t_ns += 10**6 * (1 + delay)
        ledger.note(f"{t_ns} message {number} delay {delay}")
        if delay >= LATE:
            late.append(number)
        if delay >= LATE and number - 3 in late and crashes and scenario.fleet.agents >= 2:
            violations = [Violation("overtaken", "G2", t_ns, f"message {number} came too late")]
            break
    return Result(
        name=scenario.name,
        seed=seed,
        verdict="violation" if violations else "pass",
        violations=violations,
        trace_hash=ledger.trace_hash,
        waypoints=ledger.waypoints,
        events=len(ledger.entries),
        messages=len(ledger.entries),
        virtual_ns=t_ns,
        probes={"late": len(late), "very late": 0},
        metrics={"finish_s": t_ns / 1e9, "messages": float(len(ledger.entries))},
        faults=[ExecutedFault(part.kind, part.kind, 0) for part in scenario.fault],
        journal=ledger.piece(window_at),
    )


def telling_collection(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """A toy that tells whether garbage is collected within runs."""
    result = toy(scenario, seed, choices=choices)
    result.metrics["is_collecting"] = float(gc.isenabled())
    return result


def many_verdicts(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """By the seed: every tenth undecided, every eleventh broken, every seventh a violation of one of two oracles."""
    result = toy(scenario, seed, choices=choices)
    if seed % 10 == 0:
        result.verdict, result.pending = "undecided", ["epoch 3"]
    elif seed % 11 == 0:
        result.verdict, result.error = "broken", f"KeyError: {seed}"
    elif seed % 7 == 0:
        result.verdict = "violation"
        result.violations = [Violation("orphan" if seed % 2 else "line", "G1", seed, f"evidence of {seed}")]
    if seed % 13 == 0:
        result.probes["rare"] = 1
        result.metrics["rare_s"] = seed / 10
    return result


def dying(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Seeds 7 and 20 end the process, seed 3 raises, which a runner should not."""
    if seed == 3:
        raise ZeroDivisionError("three")
    if seed == 7:
        os._exit(9)
    if seed == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return toy(scenario, seed, choices=choices)


def endless(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Seed 5 never ends."""
    while seed == 5:
        pass
    return toy(scenario, seed, choices=choices)


def deaf(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Seed 5 never ends, and hears no alarm."""
    if seed == 5:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(SLEEP_S)
    return toy(scenario, seed, choices=choices)


def hashing(scenario: Scenario, seed: int, *, choices: Choices | None = None, window_at: int | None = None) -> Result:
    """Entry 1500 depends on the hash of a string; with fewer messages all is well."""
    result = toy(scenario, seed, choices=choices)
    ledger = Ledger()
    for number in range(result.messages):
        ledger.note(f"entry {number}" if number != 1500 else f"entry {number} {hash('snapline')}")
    result.trace_hash, result.waypoints = ledger.trace_hash, ledger.waypoints
    result.journal = ledger.piece(window_at)
    return result


_runs: list[int] = []


def manifests_cached(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """From its third run in one process on it is another: something is left over."""
    _runs.append(seed)
    result = toy(scenario, seed, choices=choices)
    if len(_runs) > 2:
        result.trace_hash += "!"
    return result


_calls: list[int] = []


def sometimes(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Fails in its first run only."""
    _calls.append(seed)
    result = toy(scenario, seed, choices=choices)
    is_first = len(_calls) == 1
    result.verdict = "violation" if is_first else "pass"
    result.violations = [Violation("once", "G1", 0, "only once")] if is_first else []
    return result


def hashing_unseen(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """`hashing` without a journal."""
    return hashing(scenario, seed, choices=choices)


def flagged_pass(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Never fails."""
    result = toy(scenario, seed, choices=choices)
    result.verdict, result.violations = "pass", []
    return result


def forget() -> None:
    """What `manifests_cached` and `sometimes` have seen."""
    _runs.clear()
    _calls.clear()


def telling_its_process(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """With the number of its process among the metrics; slow enough for others to get a share."""
    result = toy(scenario, seed, choices=choices)
    result.metrics["process"] = float(os.getpid())
    time.sleep(0.02)
    return result


PRICES_S = {"chandy-lamport": 0.02, "uncoordinated": 0.06, "bcs": 0.03, "fdas": 0.03, "hmnr": 0.04, "cas": 0.0}
"""What a checkpoint makes the work longer."""


def loss_s(protocol: str, interval_s: float) -> float:
    """What a failure makes it longer: half of an interval is lost, and time passes until all run again."""
    return 0.1 + interval_s / 2 * (3 if protocol == "uncoordinated" else 1)


def priced(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """Ten seconds of work, more or less by the seed; longer by what checkpoints and failures cost."""
    choices = choices or RandomChoices(seed)
    work_s = 9 + choices.pick("workload", (), 2001) / 1000
    fleet = scenario.fleet
    noise = (choices.pick("net", (fleet.protocol, fleet.trigger.every), 2001) - 1000) / 1e6
    took_s = work_s * (1 + noise)
    if fleet.trigger.kind != "none":
        interval_s = fleet.trigger.every_ns / 1e9
        took_s += work_s * PRICES_S[fleet.protocol] / interval_s
        calm_s = took_s
        for part in scenario.fault:
            took_s += loss_s(fleet.protocol, interval_s) if part.word.at_ns / 1e9 <= calm_s else 0.0
        # All that struck in the calm time count, and no more: later ones are after the work.
        faults = [
            ExecutedFault(one.kind, "", one.word.at_ns) for one in scenario.fault if one.word.at_ns <= calm_s * 1e9
        ]
    else:
        faults = []
    return Result(
        name=scenario.name, seed=seed, verdict="pass", faults=faults, metrics={"finish_s": took_s, "turns": 1000.0}
    )


def priced_in_turns(scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result:
    """The same with lost turns, which tell twice as much as the time does."""
    result = priced(scenario, seed, choices=choices)
    trigger = scenario.fleet.trigger
    bare = msgspec.structs.replace(scenario.fleet, trigger=TriggerPart(kind="none"))
    work_s = priced(msgspec.structs.replace(scenario, fleet=bare), seed).metrics["finish_s"]
    lost_s = 2 * len(result.faults) * loss_s(scenario.fleet.protocol, trigger.every_ns / 1e9)
    result.metrics["lost_turns"] = 1000 * lost_s / work_s
    result.metrics["turns"] = 1000 + result.metrics["lost_turns"]
    result.metrics["recovery_s"] = 0.0
    return result
