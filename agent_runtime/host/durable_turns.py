"""The part of a host core that carries turns which take long: segments of a handler, and what it waits for between them.

Theory of operation
-------------------
For everything else here a segment is a turn like any other: it ends with sends, which leave at once, and then the agent stands between
two turns: it may record, take a checkpoint, be frozen, or be held, and while it is held it does not go on. What it was begun for counts
as consumed when its first segment has ended. The agent's checkpoint holds the *turn* beside the state that it began with: what it was
begun for, and its journal. So a recovery restores both, and the handler runs again, up to where the journal ends (`durable.py`).

While a turn waits nothing else has a turn. A call waits for the reply with its id, `receive` for the next message of a type, and either
may stand behind others in the mailbox. Those before it on its own channel are consumed with it, in order, and go to the agent's *stash*: so
one number says how far a channel is consumed (G2), and for protocols they are messages that were received. They have their turns when
this one is over, before anything else.

A step's result is in the journal as soon as it has ended; nothing of it is on a channel.

Carries G3 for turns that wait.
"""

from collections.abc import Iterator

from snapline.agent_runtime.durable import DONE, LATE, REPLY, Pause, call_id, reply_to
from snapline.agent_runtime.host import durable_events as de
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host import letters
from snapline.agent_runtime.host import watch_events as we
from snapline.agent_runtime.host.desk import HostDesk
from snapline.agent_runtime.host.failures import HostFailures, last_line, sender_of, what_of
from snapline.agent_runtime.host.inputs import Inputs
from snapline.agent_runtime.host.local_agent import (
    PARKED_MESSAGES_MAX,
    SEGMENT,
    DurableTurn,
    Entry,
    LocalAgent,
)
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.timers import Timers
from snapline.storage.log.records import LoggedInput
from snapline.storage.packs.checkpoint import TURN_TIMER, JournalEntry, SavedTurn, StashedMessage

STASH_MAX = 10_000
"""Messages that may wait until a turn is over. A call, or a receive, that has to pass by more of them is late."""


