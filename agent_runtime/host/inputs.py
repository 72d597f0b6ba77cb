"""The part of a host core where the outside speaks to agents: inputs are admitted, numbered, logged, and become turns.

An input that was acknowledged takes effect exactly once, whatever dies and whatever is rolled back (R1). It is acknowledged when
the batch that holds it is durable in the host log, and only then put before its agent. A log has one batch on its way at most;
what comes meanwhile goes into the next one. A plan ends the log: its owners seal it before they number anything, so a batch is
either found by all of them or can never be written (`storage/log/`).

An input is no channel state and carries no mark. Its number is in its agent's checkpoint, so each plan gives the agent those
beyond it again, in order.

*Whom.* Agents of the plan, and those created since that a complete epoch holds: else an input could outlive an agent that never
was. Should that epoch be condemned later, the inputs of such an agent wait here until it is created again.
"""

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host import letters
from snapline.agent_runtime.host.agent_inputs import DIGEST_BYTES, AgentInputs, PendingInput
from snapline.agent_runtime.host.asks import Asks
from snapline.agent_runtime.host.creation import CREATE
from snapline.agent_runtime.host.desk import HostDesk
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.wish import EpochWish
from snapline.conversation import messages as msg
from snapline.conversation.inputs import ACCEPTED, KEY_CHARACTERS_MAX, REFUSED, REPEATED, RETRY, InputOutcome
from snapline.storage.log.names import LogName
from snapline.storage.log.records import LoggedInput
from snapline.storage.store.record import digest_of

BATCH_INPUTS_MAX = 4096
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Of payloads in one batch, unless one input alone is larger: some tens of milliseconds for a disk."""

QUEUED_BYTES_MAX = 64 * 1024 * 1024
"""Of payloads that wait for a batch: above that, clients are asked to come again. A dead store must not fill the memory."""

WAITING_MAX = 10_000
"""Inputs of one agent that are not consumed: above that, clients are asked to come again."""

ASK_AGAIN_NS = 1_000_000_000

RECOVERS = "the fleet recovers"


class Request:
    """A client's request with inputs that are not decided yet. Answers in the order of its inputs."""

    __slots__ = ("answers", "open")

    def __init__(self, answers: list[InputOutcome | None]) -> None:
        self.answers = answers
        self.open = answers.count(None)


