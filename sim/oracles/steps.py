"""A step whose turn has gone on is not run again for the same turn (G3), whatever dies and whatever checkpoint a recovery goes back to.

The books are what a handler has seen: how many durable turns its agent had begun before, what its own was begun for, in which state, and what
came of each thing that it asked for. What time it was is left out: a turn that is run again is given the time of its first run (`ctx.now`), if it went on from a step behind that. Seeds, digests and logs of the product are not looked at, nor is its count. A turn that begins as another one
did, and has seen the same, is the same turn.
"""

from collections.abc import Iterable

import msgspec

from snapline.agent_runtime.host.events import StartTurn, TurnEnded, TurnFailed
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.oracles.waits import WaitOracle
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry


class StepRun(msgspec.Struct):
    """One run of a handler. `begun`: as what; `seen`: results of all its requests; `asked`: the step that runs. `is_counted`: it has
    shown that it is durable; `has_failed`: it has raised, and is durable."""

    begun: tuple[object, ...]
    seen: list[JournalEntry]
    asked: tuple[object, ...] | None = None
    is_counted: bool = False
    has_failed: bool = False


class StepOracle:
    """Step oracle of one run of the world. The caller reports each agent's events in their order. `waits`: those with a time limit."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.waits = WaitOracle(report)
        self._runs: dict[tuple[str, int], StepRun] = {}
        self._gone_on: dict[tuple[object, ...], None] = {}
        self._counts: dict[tuple[str, int], int] = {}
        """Agent and incarnation → durable turns begun in its history."""
        self._captured: dict[tuple[str, int, int], int] = {}
        """The same in each of its checkpoints, by number."""

    def place_of(self, agent: str, incarnation: int) -> tuple[object, ...]:
        """Return the state of the agent's turn: what it was begun for, and all that it has seen."""
        run = self._runs[agent, incarnation]
        return (*run.begun, *run.seen)

    def on_captured(self, agent: str, incarnation: int, number: int) -> None:
        """A checkpoint was taken."""
        self._captured[agent, incarnation, number] = self._counts.get((agent, incarnation), 0)

    def on_loaded(self, agent: str, incarnation: int, checkpoint: AgentCheckpoint | None) -> None:
        """Note that the agent resumes from a checkpoint; None: it begins."""
        if checkpoint is not None:
            place = agent, checkpoint.incarnation, checkpoint.number
            self._counts[agent, incarnation] = self._captured.get(place, 0)

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """A turn begins, or its next segment; `state`: of its agent, encoded."""
        place = turn.agent, turn.incarnation
        count, saved = self._counts.get(place, 0), turn.turn
        if saved is not None:
            begun = (turn.agent, count, saved.sender, saved.payload, state)
            self._runs[place] = StepRun(begun, list(saved.journal), is_counted=True)
        elif turn.what != "segment":
            self._runs[place] = StepRun((turn.agent, count + 1, turn.sender, turn.payload, state), [])
        elif turn.found is not None:
            run = self._runs[place]
            run.seen.append(turn.found)
            if run.asked is not None:
                self._gone_on[run.asked] = None
                run.asked = None

    def on_ended(self, ended: TurnEnded | TurnFailed) -> None:
        """Note that a turn has ended, or that its handler waits now, some of its requests answered at once."""
        run = self._runs.get((ended.agent, ended.incarnation))
        if run is None:
            return
        if isinstance(ended, TurnFailed):
            run.has_failed = ended.is_durable
            if ended.is_of_step and run.seen:
                self._gone_on.pop((*run.begun, _timeless(run.seen[:-1]), run.seen[-1].name), None)
            return
        if ended.pause is not None:
            run.seen += ended.pause.entries
        if ended.pause is not None or ended.is_durable:
            self._count(ended.agent, ended.incarnation, run)

    def on_dead_lettered(self, agent: str, incarnation: int) -> None:
        """Note that the message of the turn was dead-lettered."""
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
        if run.asked in self._gone_on:
            text = (
                f"step {name!r} of {agent}, behind {len(run.seen)} entries, is run again: its turn had gone on from it"
            )
            self._report("steps", "G3", t_ns, text)

    def on_dropped(self) -> None:
        """A plan gives up, by a person's word, what earlier plans took and did."""
        self._gone_on.clear()


def _timeless(seen: Iterable[JournalEntry]) -> tuple[JournalEntry, ...]:
    return tuple([entry for entry in seen if entry.kind != "now"])
