"""Oracles that compare a complete epoch with the ground truth. The oracles check orphans (G1), channel states (G2), images (G3, G11) and
`stop_when` (G3).

Theory of operation
-------------------
An epoch names one checkpoint for each of its agents. The ground truth records how many turns had ended when each image was captured. So it
can determine, for each channel, which messages were sent and which were consumed inside the cut. The oracles apply the following two
definitions.

- An orphan is a message that was consumed inside the cut, although it was not sent inside the cut or is still in its sender's outbox. A
  restart would resend a message in the outbox.
- The state of a channel consists of the messages that were sent but not consumed inside the cut, in order. The channel state must equal the
  stored messages in transit, followed by the sender's outbox.

*Members.* An agent that does not exist yet (unborn) has taken no turn. An agent outside the epoch was either gone before the epoch or
created after it. If the agent was gone, all its messages count as sent inside the cut. If the agent was created later, none of its messages
count. An agent counts as gone if it has stopped and the message that created it left its parent inside the cut. Messages to an agent that
is leaving or gone become dead letters, so the channels to such agents are not compared. For any other agent outside the epoch, no message
may have left its sender inside the cut.

*Vector clocks* detect orphans without channel counts. A cut is consistent if and only if no agent depends on more turns of another agent
than are inside the cut (Mattern 1989). Vector clocks do not cover messages in outboxes.

*Stops.* A fleet must stop if and only if its `stop_when` is true for a complete cut. The oracle evaluates this predicate on every complete
cut that the world reads from the store, after the other oracles have checked the cut. The oracle checks the following rules.

- If the fleet's outcome is "stopped", it stopped at a complete cut for which the predicate is true (G3).
- If the predicate is true for the newest cut, the fleet must end, or must complete a cut for which the predicate is false (G10). The G10
  rule is checked at the end of a run.
- A fleet with effects stops only at a cut without open effects. Turns that have called effects get a few seconds to end (G12).

If the predicate raises an exception, the fleet ends as failed, and the oracle makes no check.
"""

from collections.abc import Container, Iterator, Mapping

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.coordinator.state import operations as op
from snapline.messages.payloads import CREATE
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import (
    NOWHERE,
    Branch,
    ChannelTruth,
    CutPlace,
    CutRecord,
    Finding,
    digest_of,
)
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint


def record_cut(
    ground_truth: GroundTruth, epoch: int, plan: int, checkpoints: Mapping[str, AgentCheckpoint]
) -> tuple[CutRecord, list[Finding]]:
    """Return every agent's position in a cut. The second result contains a finding for each checkpoint that was never captured or that
    differs from its image."""
    findings: list[Finding] = []
    cut = CutRecord(epoch, plan, {}, {})
    branch = ground_truth.branch_of(plan)
    for agent, checkpoint in checkpoints.items():
        cut.checkpoints[agent] = digest_of(encode_checkpoint(checkpoint))
        cut.places[agent] = NOWHERE
        if not checkpoint.is_unborn:
            findings.extend(_check_image(ground_truth, branch, epoch, checkpoint))
            captured = ground_truth.find(checkpoint)
            if captured is not None:
                cut.places[agent] = CutPlace(captured.turns, captured.voids, captured.parked, captured)
    _add_gone(branch, cut)
    return cut, findings


def _check_image(
    ground_truth: GroundTruth, branch: Branch, epoch: int, checkpoint: AgentCheckpoint
) -> Iterator[Finding]:
    """Check that a stored checkpoint equals its captured image and belongs to the history of its plan."""
    agent = checkpoint.agent
    name = f"epoch {epoch}: checkpoint {checkpoint.number} of {agent}, incarnation {checkpoint.incarnation},"
    difference = ground_truth.difference(checkpoint)
    if difference:
        yield "restored", "G3", f"{name} {difference}"
        return
    captured, history = ground_truth.find(checkpoint), branch.histories.get(agent)
    is_kept = history is not None and captured in history.captured
    if checkpoint.incarnation != branch.plan and not is_kept and (history is None or history.origin != captured):
        yield "incarnation", "G9", f"{name} is of an older plan, and plan {branch.plan} did not start from it"


