"""Metrics of a host process (`telemetry/metrics.py`): the core's counters, the agents' states, and the durations of epochs on this host.

The host's adapter records the times of epochs once for each agent and epoch, and only if metrics are enabled. In chronological order, the
recorded times are:

    heard      The coordinator's message has arrived, or, if a marker or a stamp came earlier, the first agent has recorded.
    recorded   An agent has recorded its state. This ends its start delay. The agent pauses only for its capture.
    closed     No message of the epoch can arrive any more. This ends the recording of channels and the wait for markers.
    stored     The host's part is durable, and has been reported.
"""

import time
from collections.abc import Callable

from snapline.agent_runtime.host.core import HostCore
from snapline.messages.host_messages import BeginEpoch, Directive, EndEpoch, EpochReport, Heartbeat, HostMessage
from snapline.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, Distribution, Family, Readings
from snapline.telemetry.model_requests import MODEL_TOKENS, TOKENS

FAMILIES = (
    Family("turns_total", COUNTER, "turns that ended well", "numRecordsIn"),
    Family("host_agents", GAUGE, "agents here", "tasks"),
    Family("long_turns", GAUGE, "turns that have lasted over a second"),
    Family(
        "channel_in_transit_messages",
        GAUGE,
        "messages that have arrived here and no turn has consumed",
        "buffers.inputQueueLength",
    ),
    Family("parked_messages", GAUGE, "messages whose receiver is to be found or made"),
    Family("dead_letters_total", COUNTER, "messages that no turn could take"),
    Family("inputs_waiting", GAUGE, "messages from outside that no turn has consumed"),
    Family("outputs_waiting", GAUGE, "outputs that are not known to be released"),
    Family("outputs_waiting_bytes", GAUGE, "the same in bytes"),
    Family(
        "agents_full",
        GAUGE,
        "agents that take nothing from outside until their outputs are released",
        "backpressure",
    ),
    Family(
        "agent_start_delay_seconds",
        HISTOGRAM,
        "from the first word of an epoch to an agent's record",
        "checkpointStartDelay",
    ),
    Family(
        "agent_capture_seconds", HISTOGRAM, "the pause that an agent feels while its state is captured", "sync duration"
    ),
    Family(
        "agent_recording_seconds",
        HISTOGRAM,
        "from an agent's record until its last channel is closed",
        "alignment duration",
    ),
    Family("marker_latency_seconds", HISTOGRAM, "from the last record here until the last marker has come"),
    Family(
        "checkpoint_store_seconds",
        HISTOGRAM,
        "from then until this host's part of the epoch is durable",
        "async duration",
    ),
    Family("checkpoint_part_bytes", GAUGE, "this host's part of its newest epoch, as written"),
    Family("agent_checkpoints_total", COUNTER, "checkpoints that agents took on their own, or for a round"),
    Family("forced_checkpoints_total", COUNTER, "of these: forced by the protocol"),
    Family("deferred_checkpoints_total", COUNTER, "checkpoints by policy that were missed while the store was busy"),
    Family("piggybacked_messages_total", COUNTER, "messages that left with what the protocol puts on them"),
    Family("piggyback_bytes_total", COUNTER, "what that was in bytes"),
    Family("message_log_messages", GAUGE, "messages that are kept for receivers that may go back"),
    Family("message_log_bytes", GAUGE, "the same in bytes"),
    Family("commits_total", COUNTER, "durable commits of a fleet with local recovery"),
    Family("commit_bytes_total", COUNTER, "their size in bytes"),
    Family("commit_seconds_total", COUNTER, "time from each commit's capture until it was durable"),
    Family("commit_hold_seconds_total", COUNTER, "time from each commit's first change until it was durable"),
    Family("effects_total", COUNTER, "effects by what came of them", "", ("outcome",)),
    Family("effects_needing_people", GAUGE, "effects in doubt, which wait for people to decide"),
    MODEL_TOKENS,
    Family("unreached_hosts", GAUGE, "hosts of the fleet that no link reaches"),
    Family(
        "fenced_streams_total",
        COUNTER,
        "streams of hosts that were refused, as replaced or not known here yet",
    ),
    Family("plan", GAUGE, "number of the plan that is applied here"),
)

EPOCHS_KEPT = 64
"""Largest number of epochs whose times are kept. Only a few epochs are open at a time. Epochs that a plan has ended are forgotten when they
are the oldest."""


class _EpochTimes:
    """The times at which one epoch reached its stages, according to the monotonic clock."""

    __slots__ = ("closed_ns", "heard_ns", "recorded_ns")

    def __init__(self, heard_ns: int) -> None:
        self.heard_ns = heard_ns
        self.recorded_ns: list[int] = []
        self.closed_ns = 0


