"""Ground truth of a simulated run: the sender, receiver, turn and consumption of every message.

Theory of operation
-------------------
The ground truth records the inputs and outputs of turns, never the product's numbers, stamps, markers or vectors. So the ground
truth shares no assumption with the protocols that it judges.

*Branches.* A recovery plan starts every agent from a checkpoint. The agent's history under the plan consists of the checkpoint's
history up to the turn of the image, and continues in the plan's own branch. A host that does not know the newest plan (a zombie)
continues in the old branch. That is allowed, but none of the zombie's work may become visible in a newer branch.

*Consumption.* The message that agent j consumes from agent i under plan p must be the next message of channel i → j in branch p.
If the channel has no next message, the consumed message was never sent (G1), or was sent only in an older branch (G9). If the
next message is another one, a message was lost, duplicated or overtaken (G3).

*Positions.* A checkpoint is identified by (agent, incarnation, number, round); the incarnation is the plan under which the
checkpoint was taken. The checkpoint's position is the number of turns finished before the image, over the agent's whole history.
Message counts at a position follow by bisection, since a channel records the turn of every send and consumption. Messages of a
finished turn that still wait in the outbox have not left the sender. Such messages belong to the sender's state, and a restart
sends them again.

*Void messages.* A message for an agent that does not exist, and a refused creation, become dead letters of their sender. The
world reports such messages (`on_unroutable`). They stay in the ground truth but are skipped; an earlier checkpoint of the sender
still contains them. The judge verifies a refused creation with `is_created`.

A turn costs one lookup for its branch and agent, and one lookup per channel; everything else is appending to lists.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import zip_longest

from snapline.agent_runtime.host.host_events import Control, Spawn
from snapline.agent_runtime.host.membership import creation_payload
from snapline.coordinator.state.operations import Restore
from snapline.messages.agent_commands import is_effect_resolution
from snapline.messages.effect_records import EFFECTS_TOPIC
from snapline.messages.payloads import CREATE
from snapline.sim.oracles.dead_letters import DeadLetterOracle, is_retry_of
from snapline.sim.oracles.ground_truth_records import (
    NO_VOIDS,
    NOWHERE,
    AgentHistory,
    Branch,
    Captured,
    ChannelTruth,
    CutPlace,
    CutRecord,
    Draws,
    Key,
    Report,
    Turn,
    digest_of,
    rest_of,
    show,
    stash_of,
)
from snapline.sim.oracles.input_output_oracles import InputOracle, OutputOracle
from snapline.sim.oracles.turn_oracles import EffectOracle, RollbackOracle, StepOracle
from snapline.storage.packs.checkpoint import AgentCheckpoint


class GroundTruth:
    """Ground truth with all branches of one run.

    Attributes:
        branches: branches by plan.
        newest_plan: number of the newest plan under which any host works.
        captured: every captured image.
        places: index of each agent in vector clocks.
        messages: number of messages consumed by turns.
        zombie_turns: number of turns under a plan that was not the newest plan.
        dead_lettered, unroutable: number of dead letters of receivers and of senders.
        inputs: clients' inputs and the answers to them.
        outputs: released outputs.
        dead_letters: dead letters and operator commands.
        steps, effects: steps and effects of durable turns.
        rollbacks: rollbacks that turns request.
    """

    def __init__(self, report: Report, *, agents: Sequence[str], with_clocks: bool, with_log: bool) -> None:
        self._report = report
        self.inputs = InputOracle(report)
        self.outputs = OutputOracle(report)
        self.dead_letters = DeadLetterOracle(report)
        self.steps = StepOracle(report)
        self.effects = EffectOracle(report, self.inputs)
        self.rollbacks = RollbackOracle(report)
        self._with_clocks = with_clocks
        self._with_log = with_log
        self.branches: dict[int, Branch] = {}
        self.newest_plan = 0
        self.captured: dict[Key, Captured] = {}
        self.places: dict[str, int] = {agent: place for place, agent in enumerate(agents)}
        self.messages = 0
        self.zombie_turns = self.dead_lettered = self.unroutable = 0
        self._plan_now = -1
        self._none_left: list[int] = []  # shared by all channels while the world does not report when messages leave
        self._histories: dict[str, AgentHistory] = {}

    # ---- turns, which are recorded most often ---------------------------------------------------------------------

    def on_turn(
        self,
        t_ns: int,
        plan: int,
        agent: str,
        what: str,
        sender: str,
        payload: bytes,
        sends: list[tuple[str, bytes]],
        spawns: list[Spawn],
        draws: Draws | None = (),
    ) -> None:
        """Record the end of a turn or segment.

        `what` is "start", "create", "message", "timer", "input", "segment", "stashed" or "letter". Only "create" and "message" consume a
        message.
        """
        if plan != self._plan_now:
            self._turn_to(plan)
        if plan != self.newest_plan:
            self.zombie_turns += 1
        history = self._histories.get(agent)
        if history is None:
            history = self.history_of(plan, agent)
        turn = history.turns = history.turns + 1
        channel = None
        if what == "message" or what == "create":
            self.messages += 1
            channel = history.inward.get(sender)
            if channel is None:
                channel = self.channel_of(plan, sender, agent)
            index = len(channel.consumed_at)
            if index < len(channel.sent) and channel.sent[index] == payload:
                channel.consumed_at.append(turn)
            else:
                self._consume_mismatch(t_ns, plan, channel, turn, payload)
        elif what == "input":
            self._consume_input(t_ns, history, payload)
        elif what == "stashed":
            _record_deferral(history, payload, is_over=True)
        elif what == "letter":
            self.dead_letters.on_handled(t_ns, history, sender, payload)
            _end_deferred_retry(history, sender, payload)
        for child, kind, state in spawns:
            self._send(history, plan, turn, child, creation_payload(kind, state))
        for receiver, data in sends:
            outward = history.outward.get(receiver)
            if outward is None:
                outward = self.channel_of(plan, agent, receiver)
            outward.sent.append(data)
            outward.sent_at.append(turn)
        if self._with_log:
            history.log.append(Turn(plan, what, sender, payload, sends, spawns, draws))
        if self._with_clocks:
            self._tick(plan, history, channel)

    def on_dead_lettered(self, t_ns: int, plan: int, agent: str, what: str, sender: str, payload: bytes | None) -> None:
        """Record that a message became a dead letter of its receiver. The message is consumed; the only effect is the refusal of a call.

        If `payload` is None, the payload is unknown and the channel's next message is meant.
        """
        self.dead_lettered += 1
        self._consume_alone(t_ns, plan, agent, "buried-" + what, sender, payload)
        history = self.history_of(plan, agent)
        if what == "letter":
            _record_deferral(history, payload or b"", is_over=True)
            self.dead_letters.on_dead_lettered_again(t_ns, history, payload or b"")
        elif payload is not None:
            self.dead_letters.on_dead_lettered(history, sender, payload)
        if payload is not None and payload.startswith(b"\x05@call"):  # the caller gets an error reply
            self._send(history, plan, history.turns, sender, b"\x06@reply" + payload[6:14])

    def on_taken(
        self, t_ns: int, plan: int, agent: str, what: str, sender: str, payload: bytes, *, is_stashed: bool
    ) -> None:
        """Record a message or input that was consumed in the middle of a durable turn and may get its own turn later.

        If `what` is "stashed", the message was consumed before.
        """
        self._consume_alone(t_ns, plan, agent, "taken-" + what, sender, payload)
        if is_stashed:
            _record_deferral(self.history_of(plan, agent), payload, is_over=False)

    def on_command_consumed(self, t_ns: int, plan: int, agent: str, payload: bytes, reply: bytes) -> None:
        """Record that an operator command was consumed without a turn."""
        self._consume_alone(t_ns, plan, agent, "taken-word", "", payload)
        _record_deferral(self.history_of(plan, agent), payload, is_over=True)
        if is_effect_resolution(payload):
            return
        self.dead_letters.on_command_consumed(t_ns, self.history_of(plan, agent), payload, reply)

    def _consume_alone(self, t_ns: int, plan: int, agent: str, how: str, sender: str, payload: bytes | None) -> None:
        kind = how.partition("-")[2]
        history = self.history_of(plan, agent)
        turn = history.turns = history.turns + 1
        channel = None
        if kind in ("message", "create"):
            channel = self.channel_of(plan, sender, agent)
            self._skip_void(channel, turn)
            index = len(channel.consumed_at)
            if index < len(channel.sent) and payload in (None, channel.sent[index]):
                channel.consumed_at.append(turn)
            else:
                self._consume_mismatch(t_ns, plan, channel, turn, payload or b"")
        elif kind == "input":
            self._consume_input(t_ns, history, payload or b"")
        elif kind == "stashed":
            _record_deferral(history, payload or b"", is_over=True)
        if self._with_log:
            history.log.append(Turn(plan, how, sender, payload or b"", [], [], ()))
        if self._with_clocks:
            self._tick(plan, history, channel)

    def _consume_input(self, t_ns: int, history: AgentHistory, payload: bytes) -> None:
        if is_effect_resolution(payload):  # the effect service sees the result of the command
            return
        self.inputs.on_consumed(t_ns, history, payload)
        history.inputs[payload] = history.turns

    def on_replied(self, plan: int, agent: str, payload: bytes, reply: bytes, *, is_dead_letter: bool = False) -> None:
        """Record the answer of the last turn to this input, or to the input's dead letter."""
        self.inputs.on_replied(payload, reply)
        history = self.history_of(plan, agent)
        if is_dead_letter:
            history.dead_letter_answers.setdefault(payload, []).append(reply)
            return
        history.replies[payload] = reply
        history.answered[payload] = history.turns

    def on_emitted(self, plan: int, agent: str, payload: bytes) -> None:
        """Record an output of the agent's last turn."""
        self.outputs.on_emitted(self.history_of(plan, agent), payload)

    def on_restored(self, t_ns: int, kind: Restore, plan: int) -> None:
        """Record that the fleet has been restored to an earlier epoch."""
        self.inputs.on_fallen_back()
        self.rollbacks.on_restored(t_ns, kind, plan)

    def on_effect_recorded(self, t_ns: int, plan: int, agent: str, payload: bytes) -> None:
        """Record an output that the runtime emitted for the agent between two of its turns."""
        self._consume_alone(t_ns, plan, agent, "taken-effect", "", payload)
        self.on_emitted(plan, agent, EFFECTS_TOPIC.encode() + b" " + payload)

    def on_unroutable(self, t_ns: int, plan: int, sender: str, receiver: str, payload: bytes) -> None:
        """Record that an undeliverable message became a dead letter of its sender."""
        self.unroutable += 1
        history, channel = self.history_of(plan, sender), self.channel_of(plan, sender, receiver)
        for index in range(len(channel.consumed_at), len(channel.sent)):
            if channel.sent[index] == payload and index not in channel.void:
                channel.void = {**channel.void, index: history.voids}
                history.voids += 1
                self.dead_letters.on_unroutable(history, payload)
                return
        self._report(
            "exactly-once", "G3", t_ns,
            f"{sender} has a dead letter for {receiver} that it never sent, or that was consumed: {show(payload)}",
        )  # fmt: skip

    def is_created(self, plan: int, agent: str) -> bool:
        """Return whether this branch contains a creation of `agent` that is not void, so that another creation must be refused."""
        history = self.branch_of(plan).histories.get(agent)
        return history is not None and any(
            payload[:1] == CREATE and index not in channel.void
            for channel in history.inward.values()
            for index, payload in enumerate(channel.sent)
        )

    def on_left(self, plan: int, sender: str, receiver: str, *, is_in_turn: bool, t_ns: int = 0) -> None:
        """Record that a channel's next message has left its sender's outbox. Optional: without these calls, tracking is not judged.

        If `is_in_turn`, the sender is in the middle of a turn, or will retry a failed turn. The protocol has already processed the
        messages that this turn consumes.
        """
        history = self.history_of(plan, sender)
        if 0 < history.failed_ns < t_ns:
            text = f"a message of {sender} for {receiver} left under plan {plan}, after a checkpoint of {sender} could not be taken"
            self._report("failed", "G3", t_ns, text)
        channel, turn = self.channel_of(plan, sender, receiver), history.turns + is_in_turn
        if channel.departed_at:
            channel.departed_at.append(turn)
        else:
            channel.departed_at = [turn]

    def on_failed(self, t_ns: int, plan: int, agent: str) -> None:
        """Record that an agent's checkpoint could not be taken. The agent's later work can never be saved, so none of it may become
        visible."""
        history = self.history_of(plan, agent)
        history.failed_ns = history.failed_ns or t_ns

    def on_stopping(self, plan: int, agent: str) -> None:
        """Record that the agent stopped in its last turn."""
        history = self.history_of(plan, agent)
        history.stopped_at = history.turns

    def has_stopped(self, agent: str) -> bool:
        """Return whether the agent has stopped, in any history."""
        histories = [branch.histories.get(agent) for branch in self.branches.values()]
        return any(history is not None and history.stopped_at for history in histories)

    def _send(self, history: AgentHistory, plan: int, turn: int, receiver: str, payload: bytes) -> None:
        channel = history.outward.get(receiver) or self.channel_of(plan, history.agent, receiver)
        channel.sent.append(payload)
        channel.sent_at.append(turn)

    def _turn_to(self, plan: int) -> None:
        self._histories = self.branch_of(plan).histories
        self._plan_now = plan

    def _tick(self, plan: int, history: AgentHistory, channel: ChannelTruth | None) -> None:
        """Append the agent's vector clock after its turn; the agent's own component is the number of its turns."""
        clock = history.clocks[-1]
        if channel is not None and 0 < len(channel.consumed_at) <= len(channel.sent_at):
            sent_at = channel.sent_at[len(channel.consumed_at) - 1]
            other = self.history_of(plan, channel.sender).clocks[sent_at]
            if len(other) == len(clock):
                clock = list(map(max, clock, other))
            else:
                clock = [max(pair) for pair in zip_longest(clock, other, fillvalue=0)]
        else:
            clock = clock[:]
        own = self.places.get(history.agent)
        if own is None:
            own = self.places[history.agent] = len(self.places)
        if own >= len(clock):
            clock.extend([0] * (own + 1 - len(clock)))
        clock[own] = history.turns
        history.clocks.append(clock)

    # ---- mismatches -----------------------------------------------------------------------------------------------

    def _skip_void(self, channel: ChannelTruth, turn: int) -> None:
        while len(channel.consumed_at) in channel.void:
            channel.consumed_at.append(turn)

    def _consume_mismatch(self, t_ns: int, plan: int, channel: ChannelTruth, turn: int, payload: bytes) -> None:
        """Report a payload that is not the channel's next message, unless only void messages come before it."""
        self._skip_void(channel, turn)
        index = len(channel.consumed_at)
        if index < len(channel.sent) and channel.sent[index] == payload:
            channel.consumed_at.append(turn)
            return
        self._report(*self._name_mismatch(t_ns, plan, channel, payload))
        if index < len(channel.sent):
            channel.consumed_at.append(turn)

    def _name_mismatch(self, t_ns: int, plan: int, channel: ChannelTruth, payload: bytes) -> tuple[str, str, int, str]:
        index, sent = len(channel.consumed_at), channel.sent
        text = f"{channel.receiver} consumed {show(payload)} from {channel.sender} under plan {plan} as message {index + 1}"
        if payload in sent[index:]:
            skipped = sent.index(payload, index) - index
            return "exactly-once", "G3", t_ns, f"{text}: {skipped} before it were lost or overtaken"
        if payload in sent[:index]:
            return "exactly-once", "G3", t_ns, f"{text}: it was consumed before"
        for older in sorted(self.branches, reverse=True):
            other = self.branches[older].channels.get((channel.sender, channel.receiver))
            if older < plan and other is not None and payload in other.sent:
                return "incarnation", "G9", t_ns, f"{text}: it was sent under plan {older}, and that turn was undone"
        finding = "nobody sent that" if index < len(sent) else f"only {len(sent)} were ever sent"
        return "orphan", "G1", t_ns, f"{text}: {finding}"

    # ---- looking up -----------------------------------------------------------------------------------------------

    def branch_of(self, plan: int) -> Branch:
        """Return the branch of a plan, or a new empty branch if the plan is unknown."""
        branch = self.branches.get(plan)
        if branch is None:
            branch = self.branches[plan] = Branch(plan, {}, {}, {})
            self.newest_plan = max(self.newest_plan, plan)
        return branch

    def history_of(self, plan: int, agent: str) -> AgentHistory:
        """Return an agent's history in a branch, or a new history for a new agent."""
        histories = (self.branches.get(plan) or self.branch_of(plan)).histories
        history = histories.get(agent)
        if history is None:
            clocks = [[0] * len(self.places)] if self._with_clocks else []
            history = histories[agent] = AgentHistory(agent, {}, {}, [], [], clocks)
        return history

    def channel_of(self, plan: int, sender: str, receiver: str) -> ChannelTruth:
        """Return a channel of a branch, or a new empty channel if it is unknown."""
        branch = self.branches.get(plan) or self.branch_of(plan)
        channel = branch.channels.get((sender, receiver))
        if channel is None:
            channel = ChannelTruth(sender, receiver, [], [], [], NO_VOIDS, self._none_left)
            branch.channels[sender, receiver] = channel
            self.history_of(plan, sender).outward[receiver] = channel
            self.history_of(plan, receiver).inward[sender] = channel
        return channel

    # ---- images ---------------------------------------------------------------------------------------------------

    def on_captured(
        self, t_ns: int, plan: int, agent: str, control: Control, state: bytes, basis: str, round_: int
    ) -> Captured:
        """Record an image of the agent, captured after all turns and dead letters recorded so far."""
        history = self.history_of(plan, agent)
        parked: dict[str, int] = {}
        for message in control.outbox:
            parked[message.receiver] = parked.get(message.receiver, 0) + 1
        for spawn in control.spawns:
            parked[spawn.agent] = parked.get(spawn.agent, 0) + 1
        captured = Captured(
            plan,
            agent,
            control.number,
            round_,
            basis,
            t_ns,
            history.turns,
            history.voids,
            parked,
            digest_of(state),
            rest_of(control),
        )
        wanted = stash_of(history.put_off)
        if control.is_born and [each.payload for each in control.stash] != wanted:
            text = f"checkpoint {captured.key} of {agent} holds {len(control.stash)} messages that were put off, not the {len(wanted)} that were"
            self._report("restored", "G3", t_ns, text)
        if captured.key in self.captured and control.is_born:
            self._report("restored", "G9", t_ns, f"checkpoint {captured.key} of {agent} was taken twice")
        self.captured[captured.key] = captured
        history.captured.append(captured)
        return captured

    def difference(self, checkpoint: AgentCheckpoint) -> str:
        """Return a description of how a checkpoint differs from its captured image; "" if both are equal."""
        captured = self.find(checkpoint)
        if captured is None:
            return "was never captured"
        if not checkpoint.parts and captured.digest != digest_of(checkpoint.state):
            return f"holds another state than was captured after turn {captured.turns}"
        if captured.rest != rest_of(checkpoint):
            return f"holds another outbox, timers or the like than was captured after turn {captured.turns}"
        return ""

    def find(self, checkpoint: AgentCheckpoint) -> Captured | None:
        """Return the captured image of a checkpoint, or None if no such image was captured."""
        key = (checkpoint.agent, checkpoint.incarnation, checkpoint.number, checkpoint.round)
        return self.captured.get(key)

    # ---- counts at a position -------------------------------------------------------------------------------------

    @staticmethod
    def left(channel: ChannelTruth, place: CutPlace) -> int:
        """Return the number of messages that had left the sender at its position, including void ones."""
        return bisect_right(channel.sent_at, place.turns) - place.parked.get(channel.receiver, 0)

    @staticmethod
    def got(channel: ChannelTruth, place: CutPlace) -> int:
        """Return the number of messages that the receiver had consumed at its position, including void ones."""
        return bisect_right(channel.consumed_at, place.turns)

    # ---- branching ------------------------------------------------------------------------------------------------

    def start_branch(self, plan: int, cut: CutRecord | None) -> Branch:
        """Return a new branch for a plan that starts from a cut (None: from the initial states). Only events inside the cut are copied."""
        if cut is None:
            return self.branch_of(plan)
        source = self.branch_of(cut.plan)
        branch = self.branch_of(plan)
        for agent, place in cut.places.items():
            branch.histories[agent] = _prefix(self.history_of(cut.plan, agent), place)
        for (sender, receiver), channel in source.channels.items():
            if sender in cut.places:
                self._copy_channel(branch, channel, cut.places[sender], cut.places.get(receiver, NOWHERE))
        return branch

    def _copy_channel(self, branch: Branch, channel: ChannelTruth, sender: CutPlace, receiver: CutPlace) -> None:
        sent, got = bisect_right(channel.sent_at, sender.turns), bisect_right(channel.consumed_at, receiver.turns)
        void = {index: count for index, count in channel.void.items() if count < sender.voids}
        left = sent - sender.parked.get(channel.receiver, 0) - len(void)
        copied = ChannelTruth(
            channel.sender,
            channel.receiver,
            channel.sent[:sent],
            channel.sent_at[:sent],
            channel.consumed_at[:got],
            void,
            # A message that left during a turn outside the cut may depend on a message that no turn of this branch consumes.
            [turn if turn <= sender.turns else -1 for turn in channel.departed_at[:left]],
        )
        branch.channels[channel.sender, channel.receiver] = copied
        self.history_of(branch.plan, channel.sender).outward[channel.receiver] = copied
        self.history_of(branch.plan, channel.receiver).inward[channel.sender] = copied


