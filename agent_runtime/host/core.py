"""The core of a host. The core runs agents' turns, delivers their messages, and takes part in epochs and recoveries. This module does no
I/O.

Theory of operation
-------------------
Model: agents are single-threaded, and their turns are atomic. Links between hosts deliver each item once and in order (`channels/link.py`).
Hosts crash together with their agents, and may restart.

*Life of a message.* When a turn ends, each message that the turn has sent is put into the *outlet* of its channel. The message leaves the
outlet when the channel has credit and the link has room. When a message leaves, it gets a sequence number, and a stamp with the epoch that
the sender has recorded. Until a message leaves its outlet, it is *parked*. A parked message is part of the sender's state, and after a
restore, it is sent as a new message. On the receiving host, the protocol processes the message. The message then waits in the mailbox for
its turn. A message counts as received when its turn has ended. Messages between agents on the same host take the same path, but they are
not sent in frames.

*Life of an epoch* (protocols.md, 2.2, after Chandy and Lamport 1985 and Lai and Yang 1987). A host learns of an epoch from the
coordinator's directive, from a marker, or from a message with the epoch's stamp, whichever arrives first. From then on, each agent on the
host must record its state before its next turn. When all agents have recorded their states, the host sends one marker item on each link. On
each link, all items with an older stamp precede the marker item. When the marker items of all linked hosts have arrived, no further message
that belongs to this epoch can arrive. The host's part of the epoch is then complete, and is written to the store in the background.

*Life of an input* (`host_inputs.py`). A message from outside the fleet is numbered and logged, and then waits for its turn like a message
from an agent. An agent's checkpoint contains the number of the last input that the agent has consumed. Each plan redelivers all later
inputs.

*Life of an output* (`host_outputs.py`). An output is numbered, and is kept in its agent's state until a complete epoch contains it. The
output is then released. An effect (`host_effects.py`) is called when its intent has been released as an output.

*Life of a plan.* A new plan discards all agents, mailboxes, links and turns on the host. Agents, sequence numbers and messages in transit
are then restored from the recovery line. The LinkHello of each link contains the plan's number, so that no frame from an older plan is
accepted (G9).

Invariants (`validate`): each message that has arrived on a channel and has not been consumed is either waiting or being handled by the
running turn. The mailbox of an agent that may start a turn is empty. A parked message has no sequence number.

The components of the core share the state defined in `host_state.py`. The components are, from bottom to top: `failures.py` (dead letters,
failed agents, rollback requests), `links.py`, `channel_ends.py` (channels, sending and parking), `mailboxes.py` (arrival, the next turn,
consumption, timers), `host_log.py` (records that must be durable before they take effect, including results of durable turns),
`host_inputs.py`, `host_outputs.py`, `views.py` (views of agents), `host_effects.py`, `durable_turns.py`, `turn_ends.py`, the protocol's
mode (`modes/`), and `plans.py` (plans). `plans.py` also contains `Membership` (creation and departure of agents), which lies below
`host_effects.py`. Each component is constructed with the components below it, and then connected to the components above it.

Guarantees: the core provides G1 and G2 (together with `protocols/epoch_stamped.py`), and G3 and G9 for its agents.

The caller's duties:
1. Execute the commands in order, before passing the next event.
2. Run one turn for each StartTurn, and report the end of the turn with TurnEnded or TurnFailed.
3. On a CaptureState, capture the state immediately, so that it cannot change before the capture.
4. Send BatchEnded whenever there are currently no more turns to run.
"""

from collections.abc import Callable
from typing import Any

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import ChannelEnds, Outlets
from snapline.agent_runtime.host.commits import Commits
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_inputs import Inputs
from snapline.agent_runtime.host.host_log import OwnLog, StepLog
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.mailboxes import Mailboxes, Timers
from snapline.agent_runtime.host.modes.coordinated import CoordinatedMode
from snapline.agent_runtime.host.modes.logged import LoggedMode
from snapline.agent_runtime.host.modes.mode import EpochRequest, HostMode
from snapline.agent_runtime.host.plans import HostParts, HostPlans, Membership
from snapline.agent_runtime.host.turn_ends import TurnEnds
from snapline.agent_runtime.host.views import Views
from snapline.channels.frame import LinkHello, Refused
from snapline.messages import host_messages as msg
from snapline.protocols.names import CHANDY_LAMPORT, is_logged
from snapline.protocols.policy import Manual, Policy

MANUAL_TRIGGER: Policy = Manual()


