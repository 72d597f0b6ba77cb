"""Events that the leader core takes, and commands that it gives. Commands are carried out in order."""

import msgspec

from snapline.coordinator.state.fleet_records import ProposalOutcome
from snapline.coordinator.state.lineage import Ancestor
from snapline.coordinator.state.operations import Kind
from snapline.messages.host_messages import Directive, HostMessage, ReportedPack
from snapline.messages.turn_deaths import TurnDeath


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of the leader core's events."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base of the leader core's commands."""


class LeaderStarted(Event, frozen=True, gc=False):
    """First of all events: the state is as the log says, and from here on this leader decides."""


class MessageReceived(Event, frozen=True, gc=False):
    """A host's message. `session` numbers the stream it came on; the first of a stream is Join."""

    session: int
    message: HostMessage


class StreamClosed(Event, frozen=True, gc=False):
    session: int


class ProposalEnded(Event, frozen=True, gc=False):
    """Outcome of a `Propose`. If it is committed, the state has changed already."""

    token: int
    outcome: ProposalOutcome


class ProbeWritten(Event, frozen=True, gc=False):
    """End of a `WriteProbe`. `error` not empty: the probe could not be written."""

    session: int
    path: str
    content: bytes
    error: str = ""


class ManifestWritten(Event, frozen=True, gc=False):
    """A durable manifest, with every pack read back and compared. `error` not empty: that failed; `damaged_base`,
    `damaged_path`: for the manifest of an epoch that this one refers to is damaged."""

    epoch: int
    root: str
    error: str = ""
    damaged_base: int = 0
    damaged_path: str = ""


class EpochPublished(Event, frozen=True, gc=False):
    """A durable ref. `error` not empty: it is not durable; `damaged_path`: a ref is there and is damaged; `is_final`: the
    store has another owner. `inputs`, `outputs`: of the epoch; None: its manifest was written by another coordinator."""

    epoch: int
    error: str = ""
    damaged_path: str = ""
    is_final: bool = False
    inputs: dict[str, int] = {}
    outputs: dict[str, int] | None = None


class EpochReleased(Event, frozen=True, gc=False):
    """Durable outputs of an epoch. `error` not empty: they may not be durable; `damaged_epoch`, `damaged_path`: for bytes of it, or of an epoch
    before it, are damaged. `inputs`, `outputs`: agent → the last one that it has consumed, or emitted, in the epoch."""

    epoch: int
    error: str = ""
    damaged_epoch: int = 0
    damaged_path: str = ""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}


class LineChecked(Event, frozen=True, gc=False):
    """Result of a CheckLine. `damaged_path` not empty: the epoch cannot be used;
    otherwise `error` not empty: the store could not be read just now."""

    epoch: int
    error: str = ""
    damaged_path: str = ""


class LineMaterialised(Event, frozen=True, gc=False):
    """A line made an epoch: its pack and manifest are durable. `error` not empty: it is not one.

    Attributes:
        unborn: agents of the line that are not made yet.
        finished: agents that have stopped, and all that they ever sent is received in it.
        state_bytes, channel_state_bytes, channel_state_messages: sizes, as in `WriteManifest`.
        error: what failed; with `damaged_path` empty the store could not be used just now, or the line cannot be one.
        damaged_path: a checkpoint pack, or a file of the base epoch.
        damaged_agent: whose checkpoint there; empty: the file as a whole.
    """

    epoch: int
    root: str
    unborn: tuple[str, ...] = ()
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    error: str = ""
    damaged_path: str = ""
    damaged_agent: str = ""
    finished: tuple[str, ...] = ()


class StoredCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """One checkpoint in the store.

    Attributes:
        number: of the agent's checkpoints, over all incarnations.
        basis: "initial", "basic", "forced" or "tentative"; "coordinated" where hosts made the base epoch, and "unborn"
            where the agent is not made in the base epoch: number 0, nothing sent, nothing received.
        epoch: the round that a tentative one belongs to, otherwise 0; of one of the base epoch, that epoch.
        pack: where it lies.
        sent: receiver → last number sent before it; all channels.
        received: sender → last number consumed before it; all channels.
        turns: since the checkpoint before.
        log_bytes: payloads in its sender log.
    """

    agent: str
    number: int
    basis: str
    epoch: int
    pack: ReportedPack
    sent: dict[str, int]
    received: dict[str, int]
    turns: int = 0
    log_bytes: int = 0


class CheckpointsScanned(Event, frozen=True, gc=False):
    """Checkpoints in the store. `error` not empty: it could not be read; `damaged_path`: the base epoch is damaged.

    Attributes:
        base: one of each agent of the base epoch, sorted by agent.
        found: all in checkpoint packs of the plan, sorted by agent, number and round. Damaged packs are left out, and so
            are files that vanish meanwhile.
    """

    plan: int
    base_epoch: int
    base: tuple[StoredCheckpoint, ...] = ()
    found: tuple[StoredCheckpoint, ...] = ()
    error: str = ""
    damaged_path: str = ""