class Inputs:
    """Of the agents here. `asks`: who waits for answers."""

    def __init__(self, desk: HostDesk, mailboxes: Mailboxes, wish: EpochWish) -> None:
        self._desk = desk
        self.asks = Asks(desk, wish)
        self._mailboxes = mailboxes
        self._requests: dict[int, Request] = {}
        self._queue: list[PendingInput] = []
        """For the next batch."""
        self._queued_bytes = 0
        self._batches: dict[tuple[LogName, int], list[PendingInput]] = {}
        """On their way: one of the present log at most, and those of earlier plans whose outcome is not known."""
        self._number = 0
        """Of the last batch of the present log."""
        self._problem = ""
        self._is_open = False
        """The coordinator knows of the log: so later plans will seal it. Asked for when the first input comes."""
        self._ask_ns: int | None = None
        """When to ask for it again; None: it was not asked for."""
        self._is_sealed = False
        """A later plan has ended the log: whatever was written behind its seal, nobody would find."""
        self._orphans: dict[str, list[LoggedInput]] = {}
        """Inputs of agents that are nowhere in the plan."""
        self._young: dict[str, int] = {}
        """Agents created under this plan that no complete epoch is known to hold → the latest epoch begun then."""

    @property
    def log(self) -> LogName:
        """Where batches go under the present plan."""
        return LogName(self._desk.plan, self._desk.host, self._desk.start)

    # ---- plans and epochs -----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """A plan ends the log. What is on its way will be known to be in it, or not."""
        self.asks.reset()
        queue, self._queue = self._queue, []
        for pending in queue:
            self._answer(pending, InputOutcome(RETRY, reason=RECOVERS))
        self._queued_bytes = self._number = 0
        self._problem = ""
        self._is_open = self._is_sealed = False
        self._ask_ns = None
        self._orphans.clear()
        self._young.clear()

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """What the logs of earlier plans hold beyond the agents' checkpoints waits for its turn again."""
        desk = self._desk
        for loaded in event.agents:
            if loaded.checkpoint is not None and loaded.checkpoint.inputs.number:
                desk.agents[loaded.agent].inputs = AgentInputs(loaded.checkpoint.inputs)
        for logged in event.inputs:
            agent = desk.agents.get(logged.agent)
            if agent is not None:
                self._restore(agent, logged)
            elif logged.agent not in desk.routes:
                self._orphans.setdefault(logged.agent, []).append(logged)

    def _restore(self, agent: LocalAgent, logged: LoggedInput) -> None:
        inputs = _inputs_of(agent)
        if logged.number > inputs.consumed:
            inputs.add(logged, is_durable=True)
            agent.mailbox.append((None, logged, logged.payload))

    def created(self, agent: LocalAgent, begun: int) -> None:
        """An agent is created here, after epoch `begun` had begun: the first one that holds it, once complete, makes it known for good."""
        self._young[agent.id] = begun
        for logged in self._orphans.pop(agent.id, ()):
            self._restore(agent, logged)

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Its members will always have been."""
        if event.is_complete:
            self._young = {agent: begun for agent, begun in self._young.items() if begun >= event.epoch}
        self.asks.epoch_ended(event)

    # ---- out ------------------------------------------------------------------------------------------------------

    def consume(self, logged: LoggedInput, *, is_buried: bool, reply: bytes, is_open: bool) -> None:
        """An input has had its turn, is a dead letter, or, `is_open`, is consumed before its turn has ended."""
        agent = self._desk.agents.get(logged.agent)
        if agent is not None and agent.inputs is not None:  # else it has left, and its inputs are dead letters
            agent.inputs.consume(logged, is_buried=is_buried, reply=reply, is_open=is_open)
            self.asks.consumed(agent, logged.key)

    def close(self, agent: LocalAgent, key: str, *, is_buried: bool, reply: bytes) -> None:
        """The turn of an input that was consumed before has ended."""
        if agent.inputs is not None:
            agent.inputs.close(key, is_buried=is_buried, reply=reply)
            self.asks.consumed(agent, key)

    # ---- in -------------------------------------------------------------------------------------------------------

    def on_inputs_offered(self, event: ev.InputsOffered) -> None:
        answers = [self._take(event, place, offered) for place, offered in enumerate(event.inputs)]
        request = Request(answers)
        if request.open:
            self._requests[event.request] = request
            self._append()
        else:
            self._desk.out.append(ev.AnswerInputs(event.request, _decided(request)))

    def _take(self, event: ev.InputsOffered, place: int, offered: ev.OfferedInput) -> InputOutcome | None:
        """The answer, or None where it waits for a batch."""
        agent = self._desk.agents.get(offered.agent)
        if agent is None or not self._desk.is_loaded:
            return InputOutcome(RETRY, reason=self._where_of(offered.agent))
        known = self._find(agent, event, place, offered)
        if known is not None:
            return known if known.status else None
        refusal = self._refusal_of(agent, offered)
        if refusal is not None:
            return refusal
        inputs = _inputs_of(agent)
        number = inputs.numbered + 1
        logged = LoggedInput(agent.id, number, event.client, offered.key, offered.payload, event.wall_ns)
        pending = inputs.add(logged, is_durable=False)
        pending.waiters.append((event.request, place))
        self._queue.append(pending)
        self._queued_bytes += len(offered.payload)
        return None

    def _where_of(self, agent: str) -> str:
        desk = self._desk
        if not desk.is_loaded:
            return f"host {desk.host} has no agents yet"
        route = desk.routes.get(agent)
        return f"agent {agent} is not on host {desk.host}" + (f", but on {route[0]}" if route is not None else "")

    def _find(
        self, agent: LocalAgent, event: ev.InputsOffered, place: int, offered: ev.OfferedInput
    ) -> InputOutcome | None:
        """What is known of the key; a status of "" waits with the first of its kind."""
        inputs = agent.inputs
        if inputs is None:
            return None
        known, pending = inputs.keys.get(offered.key), inputs.waiting.get(offered.key)
        if pending is not None:
            number, is_same = pending.input.number, pending.input.payload == offered.payload
        elif known is not None:
            number, is_same = known.number, known.digest == digest_of(offered.payload)[:DIGEST_BYTES]
        else:
            return None
        if not is_same:
            reason = f"key {offered.key!r} was used for another input of {agent.id}: give each input a key of its own"
            return InputOutcome(REFUSED, number, reason)
        if pending is not None and not pending.is_durable:
            pending.waiters.append((event.request, place))
            return InputOutcome("")
        return InputOutcome(REPEATED, number)

    def _refusal_of(self, agent: LocalAgent, offered: ev.OfferedInput) -> InputOutcome | None:
        if not 0 < len(offered.key) <= KEY_CHARACTERS_MAX:
            return InputOutcome(
                REFUSED, reason=f"a key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(offered.key)}"
            )
        if not offered.is_word and offered.payload[:1] in (b"", CREATE):
            return InputOutcome(REFUSED, reason="it is no message")
        if agent.is_leaving:
            return InputOutcome(REFUSED, reason=f"agent {agent.id} has stopped")
        refusal = letters.refusal_of(agent, offered.payload) if offered.is_word else ""
        if refusal:
            return InputOutcome(REFUSED, reason=refusal)
        if agent.id in self._young:
            return InputOutcome(RETRY, reason=f"agent {agent.id} is new: no complete epoch holds it yet")
        if self._is_sealed:
            return InputOutcome(RETRY, reason=RECOVERS)
        if self._problem:
            return InputOutcome(RETRY, reason=f"the host log cannot be written: {self._problem}")
        if self._queued_bytes > QUEUED_BYTES_MAX:
            return InputOutcome(RETRY, reason=f"host {self._desk.host} has too many inputs that wait for the store")
        if agent.inputs is not None and len(agent.inputs.waiting) >= WAITING_MAX:
            return InputOutcome(RETRY, reason=f"agent {agent.id} has {WAITING_MAX:,} inputs waiting")
        if agent.is_full:
            return InputOutcome(RETRY, reason=f"outputs of agent {agent.id} wait for a snapshot: there are too many")
        return None

    # ---- the log --------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        """The next batch leaves, unless one is on its way."""
        if self._queue and not self._is_open:
            self._open()
            return
        log = self.log
        if not self._queue or self._is_sealed or (log, self._number) in self._batches:
            return
        size_bytes = count = 0
        for pending in self._queue[:BATCH_INPUTS_MAX]:
            size_bytes += len(pending.input.payload)
            if count and size_bytes > BATCH_BYTES_MAX:
                size_bytes -= len(pending.input.payload)
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        self._queued_bytes -= size_bytes
        self._number += 1
        self._batches[log, self._number] = batch
        self._desk.out.append(ev.AppendBatch(log, self._number, tuple([pending.input for pending in batch])))

    def _open(self) -> None:
        """A question that the coordinator has not answered is asked again: its leader may have dropped it."""
        if self._ask_ns is None or self._ask_ns <= self._desk.now:
            self._ask_ns = self._desk.now + ASK_AGAIN_NS
            self._desk.out.append(msg.OpenLog(self._desk.plan))

    def wakeups_ns(self) -> list[int]:
        """When `clock_passed` is wanted."""
        return [] if self._ask_ns is None else [self._ask_ns]

    def clock_passed(self) -> None:
        """The time has come to ask again, perhaps."""
        if self._ask_ns is not None:
            self._open()

    def welcomed(self) -> None:
        """Ask again what the coordinator may not have heard."""
        if self._ask_ns is not None:
            self._ask_ns = self._desk.now
            self._open()

    def on_log_opened(self, event: msg.LogOpened) -> None:
        """Batches may be written now, if it is the log of this plan."""
        if event.plan == self._desk.plan and self._desk.is_loaded:
            self._is_open, self._ask_ns = True, None
            self._append()

    def on_batch_appended(self, event: ev.BatchAppended) -> None:
        """Its inputs are acknowledged. Those of a log that a plan has ended are found there by their owners."""
        is_present = event.log == self.log and self._desk.is_loaded
        for pending in self._batches.pop((event.log, event.number)):
            pending.is_durable = True
            self._answer(pending, InputOutcome(ACCEPTED, pending.input.number))
            if is_present:
                self._deliver(pending.input)
        if is_present:
            self._problem = ""
            self._append()

    def _deliver(self, logged: LoggedInput) -> None:
        agent = self._desk.agents.get(logged.agent)
        if agent is None:  # It has left since.
            self._desk.counts.dead_letters += 1
            return
        agent.mailbox.append((None, logged, logged.payload))
        if agent.current is None:
            self._mailboxes.next_turn(agent)

    def on_log_sealed(self, event: ev.LogSealed) -> None:
        """The batch will never be in the log: nothing of it was taken."""
        for pending in self._batches.pop((event.log, event.number)):
            self._answer(pending, InputOutcome(RETRY, reason=RECOVERS))
        if event.log == self.log:
            self._is_sealed = True

    def on_log_watched(self, event: ev.LogWatched) -> None:
        """A batch takes longer: what would wait behind it is not taken."""
        self._problem = event.problem

    def _answer(self, pending: PendingInput, answer: InputOutcome) -> None:
        for number, place in pending.waiters:
            request = self._requests[number]
            request.answers[place] = answer
            request.open -= 1
            if not request.open:
                del self._requests[number]
                self._desk.out.append(ev.AnswerInputs(number, _decided(request)))
            if answer.status == ACCEPTED:
                answer = InputOutcome(REPEATED, answer.number)
        pending.waiters.clear()

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        for agent in self._desk.agents.values():
            inputs = agent.inputs
            if inputs is None:
                continue
            entries = [*agent.mailbox, *agent.deferred, *([agent.current] if agent.current is not None else [])]
            numbers = sorted([entry[1].number for entry in entries if isinstance(entry[1], LoggedInput)])
            durable = [each.input.number for each in inputs.waiting.values() if each.is_durable]
            assert numbers == sorted(durable), (agent.id, numbers, durable)
            first = inputs.consumed + 1
            assert numbers == list(range(first, first + len(numbers))), (agent.id, inputs.consumed, numbers)


def _inputs_of(agent: LocalAgent) -> AgentInputs:
    if agent.inputs is None:
        agent.inputs = AgentInputs()
    return agent.inputs


def _decided(request: Request) -> tuple[InputOutcome, ...]:
    return tuple([answer for answer in request.answers if answer is not None])