class HostCore:
    """The core of one host, which receives all events through `handle`.

    Attributes:
        shared: state that the components share. Other code may only read the shared state.
        mode: component that makes the decisions of the fleet's checkpointing protocol.
        log: the host log, which contains inputs and results of steps.
        agents, peers: the agents on this host, and the hosts to which this host has links, as in `HostState`.
    """

    def __init__(
        self,
        host: str,
        *,
        protocol: str = CHANDY_LAMPORT,
        policy: Policy = MANUAL_TRIGGER,
        trace_every: int = 0,
        is_watched: bool = False,
        is_local: bool = False,
        keeps_answers: bool = False,
    ) -> None:
        """Construct each component with the components below it, and then connect it to the components above it.

        Args:
            protocol, policy: the fleet's checkpointing protocol, and the policy by which agents take independent checkpoints.
            trace_every: every N-th message of each channel is traced, or none if this is 0.
            is_watched: whether an observer needs `LoggedMessageSent` commands.
            is_local: whether the fleet has `recovery="local"`.
            keeps_answers: whether the fleet keeps the answers of the outside world.
        """
        self.shared = shared = HostState(host, trace_every=trace_every, is_watched=is_watched, is_local=is_local)
        shared.keeps_answers = keeps_answers
        self.agents, self.peers = shared.agents, shared.peers
        failures = HostFailures(shared)
        self.links = links = HostLinks(shared)
        self._ends = ends = ChannelEnds(shared, links, failures)
        self._mailboxes = mailboxes = Mailboxes(shared, failures)
        self._outlets = outlets = Outlets(shared, ends, mailboxes)
        self._timers = timers = Timers(shared, mailboxes)
        self._epoch_request = epoch_request = EpochRequest(shared)
        self.log = log = OwnLog(shared)
        self._commits = commits = Commits(shared, failures, epoch_request, log)
        has_cuts = not is_logged(protocol)
        self._inputs = inputs = Inputs(shared, mailboxes, epoch_request, log, commits, has_cuts=has_cuts)
        steps = StepLog(shared, mailboxes, log)
        self._outputs = outputs = Outputs(shared, mailboxes, epoch_request)
        self._views = views = Views(shared)
        self._membership = membership = Membership(
            shared, ends, outlets, mailboxes, failures, inputs, outputs, steps, views, commits
        )
        effects = Effects(shared, outputs, steps, commits)
        self._durable = durable = DurableTurns(shared, failures, mailboxes, timers, inputs, steps, effects)
        self.turn_ends = TurnEnds(shared, failures, mailboxes, outlets, timers, membership, outputs, views, durable)
        parts = HostParts(
            *(shared, links, ends, failures, mailboxes, outlets, membership, log),
            *(inputs, steps, outputs, epoch_request, views, commits),
        )
        self.mode = mode = _mode_of(protocol, policy, parts)
        self._plans = HostPlans(parts, mode, timers, effects)
        failures.wire(mode)
        links.wire(mode, ends, outlets, mailboxes)
        ends.wire(mode, outlets, membership, durable)
        mailboxes.wire(mode, outlets, membership, inputs, durable)
        durable.wire(mode)
        epoch_request.wire(mode)
        log.wire(inputs, steps, commits)
        commits.wire(outlets, membership, effects, inputs.asks, self._plans)
        inputs.asks.wire(membership)
        outputs.wire(membership, effects)
        steps.wire(effects)
        outlets.wire(mode, membership)
        membership.wire(mode)
        self.turn_ends.wire(mode)
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type[ev.Heard], Callable[[Any], None]]:
        """Return a map from event types to their handlers. Events that the protocol's mode does not use are ignored."""
        return {
            **dict.fromkeys(ev.MODE_EVENTS, _ignore),
            **self.mode.handlers(),
            msg.EndEpoch: self._on_end_epoch,
            msg.OutputsWatched: self._outputs.on_outputs_watched,
            msg.LogOpened: self.log.on_log_opened,
            ev.InputsOffered: self._inputs.on_inputs_offered,
            ev.ReplyAwaited: self._inputs.asks.on_reply_awaited,
            ev.ViewRequested: self._views.on_view_requested,
            ev.OpenWaitsRequested: self._views.on_open_waits_requested,
            ev.WaitingAgentsRequested: self._views.on_waiting_agents_requested,
            ev.TracingRequested: self._views.on_tracing_requested,
            ev.BatchAppended: self.log.on_batch_appended,
            ev.LogSealed: self.log.on_log_sealed,
            ev.LogStatusChanged: self.log.on_log_status_changed,
            ev.StepEnded: self._durable.on_step_ended,
            ev.TurnEnded: self.turn_ends.on_turn_ended,
            ev.FrameReceived: self.links.on_frame_received,
            ev.BatchEnded: self._on_batch_ended,
            ev.CommitCaptured: self._commits.on_commit_captured,
            ev.CommitFailed: self._commits.on_commit_failed,
            ev.WriteReady: self.links.on_write_ready,
            ev.TimerFired: self._on_timer_fired,
            ev.ExternalSends: self.turn_ends.on_external_sends,
            ev.TurnFailed: self.turn_ends.on_turn_failed,
            ev.PeerKnocked: self.links.on_peer_knocked,
            ev.StreamOpened: self.links.on_stream_opened,
            ev.StreamClosed: self.links.on_stream_closed,
            msg.Welcome: self._plans.on_welcome,
            msg.Roster: self.links.on_roster,
            ev.PlanReceived: self._plans.on_plan_received,
            ev.AgentsLoaded: self._plans.on_agents_loaded,
            ev.LoadFailed: self._plans.on_load_failed,
            msg.AgentsReserved: self._membership.on_agents_reserved,
            msg.AgentRetired: self._membership.on_agent_retired,
            msg.RollbackRefused: self.turn_ends.on_rollback_refused,
            msg.Quiesce: self._plans.on_quiesce,
            msg.AgentsLocated: self._ends.on_agents_located,
        }

    def handle(self, now_ns: int, event: ev.Heard) -> list[ev.HostOutput]:
        """Handle one event, and return the commands to execute, in order."""
        shared = self.shared
        shared.now = now_ns
        out: list[ev.HostOutput] = []
        shared.out = out
        self._handlers[type(event)](event)
        return out

    def _on_end_epoch(self, event: msg.EndEpoch) -> None:
        """Handle the end of an epoch. When the epoch's outputs are released, the coordinator repeats the directive that ended the epoch.
        For the epoch of a plan's recovery line, the coordinator also repeats the directive when the plan's agents have been loaded."""
        shared = self.shared
        if event.epoch > shared.plan_epoch and event.epoch not in shared.ended:
            self._epoch_request.reset()
            self._commits.epoch_ended(event)
            self.mode.epoch_ended(event)
        self._inputs.epoch_ended(event)
        self._outputs.epoch_ended(event)

    def _on_batch_ended(self, event: ev.BatchEnded) -> None:
        if self.shared.commits.is_on:
            self._commits.take_if_due()
        self.links.on_batch_ended(event)

    def _on_timer_fired(self, _event: ev.TimerFired) -> None:
        self._timers.fire()
        self._timers.retry()
        self.mode.clock_passed()
        self._plans.clock_passed()
        self.log.clock_passed()
        self.links.clock_passed()

    # ---- for the adapter to read ----------------------------------------------------------------------------------

    @property
    def plan(self) -> int:
        """Number of the plan that has been applied or is being applied, or 0 before the first plan."""
        return self.shared.plan

    @property
    def start(self) -> int:
        """Number that identifies this run of the host, or 0 before the first Welcome."""
        return self.shared.start

    @property
    def is_loaded(self) -> bool:
        """Return whether the agents of the current plan have been loaded."""
        return self.shared.is_loaded

    @property
    def wakeup_ns(self) -> int | None:
        """Time at which the driver must send the next TimerFired, or None if no timer is pending."""
        times_ns = [
            *self._timers.wakeups_ns(),
            *self._plans.wakeups_ns(),
            *self.log.wakeups_ns(),
            *self.links.wakeups_ns(),
            *self._commits.wakeups_ns(),
            *self.mode.wakeups_ns(),
        ]
        return min(times_ns, default=None)

    @property
    def has_batch(self) -> bool:
        """Return whether a BatchEnded event would have any effect."""
        return self.links.has_batch or self._commits.is_due

    def judge(self, hello: LinkHello) -> Refused | None:
        """Check the `hello` of the peer that opened a stream. Return the refusal to send to the peer, or None if the stream is
        acceptable."""
        return self.links.judge(hello)

    def validate(self) -> None:
        """Check all invariants of the core's components.

        Raises:
            AssertionError: If an invariant does not hold.
        """
        parts = (self._mailboxes, self._outlets, self._inputs, self._outputs, self._views, self.links, self.mode)
        for part in parts:
            part.validate()


def _mode_of(protocol: str, policy: Policy, parts: HostParts) -> HostMode:
    return LoggedMode(parts, protocol, policy) if is_logged(protocol) else CoordinatedMode(parts)


def _ignore(_event: ev.Heard) -> None:
    """Ignore an event that the protocol's mode does not use."""