class HostMetrics:
    """Records the times of a host's epochs, and reads all metrics of the host."""

    def __init__(self, core: HostCore, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._core = core
        self._now_ns = now_ns
        self._epochs: dict[int, _EpochTimes] = {}
        self._capturing_ns = 0
        self._start_delays, self._captures, self._recordings = Distribution(), Distribution(), Distribution()
        self._marker_latencies, self._stores = Distribution(), Distribution()
        self._part_bytes = 0
        self._fenced = 0

    # ---- calls of the adapter -----------------------------------------------------------------------------------------

    def directive_received(self, directive: Directive) -> None:
        """Record the arrival time of a directive from the coordinator."""
        if isinstance(directive, BeginEpoch):
            self._times_of(directive.epoch, self._now_ns())
        elif isinstance(directive, EndEpoch):
            self._epochs.pop(directive.epoch, None)

    def capturing(self) -> None:
        """Record that an agent's state is about to be captured."""
        self._capturing_ns = self._now_ns()

    def captured(self, epochs: tuple[int, ...]) -> None:
        """Record that the agent's state has been captured for the given epochs. If no epochs are given, the agent has taken a checkpoint
        independently."""
        self._captures.observe((self._now_ns() - self._capturing_ns) / 1e9)
        for epoch in epochs:
            times = self._times_of(epoch, self._capturing_ns)
            times.recorded_ns.append(self._capturing_ns)
            self._start_delays.observe(max(0, self._capturing_ns - times.heard_ns) / 1e9)

    def closed(self, epoch: int) -> None:
        """Record that no further message of the epoch can arrive."""
        now_ns = self._now_ns()
        times = self._times_of(epoch, now_ns)
        times.closed_ns = now_ns
        for recorded_ns in times.recorded_ns:
            self._recordings.observe((times.closed_ns - recorded_ns) / 1e9)
        self._marker_latencies.observe((times.closed_ns - max(times.recorded_ns, default=times.heard_ns)) / 1e9)

    def said(self, message: HostMessage) -> None:
        """Record a message that the host sends to the coordinator. The report of an epoch is measured only once, although the report is
        repeated on each new stream."""
        if not isinstance(message, EpochReport):
            return
        times = self._epochs.pop(message.epoch, None)
        if times is not None and times.closed_ns:
            self._stores.observe((self._now_ns() - times.closed_ns) / 1e9)
            self._part_bytes = message.pack.size_bytes

    def refused(self) -> None:
        """Count a stream from another host that was refused."""
        self._fenced += 1

    def _times_of(self, epoch: int, now_ns: int) -> _EpochTimes:
        times = self._epochs.get(epoch)
        if times is None:
            times = self._epochs[epoch] = _EpochTimes(now_ns)
            while len(self._epochs) > EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
        return times

    # ---- reading ------------------------------------------------------------------------------------------------------

    def read(self, now: Heartbeat) -> Readings:
        """Return the current values of all metrics. `now` is a heartbeat with the host's current state, as it would be sent to the
        coordinator."""
        core, counts = self._core, self._core.shared.counts
        agents = core.agents.values()
        return {
            "turns_total": now.turns,
            "host_agents": len(core.agents),
            "long_turns": len(now.busy),
            "channel_in_transit_messages": sum(len(agent.mailbox) + len(agent.deferred) for agent in agents),
            "parked_messages": now.parked,
            "dead_letters_total": now.dead_letters,
            "inputs_waiting": now.inputs_waiting,
            "outputs_waiting": now.outputs_waiting,
            "outputs_waiting_bytes": now.output_bytes_waiting,
            "agents_full": now.agents_full,
            "agent_start_delay_seconds": self._start_delays,
            "agent_capture_seconds": self._captures,
            "agent_recording_seconds": self._recordings,
            "marker_latency_seconds": self._marker_latencies,
            "checkpoint_store_seconds": self._stores,
            "checkpoint_part_bytes": self._part_bytes,
            "agent_checkpoints_total": now.checkpoints,
            "forced_checkpoints_total": now.forced,
            "deferred_checkpoints_total": now.put_off,
            "piggybacked_messages_total": now.piggybacked,
            "piggyback_bytes_total": now.piggyback_bytes,
            "message_log_messages": now.log_messages,
            "message_log_bytes": now.log_bytes,
            "commits_total": counts.commits,
            "commit_bytes_total": counts.commit_bytes,
            "commit_seconds_total": counts.commit_ns / 1e9,
            "commit_hold_seconds_total": counts.hold_ns / 1e9,
            "effects_total": {(outcome,): count for outcome, count in counts.effects.items()},
            "effects_needing_people": sum(
                sum(effect.needs_people for effect in agent.effects.open.values())
                for agent in agents
                if agent.effects is not None
            ),
            **TOKENS.read(),
            "unreached_hosts": len(now.unreached),
            "fenced_streams_total": self._fenced,
            "plan": now.plan,
        }
