"""The part of a host core that puts what durable turns have had into the host log, and gives it to those that are repeated.

A step's entry goes into the log when the step has ended, and with it all entries before it that are not there yet and that nobody but the
log could give back (`LOGGED_KINDS`): else the step would stand behind something that its repetition does not have. The turn goes on when the
last of them is durable; so a step that has ended is not run again, whatever checkpoint a recovery goes back to. A plan that comes
meanwhile finds the entry in the log, or the step runs again.

After a recovery each agent gets what the logs hold of turns that its checkpoint has not seen the end of. Whether a turn is that one, and is
where it was then, the handler's run finds out (`logged_steps.py`). Agents that are nowhere in the plan get theirs when they are created again.
"""

from typing import Protocol

from snapline.agent_runtime.durable import DONE, FAILED
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects, undone_by
from snapline.agent_runtime.host.host_log import OwnLog, PendingEntry
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import DurableTurn, LocalAgent, TurnsBegun
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.logged_steps import LOGGED_KINDS, rolled
from snapline.storage.log.record import BEGUN, EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.packs.saved_effects import OpenEffect


class Marked(Protocol):
    """What the log of steps needs of the effects."""

    def marked(self, agent: LocalAgent, turn: DurableTurn, mark: JournalEntry) -> None:
        """The log says that the effect is about to be called."""


