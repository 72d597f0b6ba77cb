"""The ground truth of a simulated run: what really happened, regardless of what the product reports. For every message, it records the
sender, the receiver, and the turns in which the message was sent and consumed.

Theory of operation
-------------------
The ground truth records the inputs and outputs of turns. The ground truth never uses the product's message numbers, stamps, markers or
vectors. So it shares no assumptions with the protocols under test.

*Branches.* A recovery plan starts every agent from a checkpoint. Under the plan, the agent's history consists of the checkpoint's history,
up to the image's turn, and of new turns in the plan's own branch. A host that does not know the newest plan yet (a zombie) continues in the
branch of an older plan. A zombie may continue, but none of its work may become visible in a newer branch.

*Consumption.* If agent j consumes a message from agent i under plan p, it must be the next message of channel i → j in the branch of p. If
the channel has no next message, the consumed message was never sent (G1) or was sent only in an older branch (G9). If the channel's next
message is a different one, a message was lost, duplicated or overtaken (G3).

*Positions.* A checkpoint is identified by its agent, incarnation, number and round. The incarnation is the plan under which the checkpoint
was taken. A checkpoint's position is the number of turns that the agent had finished before the image, counted over its whole history.
Because a channel records the turn of every send and consumption, a bisection finds the number of messages at a position. If a finished turn
has sent messages that are still in the outbox, the messages have not left the sender. Messages in the outbox belong to the sender's state,
and a restart resends them.

*Void messages.* If a message is sent to an agent that does not exist, or a creation is refused, the message becomes a dead letter of its
sender. The simulated world reports void messages by calling `on_unroutable`. Void messages remain in the ground truth, because earlier
checkpoints of the sender still contain them, but consumption skips them. The judge uses `is_created` to check a refused creation.

Recording a turn takes one lookup for its branch and agent, one lookup per channel, and otherwise only appends to lists.

Oracles of running turns
------------------------
The following oracles check steps (G3), waits (G3), rollback requests (G3) and effects (G12).

*Steps.* Once a turn has continued after a step, the step never runs again for that turn, whatever crashes and recoveries happen. There is
one exception. If a plan replaces a frozen host, the host may still run steps of its older incarnation when it resumes, because steps are
not fenced. The oracle identifies a turn by everything that its handler has received: the number of the agent's earlier durable turns, the
turn's cause and first state, and the outcome of each request. Two turns with the same start and the same outcomes count as the same turn.
The time that the handler reads (`ctx.now`) is ignored, because a replayed turn gets the original time only if it had continued after a
later step. The oracle does not use the product's seeds, digests, logs or counts.

*Waits.* A durable wait with a time limit must end when the limit has passed since the wait first began. A recovery must neither restart
such a wait nor end it early. Like a step, a wait is identified by the start of its turn and the outcomes that the turn has received. A wait
on a crashed or slow host may end late. So a wait must end, within a tolerance, by the latest of three times: its own end, the last load of
the agent, and the end of the last fault. Waits are not checked in runs with clock faults.

*Rollbacks.* After an agent requests a rollback (`ctx.rollback`), it takes no further turn in that incarnation, and the fleet is restored
once. The oracle compares the turns that request rollbacks with the entries in the coordinator's log. If a restore names an agent, this
agent must have requested a rollback in the incarnation that the restore names. If the same agent requests more rollbacks at the same
place for the same reason than it allows, the fleet must leave the decision to operators. This rule applies until the log no longer
keeps the plan of the first rollback, or an operator restores the fleet. A turn that asks which rollbacks there have been learns of exactly
those that the log has.

*Effects.* Whatever crashes happen, a fleet never calls an effect again after a turn has used the effect's outcome. After an effect was
undone, it is never called under its old key. The oracle records the keys that are sent to outside services and the outcomes that handlers
receive. A key belongs to one effect in one generation: repeated calls of the effect have the same key until the effect is undone. Hosts
that a plan has replaced may still call pending effects for a while. These calls are not fenced, but the outside service knows their keys. A
restored fleet does not repeat the effects that were executed after the epoch to which it was restored. If bytes of a complete epoch are
lost, the fleet may repeat effects, so the oracle then reports nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import msgspec

from snapline.agent_runtime.durable import DONE, FAILED, LATE, LOST, decision_of, read_rollbacks
from snapline.agent_runtime.host.host_events import Control, Spawn, StartTurn, TurnEnded, TurnFailed
from snapline.agent_runtime.host.plans import creation_payload
from snapline.coordinator.state import fleet_records
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.operations import Restore
from snapline.messages.agent_commands import is_effect_resolution
from snapline.messages.approvals import is_approval_answer
from snapline.messages.effect_records import EFFECTS_TOPIC, UNDO
from snapline.messages.payloads import CREATE
from snapline.sim.oracles.approval_oracle import ApprovalOracle
from snapline.sim.oracles.ground_truth_records import (
    NO_VOIDS,
    NOWHERE,
    AgentHistory,
    Branch,
    Captured,
    ChannelTruth,
    CutPlace,
    CutRecord,
    Deferral,
    Draws,
    Key,
    Report,
    Turn,
    digest_of,
    rest_of,
    show,
    stash_of,
)
from snapline.sim.oracles.input_output_oracles import DeadLetterOracle, InputOracle, OutputOracle, is_retry_of
from snapline.sim.result import ExecutedFault
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry

PATIENCE_NS = 2_000_000_000
"""Time in nanoseconds by which a wait may end after its deadline. It allows for freezes, and for a handler to reach its wait again."""

EARLY_NS = 1_000_000

TurnPosition = tuple[object, ...]


class WaitOracle:
    """Oracle that checks when the durable waits in one run end."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._due_ns: dict[TurnPosition, tuple[int, int]] = {}
        """Earliest and latest end of each wait. They may differ, because several histories may have reached the wait,
        and a replaced host continues."""
        self._loaded_ns: dict[str, int] = {}

    def on_loaded(self, t_ns: int, agent: str) -> None:
        """Record that a host has loaded the agent under a new plan."""
        self._loaded_ns[agent] = t_ns

    def on_waiting(self, t_ns: int, place: TurnPosition, timeout_ns: int, *, is_again: bool) -> None:
        """Record that a turn is waiting. `is_again` means that the turn was restored from a checkpoint taken during this wait."""
        if not is_again or place not in self._due_ns:
            due_ns = t_ns + timeout_ns
            least_ns, most_ns = self._due_ns.get(place, (due_ns, due_ns))
            self._due_ns[place] = min(least_ns, due_ns), max(most_ns, due_ns)

    def on_over(
        self,
        t_ns: int,
        agent: str,
        place: TurnPosition,
        found: JournalEntry,
        faults: Sequence[ExecutedFault],
        *,
        is_grouped: bool = False,
    ) -> None:
        """Check that a wait has ended at the right time. `faults` lists the faults that have been executed so far. A member of a group may
        have ended earlier than its group."""
        due = self._due_ns.get(place)
        is_timed = (found.kind, found.outcome) == ("sleep", DONE) or found.outcome == LATE
        if due is None or not is_timed or any(fault.kind == "clock" for fault in faults):
            return
        least_ns, due_ns = due
        if t_ns < least_ns - EARLY_NS:
            self._report(
                "waits", "G3", t_ns, f"a {found.kind} of {agent} ends {_s(least_ns - t_ns)} before its time is over"
            )
        if is_grouped:
            return
        ends_ns = [fault.until_ns or fault.at_ns for fault in faults]
        latest_ns = max([due_ns, self._loaded_ns.get(agent, 0), *ends_ns])
        if latest_ns < t_ns - PATIENCE_NS:
            text = f"a {found.kind} of {agent} ends {_s(t_ns - due_ns)} after its time is over, and {_s(t_ns - latest_ns)} after the last fault or recovery"
            self._report("waits", "G3", t_ns, text)