class DurableTurns:
    """Of the agents here."""

    _mode: HostMode

    def __init__(
        self, desk: HostDesk, failures: HostFailures, mailboxes: Mailboxes, timers: Timers, inputs: Inputs
    ) -> None:
        self._desk = desk
        self._failures = failures
        self._mailboxes = mailboxes
        self._timers = timers
        self._inputs = inputs

    def wire(self, mode: HostMode) -> None:
        """The core's word on who is above."""
        self._mode = mode

    # ---- segments -------------------------------------------------------------------------------------------------

    def paused(self, agent: LocalAgent, entry: Entry, pause: Pause) -> None:
        """A segment has ended, and the turn waits."""
        turn = agent.turn
        if turn is None:
            turn = agent.turn = self._begin(agent, entry, pause)
        turn.journal.extend(pause.entries)
        if turn.waits is None:
            turn.waits = pause.waits
            if pause.timeout_ns is not None and pause.waits.kind != "step":
                self._timers.set(agent, TURN_TIMER, pause.timeout_ns, b"")
        turn.is_live, turn.since_ns = True, self._desk.now
        if turn.waits.kind == "step":
            self._desk.out.append(de.RunStep(agent.id, agent.incarnation, len(turn.journal), turn.waits.name))

    def _begin(self, agent: LocalAgent, entry: Entry, pause: Pause) -> DurableTurn:
        """The first segment has ended: what the turn was begun for is consumed."""
        mark = entry[1]
        key = mark.key if isinstance(mark, LoggedInput | StashedMessage) else ""
        what, sender, payload = what_of(entry), sender_of(agent, entry), entry[2]
        if letters.is_word(entry):  # the turn has its message now
            what, sender, payload = letters.turn_of(agent, payload)
            letters.handled(agent, entry[2])
        turn = DurableTurn(SavedTurn(what, sender, payload, pause.seed, key))
        self._mailboxes.consume(entry, is_open=True)
        self._mailboxes.free_windows(agent)
        return turn

    def ended(self, agent: LocalAgent, *, reply: bytes = b"", is_buried: bool = False) -> None:
        """The turn is over."""
        turn, agent.turn = agent.turn, None
        assert turn is not None
        if turn.key:
            self._inputs.close(agent, turn.key, is_buried=is_buried, reply=reply)
        _forget_time_out(agent)

    def failed(self, agent: LocalAgent, event: ev.TurnFailed) -> bool:
        """Its handler has raised; returns whether the turn may be tried again: if it does not repeat itself, it stands."""
        turn = agent.turn
        assert turn is not None
        turn.is_live = False
        if event.is_divergent:
            turn.problem = last_line(event.error)
            agent.current, agent.attempts = None, 0
            self._desk.note("error", f"agent {agent.id} stands in the middle of a turn: {turn.problem}")
        return not event.is_divergent

    def bury(self, agent: LocalAgent, event: ev.TurnFailed) -> None:
        """It has failed for good: what it was begun for is a dead letter."""
        turn = agent.turn
        assert turn is not None
        stashed = StashedMessage(turn.sender, turn.payload, turn.key)
        self._failures.bury(agent, (None, stashed, turn.payload), event.error, agent.attempts, event.time_ns)
        self.ended(agent, is_buried=True)

    # ---- going on -------------------------------------------------------------------------------------------------

    def next_entry(self, agent: LocalAgent) -> Entry | None:
        """What the agent does next, while a turn of its waits or others wait for the end of one; None: nothing yet."""
        turn = agent.turn
        if turn is None:
            stashed = agent.stash.pop(0)
            return None, stashed, stashed.payload
        if turn.problem or agent.is_full:
            return None
        while agent.parked > PARKED_MESSAGES_MAX:
            if not self._put_off(agent):
                return None
        while turn.waits is not None and turn.is_live and not self._find(agent, turn, turn.waits):
            if turn.waits.kind not in ("call", "receive") or not self._put_off(agent, turn.waits):
                return None
        return SEGMENT

    def start(self, agent: LocalAgent) -> None:
        """Run its next segment."""
        turn = agent.turn
        assert turn is not None
        found, again = (turn.journal[-1], None) if turn.is_live else (None, turn.saved())
        self._desk.out.append(
            ev.StartTurn(agent.id, agent.incarnation, "segment", turn.sender, turn.payload, found, again)
        )

    def on_step_ended(self, event: de.StepEnded) -> None:
        agent = self._desk.agents.get(event.agent)
        turn = agent.turn if agent is not None else None
        if agent is None or turn is None or turn.waits is None or agent.incarnation != event.incarnation:
            return
        if turn.waits.kind == "step" and event.place == len(turn.journal):
            self._finish(agent, turn, turn.waits, event.outcome, event.result)
            self._mode.moved(agent)
            self._mailboxes.next_turn(agent)

    def gone(self, agent: LocalAgent, callee: str) -> None:
        """There is no such agent, or no longer, and all that it has sent is here: who waits for its reply waits in vain."""
        turn = agent.turn
        waits = turn.waits if turn is not None and turn.is_live else None
        if turn is None or waits is None or (waits.kind, waits.name) != ("call", callee):
            return
        if not any(self._is_it(turn, waits, entry) for entry in agent.mailbox):
            self._finish(agent, turn, waits, DONE, b"")
            self._mode.moved(agent)
            self._mailboxes.next_turn(agent)

    def _finish(
        self, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry, outcome: str, result: bytes, sender: str = ""
    ) -> None:
        turn.journal.append(JournalEntry(waits.kind, waits.name, waits.digest, outcome, result, sender))
        turn.waits = None
        if waits.kind != "step":
            _forget_time_out(agent)

    # ---- what comes -----------------------------------------------------------------------------------------------

    def _find(self, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry) -> bool:
        """Is what the turn waits for in the mailbox? Then it is taken, and what stands before it on its channel goes to the stash."""
        if waits.kind == "step":
            return False
        if waits.kind == "receive" and self._find_put_off(agent, turn, waits):
            return True
        for place, entry in enumerate(agent.mailbox):
            if entry[1] == TURN_TIMER:
                del agent.mailbox[place]
                self._finish(agent, turn, waits, DONE if waits.kind == "sleep" else LATE, b"")
                return True
            if waits.kind != "sleep" and self._is_it(turn, waits, entry):
                self._take(agent, turn, waits, entry)
                return True
        return False

    def _find_put_off(self, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry) -> bool:
        """Has it been consumed in this turn already, with another one behind it? Then it has no turn of its own any more."""
        for place, stashed in enumerate(agent.stash):
            if _is_of(stashed.payload, waits.name):
                del agent.stash[place]
                self._tell_taken(agent, "stashed", stashed.sender, stashed.payload)
                if stashed.key:
                    # Busy: a client that waits may bring a checkpoint, and with it the next segment.
                    agent.current = SEGMENT
                    self._inputs.close(agent, stashed.key, is_buried=False, reply=b"")
                    agent.current = None
                self._finish(agent, turn, waits, DONE, stashed.payload, stashed.sender)
                return True
        return False

    def _is_it(self, turn: DurableTurn, waits: JournalEntry, entry: Entry) -> bool:
        inlet, mark, payload = entry
        if inlet is None and not isinstance(mark, LoggedInput):
            return False
        if waits.kind == "receive":
            return _is_of(payload, waits.name)
        return inlet is not None and inlet.sender == waits.name and payload.startswith(_reply_to(turn))

    def _take(self, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry, entry: Entry) -> None:
        earlier = list(_before(agent, entry))
        if len(agent.stash) + len(earlier) > STASH_MAX:
            self._finish(agent, turn, waits, LATE, b"")
            return
        for each in earlier:
            self._consume(agent, each, is_stashed=True)
        self._consume(agent, entry, is_stashed=False)
        payload = entry[2]
        if waits.kind == "call":
            payload = payload[len(_reply_to(turn)) :]
        self._finish(agent, turn, waits, DONE, payload, sender_of(agent, entry))

    def _put_off(self, agent: LocalAgent, waits: JournalEntry | None = None) -> bool:
        """Make room in full channels: what the turn waits for can leave its sender only when those before it were received.

        Returns whether anything was put off.
        """
        before = len(agent.stash)
        for inlet in list(agent.inlets.values()):
            is_of_use = waits is None or waits.kind != "call" or inlet.sender == waits.name
            if is_of_use and inlet.arrived >= inlet.credit_told:
                waiting = [entry for entry in agent.mailbox if entry[0] is inlet]
                for entry in waiting[: STASH_MAX - len(agent.stash)]:
                    self._consume(agent, entry, is_stashed=True)
        return len(agent.stash) > before

    def _consume(self, agent: LocalAgent, entry: Entry, *, is_stashed: bool) -> None:
        """As the beginning of a turn of its own would: the protocol sees it, and it counts as received."""
        agent.mailbox.remove(entry)
        what, sender, payload = what_of(entry), sender_of(agent, entry), entry[2]
        is_stashed = is_stashed and not payload.startswith(REPLY)  # of a call that has given up
        self._mailboxes.consuming(agent, entry)
        if is_stashed:
            key = entry[1].key if isinstance(entry[1], LoggedInput) else ""
            agent.stash.append(StashedMessage(sender, payload, key))
        self._tell_taken(agent, what, sender, payload, is_stashed=is_stashed)
        # Busy: what its credit lets go arrives, and must not begin the next segment in the middle of this.
        agent.current = SEGMENT
        self._mailboxes.consume(entry, is_open=is_stashed)
        agent.current = None

    def _tell_taken(
        self, agent: LocalAgent, what: str, sender: str, payload: bytes, *, is_stashed: bool = False
    ) -> None:
        if self._desk.is_watched:
            self._desk.out.append(we.MessageTaken(agent.id, what, sender, payload, is_stashed))


def _before(agent: LocalAgent, entry: Entry) -> Iterator[Entry]:
    """What waits before it on its channel; of an input, the inputs before it."""
    for other in agent.mailbox:
        if other is entry:
            return
        if other[0] is entry[0] and (other[0] is not None or isinstance(other[1], LoggedInput)):
            yield other


def _forget_time_out(agent: LocalAgent) -> None:
    """It may have come already, behind what was waited for."""
    if agent.timers.pop(TURN_TIMER, None) is None:
        for place, entry in enumerate(agent.mailbox):
            if entry[1] == TURN_TIMER:
                del agent.mailbox[place]
                return


def _reply_to(turn: DurableTurn) -> bytes:
    """How the reply begins for which it waits."""
    return reply_to(call_id(turn.seed, len(turn.journal)))


def _is_of(payload: bytes, name: str) -> bool:
    """Is this a message of that type?"""
    return payload[1 : 1 + payload[0]] == name.encode()