class StepLog:
    """Of the agents here."""

    _effects: Marked

    def __init__(self, desk: HostState, mailboxes: Mailboxes, log: OwnLog) -> None:
        self._desk = desk
        self._mailboxes = mailboxes
        self._log = log
        self._orphans: dict[str, list[LoggedEntry]] = {}
        """Of agents that are nowhere in the plan."""
        self._has_told = False
        """The host's log says that the store takes no logs."""

    def wire(self, effects: Marked) -> None:
        """The core's word on who is above."""
        self._effects = effects

    # ---- plans ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """A plan ends the history of every agent here."""
        self._orphans.clear()

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Agents go on counting their durable turns, and get what the logs hold of those to come."""
        agents, routes = self._desk.agents, self._desk.routes
        for loaded in event.agents:
            if loaded.checkpoint is not None and loaded.checkpoint.durable_turns:
                agent = agents[loaded.agent]
                agent.begun = TurnsBegun(loaded.checkpoint.durable_turns)
                if agent.turn is not None:
                    agent.turn.number = agent.begun.count
        for logged in event.entries:
            agent_here = agents.get(logged.agent)
            if agent_here is not None:
                _restore(agent_here, logged)
            elif logged.agent not in routes:
                self._orphans.setdefault(logged.agent, []).append(logged)

    def created(self, agent: LocalAgent) -> None:
        """An agent is created here, perhaps again."""
        for logged in self._orphans.pop(agent.id, ()):
            _restore(agent, logged)

    # ---- turns ----------------------------------------------------------------------------------------------------

    def began(self, agent: LocalAgent) -> int:
        """A durable turn has begun; returns its number."""
        if agent.begun is None:
            agent.begun = TurnsBegun()
        agent.begun.count += 1
        return agent.begun.count

    def ended(self, agent: LocalAgent) -> None:
        """The durable turn that had begun last is over: nobody will ask what the logs hold of it."""
        if agent.begun is not None:
            agent.begun.logged.pop(agent.begun.count, None)

    def retried(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """It runs again: steps behind its journal of which the logs know that they failed are run again."""
        if agent.begun is not None and turn.number in agent.begun.logged:
            agent.begun.logged[turn.number] = tuple(
                each
                for each in agent.begun.logged[turn.number]
                if each.place < len(turn.journal) or (each.entry.kind, each.entry.outcome) != ("step", FAILED)
            )

    def put(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """Its step has ended: the turn goes on when the log holds that, and what was before it."""
        if self._log.why_none:
            self._tell(self._log.why_none)
            return
        known = self._places_known(agent, turn)
        fresh = [
            place
            for place in range(turn.logged, len(turn.journal))
            if turn.journal[place].kind in LOGGED_KINDS and place not in known
        ]
        turn.logged = len(turn.journal)
        for place in fresh:
            prefix = self._prefix_of(turn, place)
            entry = LoggedEntry(agent.id, turn.number, turn.seed, place, prefix, turn.journal[place])
            self._log.put(PendingEntry(entry, turn, is_last=place == fresh[-1]))
        turn.is_logging = bool(fresh)
        self._log.append()

    def _tell(self, why: str) -> None:
        if not self._has_told:
            self._has_told = True
            self._desk.note(
                "warning",
                f"{why}: steps of durable turns are in checkpoints only, and may be run again after a recovery",
            )

    def _places_known(self, agent: LocalAgent, turn: DurableTurn) -> dict[int, None]:
        """What earlier plans have put there of this very turn, looked for once."""
        found: dict[int, None] = {}
        logged = agent.begun.logged.get(turn.number, ()) if agent.begun is not None and not turn.logged else ()
        by_place: dict[tuple[int, bytes], list[JournalEntry]] = {}
        for each in logged:
            if each.seed == turn.seed:
                by_place.setdefault((each.place, each.prefix), []).append(each.entry)
        if by_place:
            prefix = b""
            for place, entry in enumerate(turn.journal):
                if entry in by_place.get((place, prefix), ()):
                    found[place] = None
                prefix = rolled(prefix, (entry,))
        return found

    def logged_of(
        self, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry, identity: str
    ) -> JournalEntry | None:
        """What the logs hold of the effect at which the turn stands; None: nothing, or of another past, or of another generation."""
        logged = agent.begun.logged.get(turn.number, ()) if agent.begun is not None else ()
        place = len(turn.journal)
        asked = waits.kind, waits.name, waits.digest, identity
        for each in logged:
            entry = each.entry
            is_it = (entry.kind, entry.name, entry.digest, entry.sender) == asked and entry.outcome in (DONE, FAILED)
            if is_it and (each.seed, each.place) == (turn.seed, place) and each.prefix == rolled(b"", turn.journal):
                return entry
        return None

    def _prefix_of(self, turn: DurableTurn, place: int) -> bytes:
        """Return the digest of the journal before a place. Places grow, so each entry is digested once, unless a mark came before what a checkpoint held."""
        if place < turn.rolled:
            turn.prefix, turn.rolled = b"", 0
        turn.prefix = rolled(turn.prefix, turn.journal[turn.rolled : place])
        turn.rolled = place
        return turn.prefix

    def mark(self, agent: LocalAgent, turn: DurableTurn, opened: OpenEffect) -> None:
        """The effect at which it stands may be called when the log says so: `Marked.marked`."""
        place = len(turn.journal)
        logged = LoggedEntry(agent.id, turn.number, turn.seed, place, self._prefix_of(turn, place), mark_of(opened))
        self._log.put(PendingEntry(logged, turn, is_last=False, is_mark=True))
        self._log.append()

    def appended(self, pending: PendingEntry) -> None:
        """The log holds it. Another turn may stand there now, or none."""
        agent = self._desk.agents.get(pending.entry.agent)
        if agent is None or agent.turn is not pending.turn:
            return
        if pending.is_mark:
            self._effects.marked(agent, pending.turn, pending.entry.entry)
        elif pending.is_last:
            pending.turn.is_logging = False
            self._mailboxes.next_turn(agent)


def mark_of(opened: OpenEffect) -> JournalEntry:
    """What the log holds of an effect that is about to be called. The number of what let it be called tells this call from one that people said was not made."""
    number = opened.number.to_bytes(8, "big")
    return JournalEntry(EFFECT, opened.name, opened.digest, BEGUN, number, f"{opened.key}#{opened.generation}")


def is_mark(entry: JournalEntry) -> bool:
    """Is it such a one?"""
    return (entry.kind, entry.outcome) == (EFFECT, BEGUN)


def _restore(agent: LocalAgent, logged: LoggedEntry) -> None:
    begun = agent.begun
    ended = 0 if begun is None else begun.count - (agent.turn is not None)
    if logged.turn > ended:
        if begun is None:
            begun = agent.begun = TurnsBegun()
        begun.logged[logged.turn] = (*begun.logged.get(logged.turn, ()), logged)
        _hear_of_undoing(agent, logged.entry)
        _hear_of_call(agent, logged.entry)
        _hear_of_effect(agent, logged.entry)


def _hear_of_undoing(agent: LocalAgent, entry: JournalEntry) -> None:
    """What was undone in a history that was given up is not done, whatever the log says of its doing."""
    undone = undone_by(entry)
    if undone is not None:
        if agent.effects is None:
            agent.effects = AgentEffects()
        agent.effects.undone_elsewhere(*undone)


def _hear_of_call(agent: LocalAgent, entry: JournalEntry) -> None:
    """An earlier life was about to call the effect at which the agent stands. Its checkpoints say so from now on: logs do not keep for ever what recoveries undo."""
    effects = agent.effects
    if effects is not None and effects.open is not None and entry == mark_of(effects.open):
        effects.begun()


def _hear_of_effect(agent: LocalAgent, entry: JournalEntry) -> None:
    """The fleet was taken back past a call: the agent knows what was done, or may have been."""
    if entry.kind == EFFECT and entry.outcome in (DONE, FAILED, BEGUN):
        if agent.effects is None:
            agent.effects = AgentEffects()
        agent.effects.called_elsewhere(entry)