def _prefix(history: AgentHistory, place: CutPlace) -> AgentHistory:
    captured = [x for x in history.captured if x.turns <= place.turns]
    if place.captured is not None and place.captured in captured:
        captured = captured[: captured.index(place.captured) + 1]
    return AgentHistory(
        history.agent,
        {},
        {},
        captured,
        history.log[: place.turns],
        history.clocks[: place.turns + 1],
        turns=place.turns,
        origin=place.captured,
        stopped_at=history.stopped_at if history.stopped_at <= place.turns else 0,
        voids=place.voids,
        replies={
            payload: reply for payload, reply in history.replies.items() if history.answered[payload] <= place.turns
        },
        dead_letter_answers={payload: list(replies) for payload, replies in history.dead_letter_answers.items()},
        put_off=[each for each in history.put_off if each[0] <= place.turns],
        answered={payload: turn for payload, turn in history.answered.items() if turn <= place.turns},
        inputs={payload: turn for payload, turn in history.inputs.items() if turn <= place.turns},
        outputs=[output for output in history.outputs if output[0] <= place.turns],
        dead_letters=[each for each in history.dead_letters if each.is_inside(place.turns, place.voids)],
        words=[each for each in history.words if each.turns <= place.turns],
    )


def _record_deferral(history: AgentHistory, payload: bytes, *, is_over: bool) -> None:
    if not is_over or payload in stash_of(history.put_off):  # otherwise its turn already began
        history.put_off.append((history.turns, payload, is_over))


def _end_deferred_retry(history: AgentHistory, sender: str, payload: bytes) -> None:
    """Remove the deferred retry command of a dead letter whose turn has run."""
    for command in stash_of(history.put_off):
        if is_retry_of(command, sender, payload):
            _record_deferral(history, command, is_over=True)
            return