def _add_gone(branch: Branch, cut: CutRecord) -> None:
    """Add to the cut the agents that had left before it. Parents are added before their children."""
    waiting = [x for x in branch.histories.values() if x.stopped_at and x.agent not in cut.places]
    is_growing = True
    while waiting and is_growing:
        is_growing = False
        for history in list(waiting):
            if _was_born_inside(branch, cut, history.agent):
                cut.places[history.agent] = CutPlace(history.turns, history.voids, {}, is_gone=True)
                waiting.remove(history)
                is_growing = True


def _was_born_inside(branch: Branch, cut: CutRecord, agent: str) -> bool:
    """Return whether the message that created `agent` had left its parent inside the cut. For an agent that exists from the start, return
    True."""
    creations = [
        (channel, index)
        for channel in branch.histories[agent].inward.values()
        for index, payload in enumerate(channel.sent[: len(channel.consumed_at)])
        if payload[:1] == CREATE
    ]
    return not creations or any(
        index < GroundTruth.left(channel, cut.places[channel.sender])
        for channel, index in creations
        if channel.sender in cut.places
    )


def check_counts(
    ground_truth: GroundTruth, cut: CutRecord, checkpoints: Mapping[str, AgentCheckpoint]
) -> Iterator[Finding]:
    """Check a cut for orphans and check its channel states by counting messages."""
    outboxes = {agent: _outbox_of(checkpoint) for agent, checkpoint in checkpoints.items() if checkpoint.outbox}
    seen: dict[tuple[str, str], None] = {}
    for (sender, receiver), channel in ground_truth.branch_of(cut.plan).channels.items():
        at, to = cut.places.get(sender, NOWHERE), checkpoints.get(receiver)
        if to is None:
            if receiver not in cut.places:
                yield from _check_outside(cut, channel, at)
            continue
        left, got = ground_truth.left(channel, at), ground_truth.got(channel, cut.places[receiver])
        if got > left:
            yield (
                "orphan",
                "G1",
                (
                    f"epoch {cut.epoch}: {receiver} had consumed {got} messages of {sender}, of which only {left} had left"
                ),
            )
        elif not to.is_leaving:
            seen[sender, receiver] = None
            parked = outboxes.get(sender, {}).get(receiver, [])
            yield from _check_channel(cut, checkpoints, channel, at, got, parked)
    for agent, checkpoint in checkpoints.items():
        for sender, messages in checkpoint.in_transit.items():
            if messages and (sender, agent) not in seen and not checkpoint.is_leaving:
                yield (
                    "channel-state",
                    "G2",
                    (f"epoch {cut.epoch}: holds {len(messages)} messages from {sender} to {agent}; none was ever sent"),
                )


def _check_outside(cut: CutRecord, channel: ChannelTruth, at: CutPlace) -> Iterator[Finding]:
    """Check a channel to an agent outside the cut that had not left the fleet before the cut. If a message had left on this channel inside
    the cut, it would be lost."""
    left = GroundTruth.left(channel, at)
    lost = left - sum(index < left and count < at.voids for index, count in channel.void.items())
    if lost > 0:
        text = (
            f"{lost} messages from {channel.sender} to {channel.receiver} had left, and {channel.receiver} is not in it"
        )
        yield "channel-state", "G2", f"epoch {cut.epoch}: {text}"


def _outbox_of(checkpoint: AgentCheckpoint) -> dict[str, list[bytes]]:
    outbox: dict[str, list[bytes]] = {}
    for parked in checkpoint.outbox:
        outbox.setdefault(parked.receiver, []).append(parked.payload)
    return outbox