def _s(span_ns: int) -> str:
    return f"{span_ns / 1e9:.3g} s"


class StepRun(msgspec.Struct):
    """One execution of a turn's handler.

    Attributes:
        begun: the identity of the turn, which consists of the agent, the number of its earlier durable turns, the turn's cause, and its
            first state.
        seen: outcomes of all requests that the turn has made so far.
        asked: steps that are running: one, or the members of a group.
        group: number of entries at the end of `seen` that were the members of a group.
        is_counted: whether the turn is already counted as a durable turn.
        has_failed: whether the durable handler has raised an exception.
        may_repeat: whether the running step is not logged, so that a recovery may run it again.
    """

    begun: tuple[object, ...]
    seen: list[JournalEntry]
    asked: list[tuple[object, ...]] = []
    group: int = 0
    is_counted: bool = False
    has_failed: bool = False
    may_repeat: bool = False


class StepOracle:
    """Oracle that checks the steps in one run. The events of each agent must be reported in order. The attributes `waits` and `approvals`
    are the oracles for waits with a time limit and for approvals."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.waits = WaitOracle(report)
        self.approvals = ApprovalOracle(report)
        self._runs: dict[tuple[str, int], StepRun] = {}
        self._continued_steps: dict[tuple[object, ...], int] = {}
        """First incarnation in which the turn continued after a step, by the step's identity."""
        self._counts: dict[tuple[str, int], int] = {}
        """Number of durable turns in the history of each (agent, incarnation)."""
        self._captured: dict[tuple[str, int, int], int] = {}
        """Number of durable turns before each checkpoint, by (agent, incarnation, checkpoint number)."""

    def place_of(self, agent: str, incarnation: int) -> tuple[object, ...]:
        """Return the identity of the current point in the agent's turn: the turn's start and all outcomes that the turn has received."""
        run = self._runs[agent, incarnation]
        return (*run.begun, *run.seen)

    def on_captured(self, agent: str, incarnation: int, number: int) -> None:
        """Record the number of durable turns that precede a checkpoint."""
        self._captured[agent, incarnation, number] = self._counts.get((agent, incarnation), 0)

    def on_loaded(self, agent: str, incarnation: int, checkpoint: AgentCheckpoint | None) -> None:
        """Record that the agent resumes from a checkpoint. None means that the agent starts in its initial state."""
        if checkpoint is not None:
            place = agent, checkpoint.incarnation, checkpoint.number
            self._counts[agent, incarnation] = self._captured.get(place, 0)

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """Record that a turn or its next segment starts. `state` is the agent's encoded state."""
        place = turn.agent, turn.incarnation
        count, saved = self._counts.get(place, 0), turn.turn
        if saved is not None:
            identity = (turn.agent, count, saved.sender, saved.payload, state)
            self._runs[place] = StepRun(identity, list(saved.journal), is_counted=True)
        elif turn.what != "segment":
            self._runs[place] = StepRun((turn.agent, count + 1, turn.sender, turn.payload, state), [])
        elif turn.found is not None or turn.group:
            run = self._runs[place]
            run.seen += turn.group or [found for found in (turn.found,) if found is not None]
            run.group = len(turn.group)
            is_kept = all(x.outcome != LOST for x in turn.group) or decision_of(turn.group, "first") is not None
            for asked in run.asked if is_kept else []:  # another history may decide otherwise
                first = self._continued_steps.get(asked, turn.incarnation)
                self._continued_steps[asked] = min(first, turn.incarnation)
            run.asked = []

    def on_ended(self, ended: TurnEnded | TurnFailed) -> None:
        """Record that a turn has ended or that its handler is waiting. Also record the outcomes of requests that were answered
        immediately."""
        run = self._runs.get((ended.agent, ended.incarnation))
        if run is None:
            return
        if isinstance(ended, TurnFailed):
            run.has_failed = ended.is_durable
            if ended.restart is not None:
                self._count(ended.agent, ended.incarnation, run)
            if ended.is_of_step and run.seen:
                before, last = run.seen[: -(run.group or 1)], run.seen[-(run.group or 1) :]
                for entry in last if run.group == 0 else [entry for entry in last if entry.outcome == FAILED]:
                    self._continued_steps.pop((*run.begun, _timeless(before), entry.name), None)
            return
        if ended.pause is not None:
            run.seen += ended.pause.entries
            run.group = 0
            run.may_repeat = not ended.pause.is_logged
        if ended.pause is not None or ended.is_durable:
            self._count(ended.agent, ended.incarnation, run)

    def on_dead_lettered(self, agent: str, incarnation: int) -> None:
        """Record that the message of the agent's current turn was dead-lettered."""
        run = self._runs.get((agent, incarnation))
        if run is not None and run.has_failed:
            self._count(agent, incarnation, run)

    def _count(self, agent: str, incarnation: int, run: StepRun) -> None:
        if not run.is_counted:
            run.is_counted = True
            self._counts[agent, incarnation] = self._counts.get((agent, incarnation), 0) + 1

    def on_step(self, t_ns: int, agent: str, incarnation: int, name: str) -> None:
        """Check that a step that starts to run may run for its turn."""
        run = self._runs[agent, incarnation]
        asked = (*run.begun, _timeless(run.seen), name)
        if not run.may_repeat:
            run.asked.append(asked)
        continued = self._continued_steps.get(asked)
        if continued is not None and continued <= incarnation:
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
    """Oracle that checks the rollback requests in one run.

    Attributes:
        asked: for each agent and incarnation that requested a rollback, the time of the request.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.asked: dict[tuple[str, int], int] = {}
        self._granted: dict[str, list[int]] = {}
        """Numbers of the plans that granted each rollback, by the rollback's reason."""
        self._restores: list[tuple[int, tuple[int, str, str]]] = []
        """Number of the plan, and (epoch, agent, reason) of each restore, in order."""

    def on_rollback_requested(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Record that a turn has ended with a rollback request."""
        self.asked[agent, incarnation] = t_ns

    def on_turn(self, t_ns: int, agent: str, incarnation: int) -> None:
        """Check that an agent takes no turn after its rollback request."""
        if (agent, incarnation) in self.asked:
            self._report("rollback", "G3", t_ns, f"{agent} has asked that the fleet goes back, and takes a turn")

    def on_restored(self, t_ns: int, kind: op.Restore, plan: int) -> None:
        """Check that an agent named in a restore has requested the restore, and that the same request was not granted too often."""
        self._restores.append((plan, (kind.line_epoch, kind.agent, kind.asked or kind.reason)))
        if not kind.agent:
            self._granted.clear()
            return
        if kind.request not in [f"{agent}@{incarnation}" for agent, incarnation in self.asked]:
            self._report("rollback", "G3", t_ns, f"the fleet goes back for {kind.request}, which has not asked for it")
        granted = self._granted.setdefault(kind.reason, [])
        before = [number for number in granted if plan - number < fleet_records.PLANS_KEPT]
        if len(before) >= kind.at_most:
            self._report(
                "rollback", "G3", t_ns, f"the fleet goes back once more, since plan {before[0]}: {kind.reason}"
            )
        granted.append(plan)

    def on_learned(self, t_ns: int, agent: str, plan: int, entry: JournalEntry) -> None:
        """Check that a turn that asks under this plan learns of exactly the newest rollbacks."""
        learned = [(x.epoch, x.agent, x.reason) for x in read_rollbacks(entry)]
        true = [restore for number, restore in self._restores if number <= plan][-fleet_records.ROLLBACKS_KEPT :]
        if learned != true:
            text = f"{agent} learns under plan {plan} of the rollbacks {learned}, and there were {true}"
            self._report("rollback", "G3", t_ns, text)


class EffectOracle:
    """Oracle that checks the effects in one run. The oracle `inputs` records whether bytes of a complete epoch were lost."""

    def __init__(self, report: Report, inputs: InputOracle) -> None:
        self._report = report
        self._inputs = inputs
        self._called: dict[tuple[str, int], dict[int, str]] = {}
        """For each agent and incarnation, keys of the effects called since its turn last went on, by their places in the journal."""
        self._ended: dict[str, None] = {}

    def on_called(self, t_ns: int, agent: str, incarnation: int, place: int, key: str, *, is_present: bool) -> None:
        """Check that an agent may call an effect under this key, which the outside service receives. `is_present` means that the call was
        made under the newest plan."""
        self._called.setdefault((agent, incarnation), {})[place] = key
        if is_present and key + UNDO in self._ended and not self._inputs.has_lost_bytes:
            self._report("effects", "G12", t_ns, f"{agent} calls an effect under a key that was undone: {key}")
        if is_present and key in self._ended and not self._inputs.has_lost_bytes:
            text = f"{agent} calls an effect again from whose outcome its turn had gone on: {key}"
            self._report("effects", "G12", t_ns, text)

    def on_went_on(self, agent: str, incarnation: int, entries: Mapping[int, JournalEntry]) -> None:
        """Record that the effects among these entries have ended, because their turn goes on. The keys are places in the journal."""
        called = self._called.pop((agent, incarnation), {}) if entries else {}
        for place, entry in entries.items():
            if place in called and (entry.kind, entry.outcome) == ("effect", DONE):
                self._ended[called[place]] = None


class GroundTruth:
    """Ground truth of one run, with all its branches.

    Attributes:
        newest_plan: number of the newest plan that any host has followed.
        captured: every captured image, by the checkpoint's identity.
        places: for each agent, its index in vector clocks.
        messages: number of messages consumed by turns.
        zombie_turns: number of turns taken under a plan that was not the newest.
        dead_lettered, unroutable: number of messages that became dead letters of their receivers, and of their senders, respectively.
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
        # Shared by all channels as long as the world does not report when messages leave.
        self._none_left: list[int] = []
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
        """Record that a turn or a segment of a turn has ended.

        `what` is "start", "create", "message", "timer", "input", "segment", "stashed" or "letter". Only a "create" or "message" turn
        consumes a message.
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
            _record_deferral(history, payload, "over")
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
        """Record that a message became a dead letter of its receiver. The dead-lettered message counts as consumed. If the dead letter is a
        call, the caller gets a refusal, and there is no other effect.

        If `payload` is None, the payload is unknown, and the dead letter is the channel's next message.
        """
        self.dead_lettered += 1
        self._consume_alone(t_ns, plan, agent, "buried-" + what, sender, payload)
        history = self.history_of(plan, agent)
        if what == "letter":
            _record_deferral(history, payload or b"", "over")
            self.dead_letters.on_dead_lettered_again(t_ns, history, payload or b"")
        elif payload is not None:
            self.dead_letters.on_dead_lettered(history, sender, payload)
        if payload is not None and payload.startswith(b"\x05@call"):  # the caller gets an error reply
            self._send(history, plan, history.turns, sender, b"\x06@reply" + payload[6:14])

    def on_taken(
        self, t_ns: int, plan: int, agent: str, what: str, sender: str, payload: bytes, *, is_stashed: bool
    ) -> None:
        """Record a message or input that was consumed during a durable turn. If `is_stashed` is True, the message gets its own turn later.

        If `what` is "stashed", the message had already been consumed.
        """
        self._consume_alone(t_ns, plan, agent, "taken-" + what, sender, payload)
        if is_stashed:
            deferral: Deferral = "first" if what in ("effect", "again") else "last"
            _record_deferral(self.history_of(plan, agent), payload, deferral)

    def on_command_consumed(self, t_ns: int, plan: int, agent: str, payload: bytes, reply: bytes) -> None:
        """Record that an operator command was consumed without a turn."""
        self._consume_alone(t_ns, plan, agent, "taken-word", "", payload)
        _record_deferral(self.history_of(plan, agent), payload, "over")
        if is_effect_resolution(payload) or is_approval_answer(payload):
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
            _record_deferral(history, payload or b"", "over")
        if self._with_log:
            history.log.append(Turn(plan, how, sender, payload or b"", [], [], ()))
        if self._with_clocks:
            self._tick(plan, history, channel)

    def _consume_input(self, t_ns: int, history: AgentHistory, payload: bytes) -> None:
        if is_effect_resolution(payload) or is_approval_answer(payload):  # their own oracles observe the outcome
            return
        self.inputs.on_consumed(t_ns, history, payload)
        history.inputs[payload] = history.turns

    def on_replied(self, plan: int, agent: str, payload: bytes, reply: bytes, *, is_dead_letter: bool = False) -> None:
        """Record that the agent's last turn answered this input, or answered the dead letter that the input had become."""
        self.inputs.on_replied(payload, reply)
        history = self.history_of(plan, agent)
        if is_dead_letter:
            history.dead_letter_answers.setdefault(payload, []).append(reply)
            return
        history.replies[payload] = reply
        history.answered[payload] = history.turns

    def on_emitted(self, plan: int, agent: str, payload: bytes) -> None:
        """Record an output that the agent's last turn has emitted."""
        self.outputs.on_emitted(self.history_of(plan, agent), payload)

    def on_restored(self, t_ns: int, kind: Restore, plan: int) -> None:
        """Record that the fleet was restored to an earlier epoch."""
        self.inputs.on_fallen_back()
        self.steps.approvals.on_fallen_back()
        self.rollbacks.on_restored(t_ns, kind, plan)

    def on_effect_recorded(self, t_ns: int, plan: int, agent: str, payload: bytes) -> None:
        """Record an output about an effect, which the runtime emitted for the agent between two turns."""
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
        """Return whether this branch contains a valid creation of `agent`, which means a creation that is not void. If so, all other
        creations of the agent must be refused."""
        history = self.branch_of(plan).histories.get(agent)
        return history is not None and any(
            payload[:1] == CREATE and index not in channel.void
            for channel in history.inward.values()
            for index, payload in enumerate(channel.sent)
        )

    def on_left(self, plan: int, sender: str, receiver: str, *, is_in_turn: bool, t_ns: int = 0) -> None:
        """Record that a channel's next message has left its sender's outbox. If the world never calls this method, the tracking
        of dependencies is not checked.

        `is_in_turn` means that the sender is in a turn, or will retry a failed turn. If so, the protocol has already processed the messages
        that this turn consumes.
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
        """Record that an agent's checkpoint could not be taken. The agent's later work under this plan can never be
        saved, so none of it may become visible."""
        history = self.history_of(plan, agent)
        history.failed_ns = history.failed_ns or t_ns

    def on_stopping(self, plan: int, agent: str) -> None:
        """Record that the agent stopped in its last turn."""
        history = self.history_of(plan, agent)
        history.stopped_at = history.turns

    def has_stopped(self, agent: str) -> bool:
        """Return whether the agent has stopped in any history."""
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
        """Append the agent's vector clock after its latest turn. The agent's own component of the clock is the number of its turns."""
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
        """Report a consumed payload that is not the channel's next message, where void messages are skipped."""
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
        """Return a plan's branch. If the plan is unknown, create an empty branch."""
        branch = self.branches.get(plan)
        if branch is None:
            branch = self.branches[plan] = Branch(plan, {}, {}, {})
            self.newest_plan = max(self.newest_plan, plan)
        return branch

    def history_of(self, plan: int, agent: str) -> AgentHistory:
        """Return an agent's history in a branch. If the agent is new, create an empty history."""
        histories = (self.branches.get(plan) or self.branch_of(plan)).histories
        history = histories.get(agent)
        if history is None:
            clocks = [[0] * len(self.places)] if self._with_clocks else []
            history = histories[agent] = AgentHistory(agent, {}, {}, [], [], clocks)
        return history

    def channel_of(self, plan: int, sender: str, receiver: str) -> ChannelTruth:
        """Return a channel in a branch. If the channel is unknown, create an empty channel."""
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
        """Record an image of the agent that was captured after all turns and dead letters that have been recorded so far."""
        history = self.history_of(plan, agent)
        parked: dict[str, int] = {}
        for message in control.outbox:
            parked[message.receiver] = parked.get(message.receiver, 0) + 1
        for spawn in control.spawns:
            parked[spawn.agent] = parked.get(spawn.agent, 0) + 1
        captured = Captured(
            control.incarnation,
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
        """Describe how a checkpoint differs from its captured image, or return "" if they are equal."""
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
        """Return how many of a channel's messages had left the sender when it was at this position, including void messages."""
        return bisect_right(channel.sent_at, place.turns) - place.parked.get(channel.receiver, 0)

    @staticmethod
    def got(channel: ChannelTruth, place: CutPlace) -> int:
        """Return how many of a channel's messages the receiver had consumed when it was at this position, including void messages."""
        return bisect_right(channel.consumed_at, place.turns)

    # ---- branching ------------------------------------------------------------------------------------------------

    def start_branch(self, plan: int, cut: CutRecord | None) -> Branch:
        """Create the branch for a plan that starts from a cut, where None means the initial states. Only events inside the cut are copied
        to the new branch."""
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

    def continue_branch(self, plan: int) -> None:
        """Create the branch of a plan under which agents go on, from the whole newest branch. There is none if no host has loaded an agent
        yet."""
        sources = [self.branches[plan] for plan in sorted(self.branches)[-1:]]
        branch = self.branch_of(plan)
        for source in sources:
            for agent in source.histories:
                self._copy_agent(source, branch, agent)

    def keep(self, plan: int, agents: Iterable[str]) -> None:
        """Record that agents go on under a plan. Their host may have worked under the plan before since the branch was created."""
        older = [number for number in self.branches if number < plan]
        source, branch = self.branches[max(older)], self.branches[plan]
        for agent in agents:
            branch.settled[agent] = None
            if agent in source.histories:
                self._copy_agent(source, branch, agent)

    def _copy_agent(self, source: Branch, branch: Branch, agent: str) -> None:
        """Copy an agent's history, the messages that it has sent, and its consumption of messages."""
        history = source.histories[agent]
        whole = _prefix(history, CutPlace(history.turns, history.voids, {}))
        whole.origin, whole.stopped_at = history.origin, history.stopped_at
        known = branch.histories.get(agent)
        whole.inward, whole.outward = (known.inward, known.outward) if known is not None else ({}, {})
        branch.histories[agent] = whole
        for receiver, channel in history.outward.items():
            copied = self.channel_of(branch.plan, agent, receiver)
            copied.sent, copied.sent_at, copied.void = channel.sent[:], channel.sent_at[:], dict(channel.void)
        for sender, channel in history.inward.items():
            self.channel_of(branch.plan, sender, agent).consumed_at = channel.consumed_at[:]

    def take_back(self, plan: int, agent: str, place: CutPlace) -> None:
        """Take an agent's history under a plan back to a position. The position may be later than the start of the branch, because the
        agent's host may not have known of the plan."""
        branch = self.branches[plan]
        older = [self.branches[number] for number in sorted(self.branches, reverse=True) if number < plan]
        known = [x for x in older if agent in x.histories and place.captured in x.histories[agent].captured]
        for source in [*known, *[x for x in older if agent in x.histories]][:1]:
            self._copy_agent(source, branch, agent)
        history = branch.histories.get(agent)
        if history is None:
            return
        branch.settled[agent] = None
        inward, outward = history.inward, history.outward
        branch.histories[agent] = shortened = _prefix(history, place)
        shortened.inward, shortened.outward = inward, outward
        for channel in outward.values():
            count = bisect_right(channel.sent_at, place.turns)
            del channel.sent[count:], channel.sent_at[count:]
            channel.void = {index: voids for index, voids in channel.void.items() if voids < place.voids}
        for channel in inward.values():
            del channel.consumed_at[bisect_right(channel.consumed_at, place.turns) :]
        if plan == self._plan_now:
            self._histories = branch.histories

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
            # If a message left during a turn outside the cut, it may depend on a message that no turn in this branch
            # consumes.
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


def _record_deferral(history: AgentHistory, payload: bytes, deferral: Deferral) -> None:
    if deferral != "over" or payload in stash_of(history.put_off):  # otherwise its turn already began
        history.put_off.append((history.turns, payload, deferral))


def _end_deferred_retry(history: AgentHistory, sender: str, payload: bytes) -> None:
    """Remove the deferred command to retry a dead letter after the retry has run."""
    for command in stash_of(history.put_off):
        if is_retry_of(command, sender, payload):
            _record_deferral(history, command, "over")
            return
