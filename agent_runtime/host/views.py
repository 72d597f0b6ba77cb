"""The part of the host core that shows an agent's state to users, immediately or as soon as the agent is between two turns.

A view changes no state and is not part of any checkpoint. A recovery may undo the state that a view shows. A new plan ends all waiting
requests, and clients then send their requests to the agent's next host.
"""

import msgspec

from snapline.agent_runtime.host.agent_effects import AgentEffects, AwaitedEffect
from snapline.agent_runtime.host.approvals import open_approvals
from snapline.agent_runtime.host.durable_turns import timer_of
from snapline.agent_runtime.host.entries import Entry, MessageEntry, SegmentEntry, TimerEntry, sender_of
from snapline.agent_runtime.host.host_events import (
    AgentView,
    AnswerOpenWaits,
    AnswerView,
    AnswerWaiting,
    OpenWaitsRequested,
    TracingRequested,
    TurnKind,
    TurnView,
    ViewRequested,
    WaitingAgentsRequested,
)
from snapline.agent_runtime.host.host_state import NEVER_RETRIED_NS, DurableTurn, HostState, LocalAgent
from snapline.messages.approvals import OpenApproval, readable_details
from snapline.messages.effect_records import (
    INTENT,
    NEEDS_PEOPLE,
    EffectRecord,
    EffectState,
    UnfinishedEffect,
    read_record,
)
from snapline.storage.packs.checkpoint import TURN_TIMER, JournalEntry

ENTRIES_SHOWN = 20
"""Largest number of journal entries shown of a durable turn. The newest entries are shown."""


IN_LOG = JournalEntry("host log", "")
"""Entry that is shown as awaited while the result of a turn's step is being logged."""

EFFECTS_SHOWN = 4000
"""Largest number of effects shown for one host. With 2 KB of text each, they fit into one document."""

APPROVALS_SHOWN = 200
"""Largest number of approvals shown for one host, those first that have waited longest. With 64 KiB of details each, they fit into one document."""

WAITING_SHOWN = 500
"""Largest number of waiting agents shown for one host. Nobody reads more, and for each agent the core must build a whole view."""


class Views:
    """Answers requests for views of this host's agents.

    Attributes:
        waiting: numbers of the requests that wait for the end of an agent's turn, by agent.
    """

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.waiting: dict[str, list[int]] = {}

    def on_view_requested(self, event: ViewRequested) -> None:
        shared = self._shared
        agent = shared.agents.get(event.agent)
        if agent is None or not shared.is_loaded:
            self._refuse(event.request, f"agent {event.agent} is not on host {shared.host} just now")
        elif event.is_settled and (agent.is_busy or agent.is_failed):
            self.waiting.setdefault(agent.id, []).append(event.request)
        else:
            shared.out.append(AnswerView(event.request, _view_of(agent, shared.now)))

    def on_open_waits_requested(self, event: OpenWaitsRequested) -> None:
        effects = [
            standing_of(agent, effect)
            for agent in self._shared.agents.values()
            if agent.turn is not None and agent.effects is not None
            for effect in agent.effects.open.values()
        ]
        open_questions = [
            _open_approval(agent, approval, place, request, self._shared)
            for agent in self._shared.agents.values()
            if agent.turn is not None
            for approval, place, request in open_approvals(agent.turn)
        ]
        open_questions.sort(key=lambda each: -each.asked_s)
        answer = AnswerOpenWaits(event.request, tuple(effects[:EFFECTS_SHOWN]), tuple(open_questions[:APPROVALS_SHOWN]))
        self._shared.out.append(answer)

    def on_waiting_agents_requested(self, event: WaitingAgentsRequested) -> None:
        """Reply with this host's agents that have waiting work. Agents with durable turns come first, sorted by waiting time, longest
        first. The remaining agents follow, sorted by number of inputs, most first."""
        now_ns = self._shared.now
        agents = [agent for agent in self._shared.agents.values() if _has_waiting(agent)]
        agents.sort(key=lambda agent: (agent.turn is None, -_waited_ns(agent.turn, now_ns), -_inputs_of(agent)))
        views = tuple([_view_of(agent, now_ns) for agent in agents[:WAITING_SHOWN]])
        self._shared.out.append(AnswerWaiting(event.request, views, len(agents) - len(views)))

    def on_tracing_requested(self, event: TracingRequested) -> None:
        self._shared.trace_every = event.every

    def turn_ended(self, agent: LocalAgent) -> None:
        """Reply to the view requests for an agent that is between two turns, just before its next turn may start."""
        for request in self.waiting.pop(agent.id, ()):
            self._shared.out.append(AnswerView(request, _view_of(agent, self._shared.now)))

    def removed(self, agent: str) -> None:
        """Refuse view requests for an agent that has left the fleet."""
        for request in self.waiting.pop(agent, ()):
            self._refuse(request, f"agent {agent} has stopped")

    def reset(self) -> None:
        """Refuse all view requests because a recovery plan has ended the history of all agents on this host."""
        for agent in list(self.waiting):
            for request in self.waiting.pop(agent):
                self._refuse(request, "the fleet recovers")

    def _refuse(self, request: int, reason: str) -> None:
        self._shared.out.append(AnswerView(request, None, reason))

    def validate(self) -> None:
        for agent in self.waiting:
            local_agent = self._shared.agents[agent]
            assert local_agent.is_busy or local_agent.is_failed, f"{agent} is between two turns, and nobody was told"


