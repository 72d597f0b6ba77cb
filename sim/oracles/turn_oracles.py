"""Oracles of running turns, which check steps (G3), waits (G3), rollback requests (G3) and effects (G12).

*Steps.* A step whose turn has continued is not run again for the same turn, despite crashes and recoveries from any checkpoint. The oracle
identifies a turn by what its handler has received: the number of the agent's earlier durable turns, the turn's cause and first state, and
the outcome of each request. Turns with the same start and outcomes are the same turn. Times are ignored: a replayed turn gets the time of
its first run (`ctx.now`) if it continued from a later step. The oracle uses no seeds, digests, logs or counts of the product.

*Waits.* A durable wait with a time limit ends when that time has passed since the wait first began; no recovery restarts the wait or
ends it early. A wait is identified like a step: by the start of its turn and the outcomes that the turn has received. A crashed or slow
host may be late. So the deadline is the latest of three times (the wait's own end, the last load of its agent, the end of the last
fault), plus some tolerance. The oracle does not judge runs with wrong wall clocks.

*Rollbacks.* An agent that requests a rollback (`ctx.rollback`) takes no further turn in that incarnation, and the fleet is restored once
in response. The oracle uses the turns that request rollbacks and the entries of the log. The plan of a restore that names an agent
answers a request of that incarnation. A second rollback from the same place for the same reason is left to operators. This holds as long
as the log keeps the plan of the first rollback and no operator has restored the fleet since.

*Effects.* No crash makes a fleet call an effect again after its turn has used the outcome, or under its old key after the effect was
undone. The oracle records the keys sent to outside services and the outcomes given to handlers. A key belongs to one effect in one
generation. Hosts that a plan has replaced may call pending effects for a while: they are not fenced, and the service knows their keys. A
restored fleet does not repeat effects executed since. If the bytes of a complete epoch are lost, the fleet may repeat effects, so the
oracle reports nothing more.
"""

from collections.abc import Iterable, Sequence

import msgspec

from snapline.agent_runtime.durable import DONE, LATE
from snapline.agent_runtime.host.host_events import StartTurn, TurnEnded, TurnFailed
from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.messages.effect_records import UNDO
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.oracles.input_output_oracles import InputOracle
from snapline.sim.result import ExecutedFault
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry

PATIENCE_NS = 2_000_000_000
"""Time in nanoseconds allowed for a handler to reach its wait again, and for freezes."""

EARLY_NS = 1_000_000

TurnPosition = tuple[object, ...]


class WaitOracle:
    """Wait oracle of one run."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._due_ns: dict[TurnPosition, tuple[int, int]] = {}
        """Earliest and latest end of each wait: several histories may have reached the wait, and a replaced host continues."""
        self._loaded_ns: dict[str, int] = {}

    def on_loaded(self, t_ns: int, agent: str) -> None:
        """Record that a host has loaded the agent under a new plan."""
        self._loaded_ns[agent] = t_ns

    def on_waiting(self, t_ns: int, place: TurnPosition, timeout_ns: int, *, is_again: bool) -> None:
        """Record a turn's wait. If `is_again`, the turn was restored from a checkpoint taken during this wait."""
        if not is_again or place not in self._due_ns:
            due_ns = t_ns + timeout_ns
            least_ns, most_ns = self._due_ns.get(place, (due_ns, due_ns))
            self._due_ns[place] = min(least_ns, due_ns), max(most_ns, due_ns)

    def on_over(
        self, t_ns: int, agent: str, place: TurnPosition, found: JournalEntry, faults: Sequence[ExecutedFault]
    ) -> None:
        """Check the end of a wait, after which its turn continues. `faults` lists the faults executed so far."""
        due = self._due_ns.get(place)
        is_timed = (found.kind, found.outcome) == ("sleep", DONE) or found.outcome == LATE
        if due is None or not is_timed or any(fault.kind == "clock" for fault in faults):
            return
        least_ns, due_ns = due
        if t_ns < least_ns - EARLY_NS:
            self._report(
                "waits", "G3", t_ns, f"a {found.kind} of {agent} ends {_s(least_ns - t_ns)} before its time is over"
            )
        ends_ns = [fault.until_ns or fault.at_ns for fault in faults]
        latest_ns = max([due_ns, self._loaded_ns.get(agent, 0), *ends_ns])
        if latest_ns < t_ns - PATIENCE_NS:
            text = f"a {found.kind} of {agent} ends {_s(t_ns - due_ns)} after its time is over, and {_s(t_ns - latest_ns)} after the last fault or recovery"
            self._report("waits", "G3", t_ns, text)