def _check_channel(
    cut: CutRecord,
    checkpoints: Mapping[str, AgentCheckpoint],
    channel: ChannelTruth,
    at: CutPlace,
    got: int,
    parked: list[bytes],
) -> Iterator[Finding]:
    """Check that a channel's stored messages and the sender's outbox contain exactly the messages that were sent but not consumed inside
    the cut."""
    sent = _sent_inside(channel, at)
    in_transit = checkpoints[channel.receiver].in_transit.get(channel.sender, ())
    if got == sent and not in_transit and not parked:
        return  # the channel is empty, as expected
    expected = channel.sent[got:sent]
    if channel.void:
        expected = [
            payload
            for index, payload in enumerate(expected, got)
            if index not in channel.void or channel.void[index] >= at.voids
        ]
    stored = [message.payload for message in in_transit]
    actual = stored + parked
    sender = checkpoints.get(channel.sender)
    if sender is not None and sender.spawns and any(spawn.agent == channel.receiver for spawn in sender.spawns):
        # A creation that waits for its id is stored separately from the outbox. The messages sent before and after it
        # are
        # in the outbox.
        expected = [payload for payload in expected if payload[:1] != CREATE]
        actual = [payload for payload in actual if payload[:1] != CREATE]
    if actual != expected:
        yield (
            "channel-state",
            "G2",
            (
                f"epoch {cut.epoch}: {len(stored)} messages from {channel.sender} to {channel.receiver} are in transit and "
                f"{len(parked)} in the outbox; {_compare(actual, expected)}"
            ),
        )


def _sent_inside(channel: ChannelTruth, at: CutPlace) -> int:
    """Return how many messages on the channel had been sent by the sender's position in the cut, including messages in its outbox."""
    return GroundTruth.left(channel, at) + at.parked.get(channel.receiver, 0)


def _compare(found: list[bytes], expected: list[bytes]) -> str:
    wanted = dict.fromkeys(expected)
    missing = sum(payload not in dict.fromkeys(found) for payload in wanted)
    surplus = sum(payload not in wanted for payload in found)
    return f"{len(expected)} must be ({missing} missing, {surplus} surplus, else out of order or twice)"


def check_consumed(ground_truth: GroundTruth, plan: int) -> Iterator[Finding]:
    """Check that no agent has consumed a message that its sender has not sent in the history of a plan with local recovery."""
    branch = ground_truth.branch_of(plan)
    for (sender, receiver), channel in branch.channels.items():
        sent, got = len(channel.sent), len(channel.consumed_at)
        if got > sent and sender in branch.settled and receiver in branch.settled:
            text = f"{receiver} has consumed {got} messages of {sender}, which has sent {sent} up to its newest commit"
            yield "orphan", "G1", f"plan {plan}: {text}"


def check_clocks(ground_truth: GroundTruth, cut: CutRecord) -> Iterator[Finding]:
    """Check for orphans in a cut by comparing vector clocks."""
    branch = ground_truth.branch_of(cut.plan)
    inside = [0] * len(ground_truth.places)
    for agent, place in cut.places.items():
        if agent in ground_truth.places:
            inside[ground_truth.places[agent]] = place.turns
    names = list(ground_truth.places)
    for agent, place in cut.places.items():
        clocks = branch.histories[agent].clocks if agent in branch.histories else []
        if place.turns >= len(clocks):
            continue
        for other, count in enumerate(clocks[place.turns]):
            if count > inside[other]:
                yield (
                    "clock",
                    "G1",
                    (
                        f"epoch {cut.epoch}: {agent} had heard of turn {count} of {names[other]}, and only "
                        f"{inside[other]} are inside the cut"
                    ),
                )