def _open_approval(
    agent: LocalAgent, approval: str, place: int, request: JournalEntry, shared: HostState
) -> OpenApproval:
    assert agent.turn is not None
    timer = agent.timers.get(timer_of(agent.turn, place))
    return OpenApproval(
        *(approval, agent.id, shared.host, request.name, readable_details(request.result)),
        _waited_ns(agent.turn, shared.now) / 1e9,
        None if timer is None else max(0, timer[0] - shared.now) / 1e9,
    )


def _has_waiting(agent: LocalAgent) -> bool:
    return agent.turn is not None or agent.dead_letter_count > 0 or _inputs_of(agent) > 0


def _inputs_of(agent: LocalAgent) -> int:
    return 0 if agent.inputs is None else agent.inputs.numbered - agent.inputs.consumed


def _waited_ns(turn: DurableTurn | None, now_ns: int) -> int:
    return max(0, now_ns - turn.since_ns) if turn is not None and turn.since_ns else 0


def _view_of(agent: LocalAgent, now_ns: int) -> AgentView:
    entries = [*agent.deferred, *agent.mailbox]
    fired = [
        (entry.name, 0) for entry in entries if isinstance(entry, TimerEntry) and not entry.name.startswith(TURN_TIMER)
    ]
    inputs, current = agent.inputs, agent.current
    return AgentView(
        agent.id,
        agent.kind,
        agent.incarnation,
        _life_of(agent),
        turn="" if current is None else _shown_kind_of(current),
        sender="" if current is None else sender_of(agent, current),
        attempts=agent.attempts,
        retry_ns=None if agent.retry_ns in (None, NEVER_RETRIED_NS) else max(0, agent.retry_ns - now_ns),
        messages=sum([isinstance(entry, MessageEntry) for entry in agent.mailbox]) + len(agent.stash),
        inputs=_inputs_of(agent),
        outbox=agent.parked + len(agent.held),
        spawns=tuple([name for name, _, _ in agent.spawns]),
        timers=(
            *fired,
            *[
                (name, max(0, due - now_ns))
                for name, (due, _, _) in agent.timers.items()
                if not name.startswith(TURN_TIMER)
            ],
        ),
        inputs_consumed=0 if inputs is None else inputs.consumed,
        keys=0 if inputs is None else len(inputs.keys),
        checkpoint=agent.checkpoints,
        dead_letter_count=agent.dead_letter_count,
        dead_letters=tuple(agent.dead_letters),
        dead_letter_numbers=tuple(agent.dead_letter_numbers),
        durable=None if agent.turn is None else _turn_of(agent.turn, agent.effects, len(agent.stash), now_ns),
    )


def _shown_kind_of(entry: Entry) -> TurnKind:
    return "timer" if isinstance(entry, SegmentEntry) else entry.kind


def _turn_of(turn: DurableTurn, effects: AgentEffects | None, put_off: int, now_ns: int) -> TurnView:
    effect = None if effects is None else effects.in_doubt() or next(iter(effects.open.values()), None)
    return TurnView(
        turn.what,
        turn.sender,
        turn.payload,
        len(turn.journal),
        tuple(turn.journal[-ENTRIES_SHOWN:]),
        IN_LOG if turn.unlogged and not turn.members else turn.awaited,
        _waited_ns(turn, now_ns),
        put_off,
        turn.problem,
        effect.opened if effect is not None else None,
        _effect_state_text(turn, effect) if effect is not None else "",
    )


def _effect_state_text(turn: DurableTurn, effect: AwaitedEffect) -> str:
    if not turn.is_live:
        return "the turn runs again up to it"
    if effect.needs_people:
        return NEEDS_PEOPLE
    return "waits for a snapshot" if effect.is_ready else "is called"


def standing_of(agent: LocalAgent, effect: AwaitedEffect) -> UnfinishedEffect:
    """Return a description of an effect that the agent's turn waits for."""
    opened, intent, asked_ns = effect.opened, None, 0
    pending = agent.outputs.pending if agent.outputs is not None and agent.outputs.holds(opened.number) else ()
    for output in pending:
        if output.number == opened.number:
            intent, asked_ns = read_record(output.payload), output.emitted_ns
    status: EffectState = "open" if intent is None else "waiting"
    if effect.is_in_doubt:
        status = NEEDS_PEOPLE if effect.needs_people else "in doubt"
    return UnfinishedEffect(agent.id, opened.key, opened.generation, status, _in_short(intent), asked_ns)


def _in_short(intent: EffectRecord | None) -> EffectRecord | None:
    """Return an effect's intent record without its undo arguments. Return None if the record is not an intent but an operator's
    resolution."""
    if intent is None or intent.stage != INTENT:
        return None
    return msgspec.structs.replace(intent, undo_arguments=[])


def _life_of(agent: LocalAgent) -> str:
    if agent.is_failed:
        return "failed"
    if agent.awaits_creation or not agent.is_born:
        return "unborn"
    if agent.is_leaving:
        return "stopping"
    return "running" if agent.is_started else "starting"