def _s(span_ns: int) -> str:
    return f"{span_ns / 1e9:.3g} s"


class StepRun(msgspec.Struct):
    """One run of a handler.

    Attributes:
        begun: cause, first state and number of the turn.
        seen: outcomes of all requests of the turn so far.
        asked: the step that is running.
        is_counted: whether the handler has proved to be durable.
        has_failed: whether the durable handler has raised an exception.
    """

    begun: tuple[object, ...]
    seen: list[JournalEntry]
    asked: tuple[object, ...] | None = None
    is_counted: bool = False
    has_failed: bool = False


class StepOracle:
    """Step oracle of one run of the world. The caller reports each agent's events in order. `waits` is the oracle of waits with a time
    limit."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.waits = WaitOracle(report)
        self._runs: dict[tuple[str, int], StepRun] = {}
        self._continued_steps: dict[tuple[object, ...], None] = {}
        self._counts: dict[tuple[str, int], int] = {}
        """Number of durable turns begun in the history of each (agent, incarnation)."""
        self._captured: dict[tuple[str, int, int], int] = {}
        """Number of durable turns begun before each checkpoint, by (agent, incarnation, checkpoint number)."""

    def place_of(self, agent: str, incarnation: int) -> tuple[object, ...]:
        """Return the identity of the agent's turn: its start, and all outcomes that it has received."""
        run = self._runs[agent, incarnation]
        return (*run.begun, *run.seen)

    def on_captured(self, agent: str, incarnation: int, number: int) -> None:
        """Record the number of durable turns before a checkpoint."""
        self._captured[agent, incarnation, number] = self._counts.get((agent, incarnation), 0)

    def on_loaded(self, agent: str, incarnation: int, checkpoint: AgentCheckpoint | None) -> None:
        """Record that the agent resumes from a checkpoint, or starts in its initial state (None)."""
        if checkpoint is not None:
            place = agent, checkpoint.incarnation, checkpoint.number
            self._counts[agent, incarnation] = self._captured.get(place, 0)

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """Record the start of a turn or of its next segment. `state` is the agent's encoded state."""
        place = turn.agent, turn.incarnation
        count, saved = self._counts.get(place, 0), turn.turn
        if saved is not None:
            identity = (turn.agent, count, saved.sender, saved.payload, state)
            self._runs[place] = StepRun(identity, list(saved.journal), is_counted=True)
        elif turn.what != "segment":
            self._runs[place] = StepRun((turn.agent, count + 1, turn.sender, turn.payload, state), [])
        elif turn.found is not None:
            run = self._runs[place]
            run.seen.append(turn.found)
            if run.asked is not None:
                self._continued_steps[run.asked] = None
                run.asked = None

    def on_ended(self, ended: TurnEnded | TurnFailed) -> None:
        """Record that a turn has ended, or that its handler now waits, including requests that were answered at once."""
        run = self._runs.get((ended.agent, ended.incarnation))
        if run is None:
            return
        if isinstance(ended, TurnFailed):
            run.has_failed = ended.is_durable
            if ended.is_of_step and run.seen:
                self._continued_steps.pop((*run.begun, _timeless(run.seen[:-1]), run.seen[-1].name), None)
            return
        if ended.pause is not None:
            run.seen += ended.pause.entries
        if ended.pause is not None or ended.is_durable:
            self._count(ended.agent, ended.incarnation, run)

    def on_dead_lettered(self, agent: str, incarnation: int) -> None:
        """Record that the message of the turn was dead-lettered."""
        run = self._runs.get((agent, incarnation))
        if run is not None and run.has_failed:
            self._count(agent, incarnation, run)

    def _count(self, agent: str, incarnation: int, run: StepRun) -> None:
        if not run.is_counted:
            run.is_counted = True
            self._counts[agent, incarnation] = self._counts.get((agent, incarnation), 0) + 1

    def on_step(self, t_ns: int, agent: str, incarnation: int, name: str) -> None:
        """Check a step that is being run for its turn."""
        run = self._runs[agent, incarnation]
        run.asked = (*run.begun, _timeless(run.seen), name)
        if run.asked in self._continued_steps:
            text = (
                f"step {name!r} of {agent}, behind {len(run.seen)} entries, is run again: its turn had gone on from it"
            )
            self._report("steps", "G3", t_ns, text)

    def on_dropped(self) -> None:
        """Discard all recorded steps, because an operator's plan drops the inputs and steps of earlier plans."""
        self._continued_steps.clear()