class SnapshotRequested(Event, frozen=True, gc=False):
    """A tool's request for a snapshot; answered by `AnswerSnapshot` with the same number."""

    request: int


class RestoreRequested(Event, frozen=True, gc=False):
    """A request to restore an epoch. `token`: of the client, the same if it asks again. Comes back as AnswerRestore."""

    request: int
    token: str
    epoch: int
    reason: str
    drop_inputs: bool = False


class SnapshotResolved(Event, frozen=True, gc=False):
    """Result of a ResolveSnapshot: the epoch, or why there is none."""

    snapshot: str
    epoch: int
    error: str = ""


class HostExitReported(Event, frozen=True, gc=False):
    """A launcher's report that this run of a host is over; `died_in`: turns in whose middle its process died."""

    host: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class HostBusyReported(Event, frozen=True, gc=False):
    """Report of a thread of this run of a host: its process lives, and how long its event loop has been held, and by what."""

    host: str
    instance: str
    busy_ns: int
    what: str


class ReplicaLooked(Event, frozen=True, gc=False):
    """The leading replica's check of itself and the others, twice a second.

    Attributes:
        replica: its own id.
        missing: replicas to which it has no connection.
        count: of all replicas.
        certificate_left_ns: of its own certificate; None: it need not be renewed. Not above 0: it has expired.
    """

    replica: str
    missing: tuple[str, ...]
    count: int = 1
    certificate_left_ns: int | None = None


class OutputReadersChanged(Event, frozen=True, gc=False):
    """Outputs have got a reader that follows them, or lost the last one."""

    is_watched: bool


class LineRequested(Event, frozen=True, gc=False):
    """A tool's query for the recovery line of an autonomous fleet; answered by `AnswerLine` with the same number.

    Attributes:
        failures: one line for each: the agents that fail together.
    """

    request: int
    failures: tuple[tuple[str, ...], ...]


class TimerFired(Event, frozen=True, gc=False):
    """Wakeup: the clock has passed `wakeup_ns`."""


# ---- commands -----------------------------------------------------------------------------------------------------


class Propose(Command, frozen=True, gc=False):
    """Propose an operation to the log; comes back as `ProposalEnded`. (client, sequence) is its request id."""

    token: int
    client: str
    sequence: int
    kind: Kind


class SendDirective(Command, frozen=True, gc=False):
    """Send to hosts; a session that is closed by now is skipped."""

    sessions: tuple[int, ...]
    directive: Directive


class CloseStream(Command, frozen=True, gc=False):
    """End the stream once all messages to it have left."""

    session: int


class WriteProbe(Command, frozen=True, gc=False):
    """Write a probe into the store; comes back as `ProbeWritten`."""

    session: int


class RemoveProbe(Command, frozen=True, gc=False):
    path: str


class ManifestAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of an epoch; `pack` is an index into the packs."""

    agent: str
    kind: str
    host: str
    incarnation: int
    is_unborn: bool
    pack: int


class WriteManifest(Command, frozen=True, gc=False):
    """Read each pack's index back, compare, write the manifest; comes back as `ManifestWritten`.

    `bases`: complete epochs, and their roots, whose chunks the packs may reuse. `inputs`: agent → the last one it consumed from outside;
    `outputs`: the last one it emitted; `durable_turns`: how many of these have ended.
    """

    epoch: int
    plan: int
    trigger: str
    hosts: dict[str, int]
    packs: tuple[ReportedPack, ...]
    agents: tuple[ManifestAgent, ...]
    channels: tuple[tuple[str, str], ...]
    state_bytes: int
    channel_state_bytes: int
    channel_state_messages: int
    bases: dict[int, str] = {}
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    durable_turns: dict[str, int] = {}


class PublishEpoch(Command, frozen=True, gc=False):
    """Write the ref; comes back as `EpochPublished`. May be repeated."""

    epoch: int
    root: str


class ReleaseEpoch(Command, frozen=True, gc=False):
    """Write the outputs of agents in this epoch beyond the one before it; comes back as `EpochReleased`. May be repeated.

    Attributes:
        ancestors: the epochs before it, newest first, down to one that is not condemned. Empty: the initial states.
        is_fall_back: the fleet has given up complete epochs between the first of these and this one. Consumers of their
            outputs must be notified, so something is written in any case.
    """

    epoch: int
    root: str
    ancestors: tuple[Ancestor, ...] = ()
    is_fall_back: bool = False


class ResolveSnapshot(Command, frozen=True, gc=False):
    """Find the epoch with this tag, or number; comes back as `SnapshotResolved`."""

    snapshot: str


class CheckLine(Command, frozen=True, gc=False):
    """Read ref, manifest and pack indexes of an epoch, or, `is_whole`, every byte of it; comes back as `LineChecked`."""

    epoch: int
    root: str
    is_whole: bool = False


class DeleteEpochs(Command, frozen=True, gc=False):
    """Delete forgotten epochs from the store, in the background."""

    epochs: tuple[int, ...]


class SweepStore(Command, frozen=True, gc=False):
    """Delete unreferenced data in the background: packs of aborted epochs, epochs forgotten before a crash.

    Attributes:
        kept: complete and condemned epochs.
        undecided: epochs that are open for the log, or complete and not published yet.
        begun: nothing of later epochs is touched. So it does no harm if this is carried out late, whatever has been written since.
    """

    kept: tuple[int, ...]
    undecided: tuple[int, ...]
    begun: int


class SweepLogs(Command, frozen=True, gc=False):
    """Delete in the background the batches of host logs that no epoch needs. It does no harm if this is carried out late.

    Attributes:
        plan: the present one.
        epochs: all that a recovery may go back to, with their roots.
        left: agents that have left → the lowest epoch that they had left before.
        settled_epoch: from this one on no turn that the plan has undone is repeated.
    """

    plan: int
    epochs: dict[int, str]
    left: dict[str, int]
    settled_epoch: int


class LineAgent(msgspec.Struct, frozen=True, gc=False):
    """One agent of a line that is to become an epoch.

    Attributes:
        number: of its checkpoint on the line.
        base_number: of its checkpoint in the base epoch; -1: it has none there, because it is unborn or there is no base.
        paths: packs of its checkpoints base_number + 1 … number, in order; without one in the base epoch, from 0 on for an
            agent of the fleet's definition and from 1 on for one made later. Empty: the checkpoint of the base epoch,
            or, without one, an agent that is not made yet (number 0).
    """

    agent: str
    kind: str
    host: str
    incarnation: int
    number: int
    base_number: int
    paths: tuple[str, ...] = ()


class MaterialiseLine(Command, frozen=True, gc=False):
    """Make a recovery line an epoch: read its checkpoints and the sender logs between, write one pack and a manifest.

    Comes back as `LineMaterialised`. May be repeated: then another pack and manifest are written.

    Attributes:
        base_epoch: the newest epoch that can be used; 0: there is none.
        hosts: as in `WriteManifest`.
        packs: path → what was reported, for all that `agents` names.
        writer: of the pack to be written.
    """

    epoch: int
    plan: int
    trigger: str
    base_epoch: int
    base_root: str
    hosts: dict[str, int]
    agents: tuple[LineAgent, ...]
    packs: dict[str, ReportedPack]
    writer: str


class ScanCheckpoints(Command, frozen=True, gc=False):
    """List the checkpoints in the base epoch and the packs of a plan; comes back as `CheckpointsScanned`."""

    plan: int
    base_epoch: int
    base_root: str


class DeleteCheckpoints(Command, frozen=True, gc=False):
    """Delete checkpoint packs that no line can need any more, in the background."""

    paths: tuple[str, ...]


class SweepCheckpoints(Command, frozen=True, gc=False):
    """Delete in the background all checkpoint packs of older plans, except `kept`.

    Those of this plan and of later ones remain: a host may be writing them.
    """

    plan: int
    kept: tuple[str, ...] = ()


class AnswerTool(Command, frozen=True, gc=False):
    """Base of the answers to a tool's request with this number. There is one to each request."""

    request: int


class AnswerSnapshot(AnswerTool, frozen=True, gc=False):
    epoch: int
    is_complete: bool
    reason: str
    root: str


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a line for an agent: durable checkpoints passed over, and turns undone as far as they are known."""

    checkpoints: int
    turns: int


class FoundLine(msgspec.Struct, frozen=True, gc=False):
    """Recovery line of a failure.

    Attributes:
        failed: the agents that fail.
        line: agent → number of its checkpoint; None: it keeps its live state.
        costs: of those that do not.
        in_transit: messages to be delivered again; -1: not counted.
    """

    failed: tuple[str, ...]
    line: dict[str, int | None]
    costs: dict[str, Cost]
    in_transit: int


class AnswerLine(AnswerTool, frozen=True, gc=False):
    """The line of each failure. `silent`: hosts whose agents' live states are not known; `refused`: why there is none."""

    lines: tuple[FoundLine, ...] = ()
    silent: tuple[str, ...] = ()
    refused: str = ""


class AnswerRestore(AnswerTool, frozen=True, gc=False):
    """The plan of a restore; `refused` not empty: there is none, and why. `may_pass`: a retry may succeed."""

    request: int
    plan: int = 0
    refused: str = ""
    may_pass: bool = False


class Note(Command, frozen=True, gc=False):
    """Log `text`. `level`: "info", "warning" or "error"."""

    level: str
    text: str


class EndRun(Command, frozen=True, gc=False):
    """End the coordinator's run: the fleet has ended and the hosts know."""

    exit_code: int
    reason: str