def situations(ground_truth: GroundTruth, cut: CutRecord, checkpoints: Mapping[str, AgentCheckpoint]) -> Iterator[str]:
    """Yield the names of the probes that this epoch hits."""
    if any(any(x.in_transit.values()) for x in checkpoints.values()):
        yield "channel state not empty"
    if any(x.outbox for x in checkpoints.values()):
        yield "outbox not empty"
    if any(x.is_unborn for x in checkpoints.values()):
        yield "spawn in a cut"
    if len(cut.places) > len(checkpoints):
        yield "agent gone before a cut"
    channels = ground_truth.branch_of(cut.plan).channels
    if any(x.sent_at and x.sent_at[0] > cut.places.get(x.sender, NOWHERE).turns for x in channels.values()):
        yield "channel opened after a record"


def situations_at_end(ground_truth: GroundTruth, initial: Container[str]) -> Iterator[str]:
    """Yield the names of the probes that a finished run hits. `initial` contains the agents that exist from the start of the run."""
    dead_letters, outputs, branch = (
        ground_truth.dead_letters,
        ground_truth.outputs,
        ground_truth.branches.get(ground_truth.newest_plan),
    )
    histories = branch.histories if branch is not None else {}
    evidence_of: dict[str, object] = {
        "zombie turn": ground_truth.zombie_turns,
        "dead letter": ground_truth.dead_lettered,
        "dead letter of its sender": ground_truth.unroutable,
        **{
            f"letter {effect}": dead_letters.effects.get(effect)
            for effect in ("handled", "failed again", "dropped", "gone")
        },
        "input consumed": any(x.inputs for each in ground_truth.branches.values() for x in each.histories.values()),
        "output emitted": outputs.emitted,
        "output released": outputs.had,
        "output undone": outputs.undone,
        "agent spawned": any(x.turns for agent, x in histories.items() if agent not in initial),
        "timer fired": any(turn.what == "timer" for x in histories.values() for turn in x.log),
    }
    return (name for name, what in evidence_of.items() if what)


TURNS_NS = 5_000_000_000
"""Time in nanoseconds for which a stop waits until turns that have had an effect end."""


class StopOracle:
    """Oracle that evaluates `stop_when` for each complete cut, and checks whether the fleet stops."""

    def __init__(self, fleet: Fleet) -> None:
        self._holds = fleet.stop_when
        self._said: dict[int, bool] = {}
        self._held_ns: int | None = None
        """Time at which the predicate was first true, or None."""
        self._open: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        """For each epoch, its open effects, and the running turns that have had effects."""

    def on_cut(self, t_ns: int, cut: Cut) -> None:
        """Evaluate `stop_when` for the cut of a complete epoch."""
        if self._holds is None:
            return
        try:
            self._said[cut.epoch] = bool(self._holds(cut))
            self._open[cut.epoch] = cut.open_effects, cut.turns_with_effects
            if self._said[cut.epoch] and self._held_ns is None:
                self._held_ns = t_ns
        except Exception:
            self._said.pop(cut.epoch, None)  # the fleet will fail with the user's error

    def on_ended(self, t_ns: int, kind: op.EndFleet) -> Iterator[Finding]:
        """Check whether the fleet was permitted to end, when an EndFleet operation is committed."""
        effects, turns = self._open.get(kind.epoch, ((), ()))
        if kind.outcome == "stopped" and effects:
            yield "stop", "G12", f"the fleet has stopped in epoch {kind.epoch} with open effects: {', '.join(effects)}"
        if kind.outcome == "stopped" and turns and t_ns < (self._held_ns or 0) + TURNS_NS:
            yield (
                "stop",
                "G12",
                f"the fleet has stopped in epoch {kind.epoch} in the middle of turns that have had effects: {', '.join(turns)}",
            )
        if kind.outcome == "stopped" and not self._said.get(kind.epoch, False):
            reason = "does not hold of it" if kind.epoch in self._said else "was never asked about it"
            yield "stop", "G3", f"the fleet has stopped in epoch {kind.epoch}, and stop_when {reason}"

    def required_reason(self, newest: int) -> str:
        """Return the reason why the fleet must end after its newest complete epoch, or "" if it need not end."""
        return f"stop_when holds of epoch {newest}, and the fleet has not ended" if self._said.get(newest) else ""