def _timeless(seen: Iterable[JournalEntry]) -> tuple[JournalEntry, ...]:
    return tuple([entry for entry in seen if entry.kind != "now"])


class RollbackOracle:
    """Rollback oracle of one run.

    Attributes:
        asked: time of the rollback request of each (agent, incarnation).
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.asked: dict[tuple[str, int], int] = {}
        self._granted: dict[str, int] = {}
        """Plan that granted each rollback, by the reason in the plan."""

    def on_rollback_requested(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Record a turn that ended with a rollback request."""
        self.asked[agent, incarnation] = t_ns

    def on_turn(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Check that an agent takes no turn after its rollback request."""
        if (agent, incarnation) in self.asked:
            self._report("rollback", "G3", t_ns, f"{agent} has asked that the fleet goes back, and takes a turn")

    def on_restored(self, t_ns: int, kind: op.Restore, plan: int) -> None:
        """Check a restore against the recorded rollback requests."""
        if not kind.agent:
            self._granted.clear()
            return
        if kind.request not in [f"{agent}@{incarnation}" for agent, incarnation in self.asked]:
            self._report("rollback", "G3", t_ns, f"the fleet goes back for {kind.request}, which has not asked for it")
        before = self._granted.get(kind.reason)
        if before is not None and plan - before < fleet_records.PLANS_KEPT:
            self._report("rollback", "G3", t_ns, f"the fleet goes back once more, since plan {before}: {kind.reason}")
        self._granted[kind.reason] = plan


class EffectOracle:
    """Effect oracle of one run of the world. `inputs` is the oracle that knows whether bytes of a complete epoch are lost."""

    def __init__(self, report: Report, inputs: InputOracle) -> None:
        self._report = report
        self._inputs = inputs
        self._called: dict[tuple[str, int], str] = {}
        self._ended: dict[str, None] = {}

    def on_called(self, t_ns: int, agent: str, incarnation: int, key: str, *, is_present: bool) -> None:
        """Check a call of an agent's effect under this outside key. `is_present` tells whether the call was made under the newest plan."""
        self._called[agent, incarnation] = key
        if is_present and key + UNDO in self._ended and not self._inputs.has_lost_bytes:
            self._report("effects", "G12", t_ns, f"{agent} calls an effect under a key that was undone: {key}")
        if is_present and key in self._ended and not self._inputs.has_lost_bytes:
            text = f"{agent} calls an effect again from whose outcome its turn had gone on: {key}"
            self._report("effects", "G12", t_ns, text)

    def on_started(self, turn: StartTurn) -> None:
        """Record the outcome of an effect for which this turn's next segment has waited."""
        entry = turn.found
        key = self._called.pop((turn.agent, turn.incarnation), "") if entry is not None else ""
        if entry is not None and key and (entry.kind, entry.outcome) == ("effect", DONE):
            self._ended[key] = None
