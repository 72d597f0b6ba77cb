"""Probes: counters of how often named situations occurred in a run or a sweep of runs.

An oracle without findings proves little if the situation that it checks never occurred. So the simulated world and its oracles hit a probe
each time a situation occurs. The catalogue of probes is fixed, and a sweep lists the probes that were never hit. Each probe has a verb,
which states the meaning of its hits.

- `sometimes`: at least one run of a sweep should hit the probe. Otherwise, the sweep prints a warning.
- `reachable`: as `sometimes`, but for a place in the code rather than a situation.
- `always`: the condition must hold on each check, and at least one check should happen.
- `always_or_unreachable`: as `always`, but no check needs to happen.
- `unreachable`: the probe must never be hit.

Other deterministic simulators use the same verbs. A probe never causes a violation. `failures` returns the probes whose rule was
violated.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from snapline.errors import UsageError

Verb = Literal["sometimes", "reachable", "always", "always_or_unreachable", "unreachable"]


class Probe(msgspec.Struct, frozen=True):
    """An entry in the catalogue of probes."""

    text: str
    verb: Verb = "sometimes"


CATALOGUE: dict[str, Probe] = {
    # epochs
    "channel state not empty": Probe("a complete epoch held messages in transit"),
    "outbox not empty": Probe("a complete epoch held messages that had not left their sender"),
    "concurrent epochs": Probe("two epochs were open at once"),
    "epoch aborted": Probe("an epoch ended without being complete"),
    "spawn in a cut": Probe("an agent was not born in a complete epoch: the message that creates it is in transit"),
    "agent gone before a cut": Probe("an epoch was complete after an agent had left"),
    "channel opened after a record": Probe("an agent first sent to another one after it had recorded an open epoch"),
    "link in an epoch": Probe("two hosts were linked while an epoch was open at one of them"),
    "epoch complete": Probe("an epoch was complete"),
    "leader change during an epoch": Probe("the coordinator's leader changed between begin and outcome of an epoch"),
    "old epoch read back": Probe("a kept epoch that was not the newest was read back at the end, and is what it was"),
    "snapshot asked for": Probe("somebody asked for a snapshot by hand, and got a complete one"),
    "epoch deleted under a policy": Probe("a retention policy let an epoch go"),
    "ref published": Probe("a complete epoch was given its name in the store"),
    # checkpoints of single agents
    "forced checkpoint": Probe("a message forced a checkpoint before its turn"),
    "useless checkpoint": Probe("a checkpoint lay on a Z-cycle: no consistent cut contains it"),
    "domino to the initial states": Probe(
        "no later line was left than the initial states, though there were checkpoints"
    ),
    "checkpoints deleted": Probe("a pack of checkpoints that no line needs was deleted"),
    "line advanced": Probe("a computed recovery line became an epoch"),
    "line in doubt": Probe("reports on the way allowed for more than one line"),
    # outputs
    "output emitted": Probe("a turn said something to the outside"),
    "output released": Probe("a complete epoch released what its turns had emitted"),
    "output undone": Probe("the fleet went back from an epoch that had released outputs"),
    # inputs from outside
    "input accepted": Probe("a host said that it has taken an input"),
    "input repeated": Probe("a client said an input again that had been taken, and the host said so"),
    "input retry": Probe("a host asked a client to retry"),
    "input refused": Probe("a host said that an input will never be taken"),
    "send taken": Probe("a client told its program that an input was taken"),
    "send unknown": Probe("a client told its program that nobody knows whether an input was taken"),
    "send not taken": Probe("a client told its program that an input was certainly not taken in time"),
    "send refused": Probe("a client told its program that an input will never be taken"),
    "send missing": Probe("a client told its program that an agent has stopped"),
    "send ended": Probe("a client told its program that the fleet has ended", "always_or_unreachable"),
    "send denied": Probe("a client told its program that it may not", "always_or_unreachable"),
    "ask replied": Probe("a host said what the turn of an input had answered"),
    "ask buried": Probe("a host said that an input is a dead letter"),
    "ask retry": Probe("a host told a client that waited for an answer to ask again"),
    "ask unknown": Probe("a client waited for the answer to an input that its agent's host does not know"),
    "word accepted": Probe("a word about a dead letter was taken"),
    "word repeated": Probe("a command about a dead letter was sent twice, and accepted once"),
    "word retry": Probe("an operator was asked to retry"),
    "word refused": Probe("an operator was told that there is no such dead letter"),
    "approval accepted": Probe("an answer to an approval was accepted"),
    "approval repeated": Probe("an answer to an approval was sent twice, and accepted once"),
    "approval retry": Probe("a person with an answer to an approval was asked to retry"),
    "approval refused": Probe("an answer came to an approval that was decided, or that nobody asks any more"),
    "answer taken": Probe("a person learned that a turn goes on with the answer"),
    "answer kept": Probe(
        "a person learned that an agent keeps the answer, because its turn has not come to its question again"
    ),
    "answer decided": Probe("a person learned that another answer, or the expiry, came first"),
    "letter handled": Probe("a dead letter had a turn after all"),
    "letter failed again": Probe("a dead letter was retried, and failed again"),
    "letter dropped": Probe("a dead letter was dropped"),
    "letter gone": Probe("a word came to its turn, and its letter was gone"),
    "input consumed": Probe("an input had its turn, or became a dead letter"),
    "fleet taken back": Probe("somebody took the fleet back to an earlier epoch on purpose, and was told so"),
    "agents moved on purpose": Probe("a plan moved agents since an operator wanted them elsewhere"),
    "restore refused": Probe("somebody who wanted to take the fleet back was refused"),
    "input dropped": Probe("a plan dropped an input that the log of an earlier plan held"),
    "input found in a log": Probe("a plan gave an agent an input that the log of an earlier plan held"),
    "effect resolved as done": Probe("a person said of an effect in doubt that it was done"),
    "effect resolved as not done": Probe("a person said of an effect in doubt that it was not done"),
    "effects called together": Probe("several effects of a group were called at the same time"),
    "effect in doubt": Probe("an effect that came from a checkpoint was called, or asked after"),
    "step found in a log": Probe("a plan gave an agent what the log of an earlier plan held of a durable turn"),
    # failures and recoveries
    "recovery": Probe("a plan started the fleet again"),
    "recovery to the initial states": Probe("a plan started the fleet again from its initial states"),
    "recovery to commits": Probe("a plan started an agent again from a commit of its host"),
    "agents went on": Probe("agents of a host went on under a new plan without a restart"),
    "survivors judged": Probe("a plan's line was compared with what agents on live hosts had done"),
    "recovery killed": Probe("a second plan was committed before the first was done"),
    "crash while recording": Probe("a host was lost while an epoch was open"),
    "crash while recovering": Probe("a host was lost while a plan was being applied"),
    "messages delivered again": Probe("a plan started from a line with messages in transit"),
    "resend after reset": Probe("a link sent frames again on a new stream"),
    "duplicate frame dropped": Probe("a link dropped what it had received before"),
    "older incarnation refused": Probe("a host or link refused what came from an older plan"),
    "zombie turn": Probe("a host that had not heard of a newer plan took a turn"),
    "host came back": Probe("a lost host joined again"),
    "host put out": Probe("a host that could be heard was put out, because it held the fleet up"),
    "host left": Probe("a host said goodbye"),
    # agents
    "agent spawned": Probe("an agent was created by a message"),
    "agent stopped": Probe("an agent stopped"),
    "stopped by itself": Probe("a fleet ended by its stop_when"),
    "dead letter": Probe("a message became a dead letter"),
    "dead letter of its sender": Probe("a message for nobody, or a refused creation, became a dead letter"),
    "turn failed": Probe("a handler raised"),
    "process killed by a message": Probe("the process of a host died in the middle of a turn, because of it"),
    "rollback asked for": Probe("a turn asked that the fleet goes back"),
    "rollbacks learned": Probe("a durable turn asked which rollbacks there had been"),
    "rollback refused": Probe("and an agent stood until a person took the fleet back"),
    "timer fired": Probe("a timer fired"),
    "durable turn run again": Probe("a durable turn was run again, by its journal, after a recovery or a failure"),
    "message put off": Probe("a durable turn took a message, and put an earlier one of its sender off"),
    # store
    "torn write found": Probe("a reader found a file that was written by half, and said so"),
    "unsynced data lost": Probe("a power cut took what was not synced"),
    "damaged epoch skipped": Probe("a plan passed over an epoch that was found damaged"),
    "disk full": Probe("a write failed for want of space"),
    "disk failed": Probe("a read, write or sync failed"),
    # coordinator
    "stale leader proposed": Probe("a leader that had lost its office proposed"),
    "unknown outcome": Probe("a proposer did not learn what became of its entry"),
    "proposal rejected": Probe("an entry was rejected for good"),
    "request repeated": Probe("the same request was committed twice"),
    "leader change": Probe("another replica became the leader"),
    "quorum lost": Probe("no majority of coordinators was there"),
    # the oracles themselves
    "replayed": Probe("an agent's whole history was run again and compared"),
    "replay not possible": Probe("a history could not be run again: a handler waits for the outside", "reachable"),
    "tracking judged": Probe("dependencies of an RDT protocol were compared with those that exist"),
    "fleet quiet at the end": Probe("the run ended with nothing left to do"),
}
"""All probes by name. A name that is not listed here cannot be hit."""


class Probes:
    """The hits of one run, or the combined hits of several runs.

    Attributes:
        hits: for each probe's name, the number of hits, or for a condition, how often it was true.
        misses: for each probe's name, how often the condition was false.
    """

    def __init__(self, catalogue: Mapping[str, Probe] = CATALOGUE) -> None:
        self._catalogue = catalogue
        self.hits: dict[str, int] = {}
        self.misses: dict[str, int] = {}

    def hit(self, name: str, count: int = 1) -> None:
        """Count one or more occurrences of the probe's situation.

        Raises:
            UsageError: If the probe is not in the catalogue.
        """
        if name not in self.hits and name not in self._catalogue:
            raise UsageError(f"there is no probe {name!r}: add it to CATALOGUE in sim/oracles/probes.py")
        self.hits[name] = self.hits.get(name, 0) + count

    def sometimes(self, condition: bool, name: str) -> None:
        """Hit the probe if `condition` is true."""
        if condition:
            self.hit(name)

    def reachable(self, name: str) -> None:
        """Record that a place in the code was reached."""
        self.hit(name)

    def unreachable(self, name: str) -> None:
        """Record that the run reached a place in the code that must not be reached."""
        self.hit(name)

    def always(self, condition: bool, name: str) -> None:
        """Check that `condition` is true. The condition must be true on every check."""
        self.hit(name)
        if not condition:
            self.hits[name] -= 1
            self.misses[name] = self.misses.get(name, 0) + 1

    def always_or_unreachable(self, condition: bool, name: str) -> None:
        """Check a condition as `always` does, but for a probe that a run need not reach."""
        self.always(condition, name)

    def merge(self, hits: Mapping[str, int], misses: Mapping[str, int] | None = None) -> None:
        """Add the hits of another run. Also add the hits of probes that are not in this catalogue."""
        for name, count in hits.items():
            self.hits[name] = self.hits.get(name, 0) + count
        for name, count in (misses or {}).items():
            self.misses[name] = self.misses.get(name, 0) + count

    def never_hit(self) -> list[str]:
        """Return the probes that should have been hit but were not, in the order of the catalogue."""
        expected = ("sometimes", "reachable", "always")
        return [
            name
            for name, probe in self._catalogue.items()
            if probe.verb in expected and not self.hits.get(name) and not self.misses.get(name)
        ]

    def failures(self) -> list[str]:
        """Return the probes whose condition was false, and the probes that were reached although they must not be."""
        return [
            name
            for name, probe in self._catalogue.items()
            if self.misses.get(name) or (probe.verb == "unreachable" and self.hits.get(name))
        ]
