"""Mutants of the code that commits hosts' agents, and lets out only what a commit contains (`commits.py`).

- The first mutants let something out too early: messages, acknowledgements, answers, effects, creations and departures.
- The next ones leave something out of a commit.
- The mutants of recoveries start agents from the wrong point, or handle repeated messages wrongly.
- The last ones delete commits that are still needed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.sim.mutants.registry import BUSY, HOSTS, MESSAGES, SWEPT_OFTEN_MS, Mutant, crash_at, template

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.fleet import encode_state
from snapline.agent_runtime.host import epoch_files
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import ChannelEnds, Outlets
from snapline.agent_runtime.host.commits import CapturedAgent, Commits
from snapline.agent_runtime.host.entries import MessageEntry
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_inputs import ReplyWaiters
from snapline.agent_runtime.host.host_log import OwnLog, PendingCommit
from snapline.agent_runtime.host.host_state import AgentInlet, AgentOutlet, LocalAgent, Peer
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.plans import HostPlans, Membership
from snapline.agent_runtime.host.turns import Turns
from snapline.channels.channel import CHANNEL_CREDIT
from snapline.coordinator.service import store_keeper
from snapline.coordinator.state.fleet_records import EpochRecord
from snapline.coordinator.state.fleet_state import FleetState
from snapline.sim.scenario import (
    ClientsPart,
    DelayPart,
    FleetPart,
    PatternPart,
    RestoresPart,
    RunPart,
    Scenario,
    StorePart,
)
from snapline.sim.world.product_patches import Patch
from snapline.storage.log.commits import CommitEncoder, CommitEntry, NewestCommit, checkpoint_of
from snapline.storage.log.commits import note_newest as newest_in_log
from snapline.storage.log.log_files import CommitBase
from snapline.storage.log.log_record import LogBatch, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.packs.manifest import Metadata

# -- what leaves too early ------------------------------------------------------------------------------------------------


def messages_leave_at_once() -> list[Patch]:
    """Let messages leave without waiting for a commit."""
    original = Outlets.unpark

    def unpark(self: Outlets, outlet: AgentOutlet) -> None:
        outlet.released = max(outlet.released, outlet.number + len(outlet.queue or ()))
        original(self, outlet)

    def leave(self: Outlets, agent: LocalAgent, sends: Iterable[tuple[str, bytes]]) -> None:
        leave_original(self, agent, sends)
        for outlet in agent.outlets.values():
            self.unpark(outlet)

    leave_original = Outlets.leave
    return [(Outlets, "unpark", unpark), (Outlets, "leave", leave)]


def released_when_durable() -> list[Patch]:
    """When a commit is durable, let all parked messages leave, also those that were sent after the commit was captured."""
    original = Commits._release

    def release(self: Commits, durable: CapturedAgent) -> None:
        outlets = [(outlet, outlet.number + len(outlet.queue or ())) for outlet, _ in durable.outlets]
        original(self, replace(durable, outlets=outlets))

    return [(Commits, "_release", release)]


def credit_at_consumption() -> list[Patch]:
    """Grant credit, which acknowledges consumption, when a message is consumed."""

    def consume_in_commit(self: Mailboxes, inlet: AgentInlet) -> None:
        inlet.consumed += 1
        inlet.peer.credit_channels.append(inlet.channel)
        inlet.peer.credit_numbers.append(inlet.consumed + CHANNEL_CREDIT)

    return [(Mailboxes, "_consume_in_commit", consume_in_commit)]


def acknowledged_when_durable() -> list[Patch]:
    """When a commit is durable, acknowledge all messages consumed by then, also those consumed after the commit was captured."""
    original = Commits._release

    def release(self: Commits, durable: CapturedAgent) -> None:
        original(self, replace(durable, inlets=[(inlet, inlet.consumed) for inlet, _ in durable.inlets]))

    return [(Commits, "_release", release)]


def answered_at_once() -> list[Patch]:
    """Report answers as final at the end of the turn."""
    original = ReplyWaiters._answer

    def answer(self: ReplyWaiters, agent: LocalAgent, place: Any) -> None:
        assert agent.inputs is not None
        if self._shared.commits.is_on:
            agent.inputs.released = agent.inputs.consumed
        original(self, agent, place)

    return [(ReplyWaiters, "_answer", answer)]


def effects_called_at_once() -> list[Patch]:
    """Call effects before a commit contains their intent."""
    original = Effects._call_if_released

    def call_if_released(self: Effects, agent: LocalAgent, turn: Any, effects: Any, place: int) -> None:
        agent.committed_outputs = max(agent.committed_outputs, effects.open[place].opened.number)
        original(self, agent, turn, effects, place)

    return [(Effects, "_call_if_released", call_if_released)]


def created_at_once() -> list[Patch]:
    """Ask for the creation of agents before a commit contains the turn that creates them."""
    original = Membership.hold

    def hold(self: Membership, agent: LocalAgent, event: ev.TurnEnded) -> None:
        original(self, agent, event)
        if self._shared.commits.is_on:
            self.reserve(agent)

    return [(Membership, "hold", hold)]


def leaves_before_acknowledgements() -> list[Patch]:
    """Let a stopped agent leave before its messages are acknowledged."""

    def keeps(self: Commits, agent: LocalAgent) -> bool:
        if not self._shared.commits.is_on:
            return False
        is_captured = self._captured is not None and any(each.agent is agent for each in self._captured)
        changed = self._shared.commits.changed
        self._shared.commits.is_wanted |= agent.id in changed
        return is_captured or agent.id in changed

    return [(Commits, "keeps", keeps)]


# -- what commits lack ----------------------------------------------------------------------------------------------------


def _departing(is_forgotten: Any) -> list[Patch]:
    original = Outlets._depart

    def depart(self: Outlets, outlet: AgentOutlet, peer: Peer, payload: bytes) -> None:
        original(self, outlet, peer, payload)
        if self._shared.commits.is_on and is_forgotten(outlet):
            outlet.kept.clear()

    return [(Outlets, "_depart", depart)]


def departed_forgotten() -> list[Patch]:
    """Forget messages to other hosts when they leave, so that no commit contains them."""
    return _departing(lambda outlet: outlet.inlet is None)


def inner_messages_forgotten() -> list[Patch]:
    """Forget messages between agents of one host when they leave, so that no commit contains them."""
    return _departing(lambda outlet: outlet.inlet is not None)


def live_states_committed() -> list[Patch]:
    """Commit the present state of an agent in whose turn a handler waits."""

    def committed_state(self: Turns, agent: str) -> tuple[AgentType, int, bytes]:
        running = self._running[agent]
        state = encode_state(agent, running.agent, running.known, running.authors)
        return running.known, type(running.agent).state_version, state

    return [(Turns, "committed_state", committed_state)]


def released_numbers_missing() -> list[Patch]:
    """Omit up to which number messages may have left, so that an agent records epochs while it repeats them."""
    original = HostPlans._restore_released

    def restore_released(self: HostPlans, agent: LocalAgent, released: dict[str, int], *, is_commit: bool) -> None:
        original(self, agent, released, is_commit=is_commit)
        agent.is_repeating = False
        for outlet in agent.outlets.values():
            outlet.repeated = 0

    return [(HostPlans, "_restore_released", restore_released)]


def numbers_not_raised() -> list[Patch]:
    """Do not count commits as checkpoints, so that a commit may have the same number as the next one."""
    original = Commits.take_if_due

    def take_if_due(self: Commits) -> None:
        before = {agent.id: agent.checkpoints for agent in self._shared.agents.values()}
        original(self)
        for agent in self._shared.agents.values():
            agent.checkpoints = before[agent.id]

    return [(Commits, "take_if_due", take_if_due)]


def durable_with_the_first_part() -> list[Patch]:
    """Count a commit as durable when its first part is."""
    original = Commits.appended

    def appended(self: Commits, pending: PendingCommit) -> None:
        original(self, PendingCommit(replace(pending.part, is_last=pending.part.part == 0)))

    return [(Commits, "appended", appended)]


# -- recoveries -----------------------------------------------------------------------------------------------------------


def oldest_commit_wins() -> list[Patch]:
    """Start each agent from the oldest commit that is left."""
    original = newest_in_log

    def note_newest(batches: Iterable[LogBatch], newest: dict[str, NewestCommit]) -> None:
        for batch in reversed(list(batches)):
            found: dict[str, NewestCommit] = {}
            original([batch], found)
            newest.update({agent: commit for agent, commit in found.items() if commit.entries})

    return [(epoch_files, "note_newest", note_newest)]


def older_eras_revived() -> list[Patch]:
    """Start agents from commits that a restore has made void."""
    original = epoch_files.newest_commits

    def newest_commits(command: ev.LoadAgents, logs: Any) -> dict[str, NewestCommit]:
        return original(replace(command, era=0), logs)

    return [(epoch_files, "newest_commits", newest_commits)]


def earlier_owners_unread() -> list[Patch]:
    """Read only the logs of the hosts that are lost now, also of the plans before they had the agents."""

    def reads(self: ev.LoadAgents, log: LogName) -> bool:
        return log.plan < self.plan and (not self.sources_since or log.host in self.sources)

    return [(ev.LoadAgents, "reads", reads)]


def unfinished_commits_read() -> list[Patch]:
    """Start agents also from a commit without its last part, as far as it goes."""
    original = newest_in_log

    def note_newest(batches: Iterable[LogBatch], newest: dict[str, NewestCommit]) -> None:
        known = list(batches)
        original(known, newest)
        parts = [part for batch in known for part in batch.commits]
        if not parts or parts[-1].is_last:
            return
        pieces = [part.data for part in parts if part.commit == parts[-1].commit]
        for entry in _decode_prefix(b"".join(pieces)):
            if not entry.base:
                newest[entry.agent] = NewestCommit(entry.agent, entry.number, (entry,))

    return [(epoch_files, "note_newest", note_newest)]


def _decode_prefix(data: bytes) -> list[CommitEntry]:
    """Return the entries at the start of an encoded commit that may have been cut off."""
    found: list[CommitEntry] = []
    place = _after(data, 0)
    while place < len(data):
        end = place + 1
        for _ in range(4):
            end = _after(data, end) if end < len(data) else len(data) + 1
        if end > len(data):
            break
        found.append(msgspec.msgpack.decode(data[place:end], type=CommitEntry))
        place = end
    return found


def _after(data: bytes, place: int) -> int:
    """Return the place after a value of MessagePack: of an array only its head, else an integer, text or bytes."""
    code = data[place]
    if code < 0xA0:  # a small integer, or the head of a small array
        return place + 1
    if code < 0xC0:  # a short text
        return place + 1 + code - 0xA0
    if code in (0xDC, 0xDD):
        return place + 1 + (2 if code == 0xDC else 4)
    if 0xCC <= code <= 0xCF:
        return place + 1 + (1 << (code - 0xCC))
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}[code]
    return place + 1 + width + int.from_bytes(data[place + 1 : place + 1 + width], "big")


def line_messages_forgotten() -> list[Patch]:
    """Start an agent from its commit without the messages in transit that only the recovery line contains."""
    original = epoch_files._newest_point

    def newest_point(base: AgentCheckpoint | None, newest: NewestCommit | None) -> AgentCheckpoint | None:
        point = original(base, newest)
        return checkpoint_of(newest) if newest is not None and point is not base else point

    return [(epoch_files, "_newest_point", newest_point)]


def repeated_messages_taken() -> list[Patch]:
    """Take messages that a restarted sender repeats, as if they were new."""

    def drop_repeated(self: Mailboxes, inlet: AgentInlet, following: AgentInlet, payload: bytes) -> None:
        owner = following.owner
        assert owner is not None
        following.arrived += 1
        owner.mailbox.append(MessageEntry(following, 0, payload))
        self.next_turn(owner)
        if inlet.arrived == following.first_number - 1:
            inlet.peer.inlets[inlet.channel] = following

    return [(Mailboxes, "_drop_repeated", drop_repeated)]


def repeated_messages_unexpected() -> list[Patch]:
    """Open a channel again at the number that its sender says, without regard to what has arrived."""

    def accept_repeated(self: ChannelEnds, peer: Peer, inlet: AgentInlet) -> None:
        inlet.arrived = inlet.first_number - 1
        inlet.credit_sent = inlet.durable + CHANNEL_CREDIT
        peer.credit_channels.append(inlet.channel)
        peer.credit_numbers.append(inlet.credit_sent)

    return [(ChannelEnds, "_accept_repeated", accept_repeated)]


def membership_undone() -> list[Patch]:
    """Undo creations and removals after the recovery line in each plan, not only in a restore."""
    original = FleetState._restart_agents

    def restart_agents(self: FleetState, number: int, kind: Any) -> Any:
        if number > self.image.era:
            line = kind.line_epoch
            record = self.image.epochs[line] if line else EpochRecord(0, "", 0)
            self._restore_membership(line, record.unborn)
        return original(self, number, kind)

    return [(FleetState, "_restart_agents", restart_agents)]


def creation_not_repeatable() -> list[Patch]:
    """Refuse a creation that a restarted parent requests again."""
    return [(FleetState, "is_child_of", lambda *_: False)]


# -- moves ----------------------------------------------------------------------------------------------------------------


def frozen_agents_go_on() -> list[Patch]:
    """Let agents begin turns after the commit from which they start on another host."""
    original = Commits.freeze

    def freeze(self: Commits, agents: Iterable[str]) -> list[LocalAgent]:
        thawed = original(self, agents)
        for name in self._shared.commits.frozen:
            self._shared.agents[name].is_held = False
        return thawed

    return [(Commits, "freeze", freeze)]


def moved_before_their_commit() -> list[Patch]:
    """Report that agents are frozen although no durable commit contains what they have done."""
    return [(Commits, "are_frozen_committed", property(lambda self: True))]


# -- deletions ------------------------------------------------------------------------------------------------------------


def deleted_at_the_newest() -> list[Patch]:
    """Delete the commits that the newest epoch covers, so that nothing is left if it is damaged."""

    def base_of(epochs: Mapping[int, Metadata], era: int) -> CommitBase:
        if not epochs:
            return CommitBase(era=era)
        newest = epochs[max(epochs)]
        return CommitBase(newest.plan, newest.log_floors, era)

    return [(store_keeper, "base_of", base_of)]


def never_deleted() -> list[Patch]:
    """Do not delete commits, so that logs grow without bound."""
    return [(CommitBase, "covers", lambda *_: False)]


def floor_at_the_end() -> list[Patch]:
    """Report, as covered by an epoch, the commits up to the end of the epoch instead of up to its beginning."""

    def batch_of_commit(self: OwnLog, commit: int) -> int:
        return max([batch for _, batch in self._commit_batches], default=0)

    return [(OwnLog, "batch_of_commit", batch_of_commit)]


# -- what is read of the logs ---------------------------------------------------------------------------------------------


def _starts(*, is_earlier: bool = True, has_inputs: bool = True) -> list[Patch]:
    """Let an epoch name the first batch that it does not cover without regard to earlier logs or to open inputs."""

    def start_beyond_states(self: OwnLog) -> int:
        agents = list(self._shared.agents.values())
        pending = [x for agent in agents if agent.inputs is not None for x in agent.inputs.waiting.values()]
        places = [(x.plan, x.batch) for x in pending if has_inputs and (x.is_durable or x.batch)]
        is_rerun = any(agent.begun is not None and agent.begun.logged for agent in agents)
        are_earlier = any(plan != self._shared.plan for plan, _ in places)
        if is_earlier and (self.awaits_earlier or self._has_orphans or is_rerun or are_earlier):
            return 0
        is_written = (self.name, self._number) in self._batches
        return min([self._number + (not is_written), *[batch for plan, batch in places if plan == self._shared.plan]])

    return [(OwnLog, "start_beyond_states", start_beyond_states)]


def open_inputs_unread() -> list[Patch]:
    """Skip batches with inputs that an epoch does not cover."""
    return _starts(has_inputs=False)


def earlier_logs_unread() -> list[Patch]:
    """Skip logs of the plans before that of the epoch, although they contain inputs that it does not cover."""
    return _starts(is_earlier=False)


def changes_since_before_an_epoch() -> list[Patch]:
    """Write changes of a checkpoint from before the agent recorded an epoch, after which that checkpoint may be deleted or not read."""

    def recorded(self: CommitEncoder, agent: str) -> None:
        """Go on as if the agent had not recorded its state."""

    return [(CommitEncoder, "recorded", recorded)]


# -- the mutants ----------------------------------------------------------------------------------------------------------

CRASHES = ("450ms", "800ms", "1.2s", "1.7s")


def _local(*patterns: str, **options: Any) -> Scenario:
    """Return a template for fleets with local recovery, some of whose hosts crash."""
    made = template("chandy-lamport", patterns=patterns, faults=crash_at(*CRASHES), **options)
    fleet = FleetPart(hosts=HOSTS, recovery="local", pattern=PatternPart(messages=MESSAGES))
    return replace(made, fleet=fleet)


ASKED = ClientsPart(count=3, inputs=60, pause="10ms")
WAITING = ClientsPart(count=3, inputs=60, pause="1ms")
PARTS = {"commit_part_bytes": 300}
CHANGES = {"commit_changes_bytes": 1}
MOVED = replace(
    _local("bank", "random"),
    fleet=FleetPart(hosts=HOSTS, recovery="local", pattern=PatternPart(messages=1000)),
    run=RunPart(moves=40, until="3s"),
    fault=[],
)
SLOWLY_MOVED = replace(MOVED, store=StorePart(delay=DelayPart(least="80ms", jitter="80ms")))
if SLOWLY_MOVED.swarm is not None:
    SLOWLY_MOVED = replace(SLOWLY_MOVED, swarm=replace(SLOWLY_MOVED.swarm, network=False))
TAKEN_BACK = RestoresPart(times=4, drops_one_in=2)
COMMIT_MUTANTS: dict[str, Mutant] = {
    "messages-leave-before-their-commit": Mutant(
        text="messages to other hosts do not wait for a commit",
        patches=messages_leave_at_once,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=0,
    ),
    "messages-released-when-durable": Mutant(
        text="a durable commit lets messages leave that were sent after it was captured",
        patches=released_when_durable,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=5,
    ),
    "acknowledged-at-consumption": Mutant(
        text="a message is acknowledged when it is consumed, not when a commit with its consumption is durable",
        patches=credit_at_consumption,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=0,
    ),
    "acknowledged-when-durable": Mutant(
        text="a durable commit acknowledges messages that were consumed after it was captured",
        patches=acknowledged_when_durable,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=0,
    ),
    "answered-before-the-commit": Mutant(
        text="an answer is final before a commit contains the end of its turn",
        patches=answered_at_once,
        scenario=_local(*BUSY, clients=ASKED),
        oracle="receipts",
        seed=0,
    ),
    "effect-before-its-commit": Mutant(
        text="an effect is called before a commit contains its intent",
        patches=effects_called_at_once,
        scenario=_local("paying"),
        oracle="effects",
        seed=0,
    ),
    "creation-before-its-commit": Mutant(
        text="agents are created before a commit contains the turn that creates them",
        patches=created_at_once,
        scenario=_local("spawning"),
        oracle="commits",
        seed=0,
    ),
    "leaves-unacknowledged": Mutant(
        text="a stopped agent leaves before its messages are acknowledged",
        patches=leaves_before_acknowledgements,
        scenario=_local("spawning"),
        oracle="commits",
        seed=0,
    ),
    "departed-messages-forgotten": Mutant(
        text="commits lack messages that have left and are not acknowledged",
        patches=departed_forgotten,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=0,
    ),
    "inner-messages-forgotten": Mutant(
        text="commits lack messages between agents of one host",
        patches=inner_messages_forgotten,
        scenario=_local(*BUSY),
        oracle="commits",
        seed=22,
    ),
    "states-within-turns-committed": Mutant(
        text="commits contain states from the middle of turns",
        patches=live_states_committed,
        scenario=_local("stepping"),
        oracle="replay",
        seed=6,
    ),
    "records-while-repeating": Mutant(
        text="an agent records epochs while it repeats messages that had left before a recovery",
        patches=released_numbers_missing,
        scenario=_local(*BUSY),
        oracle="core",
        seed=89,
    ),
    "commits-without-numbers": Mutant(
        text="two commits of an agent may have the same number",
        patches=numbers_not_raised,
        scenario=_local(*BUSY),
        oracle="restored",
        seed=0,
    ),
    "durable-with-its-first-part": Mutant(
        text="a commit counts as durable when its first part is",
        patches=durable_with_the_first_part,
        scenario=replace(_local(*BUSY), limits=PARTS),
        oracle="commits",
        seed=0,
    ),
    "oldest-commit-wins": Mutant(
        text="agents start from their oldest commits",
        patches=oldest_commit_wins,
        scenario=_local(*BUSY),
        oracle="restored",
        seed=0,
    ),
    "void-commits-revived": Mutant(
        text="agents start from commits that a restore has made void",
        patches=older_eras_revived,
        scenario=_local(*BUSY, restores=TAKEN_BACK),
        oracle="restored",
        seed=0,
    ),
    "unfinished-commit-read": Mutant(
        text="agents start from a commit whose last part is missing",
        patches=unfinished_commits_read,
        scenario=replace(_local(*BUSY), limits=PARTS),
        oracle="restored",
        seed=3,
    ),
    "messages-of-the-line-forgotten": Mutant(
        text="an agent that starts from a commit does not get the messages in transit that only the recovery line contains",
        patches=line_messages_forgotten,
        scenario=_local("planning"),
        oracle="commits",
        seed=83,
    ),
    "repeated-messages-taken": Mutant(
        text="messages that a restarted sender repeats are taken again",
        patches=repeated_messages_taken,
        scenario=_local(*BUSY),
        oracle="exactly-once",
        seed=0,
    ),
    "channel-opened-at-the-senders-number": Mutant(
        text="a channel that is opened again goes on at the number that its sender says",
        patches=repeated_messages_unexpected,
        scenario=_local(*BUSY),
        oracle="exactly-once",
        seed=0,
    ),
    "logs-of-earlier-owners-unread": Mutant(
        text="an agent that was lost before its new host had committed it starts without the commits of its host before",
        patches=earlier_owners_unread,
        scenario=_local(*BUSY),
        oracle="restored",
        seed=41,
    ),
    "frozen-agents-go-on": Mutant(
        text="an agent that is about to move takes turns after its last commit on its host",
        patches=frozen_agents_go_on,
        scenario=MOVED,
        oracle="orphan",
        seed=17,
    ),
    "moved-before-their-commit": Mutant(
        text="an agent moves before a durable commit contains what it has done",
        patches=moved_before_their_commit,
        scenario=SLOWLY_MOVED,
        oracle="commits",
        seed=9,
    ),
    "membership-undone-by-recoveries": Mutant(
        text="a recovery to commits undoes the creations and removals after the recovery line",
        patches=membership_undone,
        scenario=_local("spawning"),
        oracle="channel-state",
        seed=21,
    ),
    "creation-refused-when-repeated": Mutant(
        text="a creation that a restarted parent requests again is refused",
        patches=creation_not_repeatable,
        scenario=_local("spawning"),
        oracle="refused",
        seed=1,
    ),
    "open-inputs-unread": Mutant(
        text="recoveries skip batches with inputs that the recovery line does not cover",
        patches=open_inputs_unread,
        scenario=_local("stepping", clients=WAITING),
        oracle="inputs",
        seed=7,
    ),
    "earlier-logs-unread": Mutant(
        text="recoveries skip logs of the plans before that of the recovery line",
        patches=earlier_logs_unread,
        scenario=_local("paying", "planning", clients=WAITING),
        oracle="inputs",
        seed=152,
    ),
    "changes-since-before-an-epoch": Mutant(
        text="commits contain changes of checkpoints from before an epoch, which are not there any more",
        patches=changes_since_before_an_epoch,
        scenario=replace(_local(*BUSY), limits=CHANGES),
        oracle="garbage",
        seed=11,
    ),
    "commits-deleted-at-the-newest-epoch": Mutant(
        text="commits are deleted that only the newest epoch covers",
        patches=deleted_at_the_newest,
        scenario=replace(_local(*BUSY), limits={"sweep_ms": SWEPT_OFTEN_MS}),
        oracle="garbage",
        seed=1,
    ),
    "commits-never-deleted": Mutant(
        text="commits are not deleted",
        patches=never_deleted,
        scenario=replace(_local(*BUSY), limits={"sweep_ms": SWEPT_OFTEN_MS}),
        oracle="garbage",
        seed=0,
    ),
    "commits-deleted-up-to-the-end-of-an-epoch": Mutant(
        text="commits are deleted that were captured while the epoch was recorded",
        patches=floor_at_the_end,
        scenario=replace(_local(*BUSY), limits={"sweep_ms": SWEPT_OFTEN_MS}),
        oracle="garbage",
        seed=3,
    ),
}
