"""A step whose turn has continued is not run again for the same turn (G3), despite crashes and recoveries from any checkpoint.

The oracle identifies a turn by what its handler has seen: the number of the agent's earlier durable turns, the turn's cause and first state,
and the outcome of each request. Turns with the same begin and outcomes are the same turn. Times are left out: a replayed turn gets the time of
its first run (`ctx.now`) if it continued from a later step. The oracle uses no seeds, digests, logs or counts of the product.
"""

from collections.abc import Iterable

import msgspec

from snapline.agent_runtime.host.events import StartTurn, TurnEnded, TurnFailed
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.oracles.waits import WaitOracle
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry


class StepRun(msgspec.Struct):
    """One run of a handler.

    Attributes:
        begun: cause, state and number of the turn.
        seen: outcomes of all its requests.
        asked: the running step.
        is_counted: the handler has proved to be durable.
        has_failed: it has raised, and is durable.
    """

    begun: tuple[object, ...]
    seen: list[JournalEntry]
    asked: tuple[object, ...] | None = None
    is_counted: bool = False
    has_failed: bool = False


class StepOracle:
    """Step oracle of one run of the world. The caller reports each agent's events in order. `waits`: oracle of waits with a time limit."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.waits = WaitOracle(report)
        self._runs: dict[tuple[str, int], StepRun] = {}
        self._continued_steps: dict[tuple[object, ...], None] = {}
        self._counts: dict[tuple[str, int], int] = {}
        """(agent, incarnation) → durable turns begun in its history."""
        self._captured: dict[tuple[str, int, int], int] = {}
        """(agent, incarnation, checkpoint number) → durable turns begun before that checkpoint."""

    def place_of(self, agent: str, incarnation: int) -> tuple[object, ...]:
        """Return the identity of the agent's turn: its begin, and all outcomes that it has seen."""
        run = self._runs[agent, incarnation]
        return (*run.begun, *run.seen)

    def on_captured(self, agent: str, incarnation: int, number: int) -> None:
        """Record a checkpoint."""
        self._captured[agent, incarnation, number] = self._counts.get((agent, incarnation), 0)

    def on_loaded(self, agent: str, incarnation: int, checkpoint: AgentCheckpoint | None) -> None:
        """Record that the agent resumes from a checkpoint, or (None) begins."""
        if checkpoint is not None:
            place = agent, checkpoint.incarnation, checkpoint.number
            self._counts[agent, incarnation] = self._captured.get(place, 0)

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """Record the begin of a turn or of its next segment. `state`: the agent's encoded state."""
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
        """Record that a turn has ended, or that its handler now waits, with some requests answered at once."""
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
        """Check a step that its turn runs now."""
        run = self._runs[agent, incarnation]
        run.asked = (*run.begun, _timeless(run.seen), name)
        if run.asked in self._continued_steps:
            text = (
                f"step {name!r} of {agent}, behind {len(run.seen)} entries, is run again: its turn had gone on from it"
            )
            self._report("steps", "G3", t_ns, text)

    def on_dropped(self) -> None:
        """Forget all steps: an operator's plan discards the inputs and steps of earlier plans."""
        self._continued_steps.clear()


def _timeless(seen: Iterable[JournalEntry]) -> tuple[JournalEntry, ...]:
    return tuple([entry for entry in seen if entry.kind != "now"])
