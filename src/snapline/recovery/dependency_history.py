"""History of a fleet's checkpoints and message counts, from which the coordinator computes recovery lines. The history is used under
uncoordinated and communication-induced protocols.

Theory of operation
-------------------
Hosts report one dependency record for each durable checkpoint. Periodically, and whenever a recovery freezes them, hosts also report the
message counts of each agent's live state. Channels are FIFO, and a channel's messages are numbered 1, 2, 3 …, so a count of n means the
first n messages. The module computes the following results from these reports.

- `line` returns the recovery line (protocols.md, section 6; G5). The computation starts with failed agents at their last durable checkpoint
  and survivors at their live state. A survivor never causes orphans, because its sends are never undone. So only the messages that its live
  state has received matter. If frozen survivors have reported their live states, the line is exact. If reports are missing or old, the line
  is an estimate. The estimate is exact if the survivors have received no messages since their reports.
- `total_line` returns the recovery line for a failure of all agents. No other recovery line goes further back than the total-failure line,
  which is updated with each checkpoint.
- `obsolete` returns the checkpoints that can be deleted, according to the exact rule in protocols.md, section 7 (G7). Different agents
  report at different times, so their reports may together describe a state that the fleet was never in. So the rule takes the greatest
  consistent cut of the known states and keeps the checkpoints that each *single* failure would need there. The rule deletes nothing after
  the cut. If every checkpoint inside the cut is known, later recovery lines need no other checkpoints inside the cut. So the rule ignores
  an agent's live state while the agent's newest checkpoint is still being written.

A recovery truncates the history: `roll_back` removes all checkpoints and counts after the recovery line, and later checkpoints reuse the
numbers.

The caller of `FleetHistory` has the following duties.

1. Report each agent's checkpoints in order. Report only durable checkpoints. Forward no reports from a replaced incarnation, because
   checkpoint numbers cannot distinguish a late report from a new one.
2. Call `roll_back` when a recovery plan is committed, before any report from the new incarnations.
3. Delete only those checkpoints from the store that `obsolete` returns, then call `forget`. After a call of `roll_back`, earlier results of
   `obsolete` are invalid.

The module `dependency_records` computes recovery lines, and the class `TotalLine` maintains the total-failure line. Images of a
`FleetHistory` are used in tests and for debugging. A history can also be rebuilt from the content of a store.

The total-failure line
----------------------
`TotalLine` updates the total-failure line when checkpoints are added. L denotes the total-failure line, which is the greatest consistent
cut of durable checkpoints. A new checkpoint can only move L forward. Recomputing L for each new checkpoint would take time proportional to
the depth of the domino effect. So this module updates L incrementally.

An agent can advance beyond L only if the senders of the messages that its next checkpoint has received advance far enough. The checkpoints
to which these senders advance may require further senders to advance. A later checkpoint never requires less than an earlier one. The
search for all agents that must advance together is called a *climb*. If a climb finds that all requirements can be met, all agents in it
advance together. If a climb reaches a requirement that no checkpoint meets yet, the agent is *blocked* for one of two reasons.

- The requirement is missing messages: no checkpoint of the channel's sender has sent the required number of messages. In this case, only a
  new checkpoint of the sender can unblock the agent.
- The requirement concerns another agent that is itself blocked. In this case, only an advance of the other agent can unblock the agent.

The reasons form a forest whose roots are requirements for missing messages. A reason follows only from the checkpoints and not from L, so
it remains true when other agents advance. Hence a new checkpoint affects only its own agent and the agents blocked by missing messages from
it. The update visits no other agent. When the reason that blocks an agent disappears, the agent continues its climb where it had stopped.
If dependencies form a long chain, a new checkpoint still costs only a few steps, whatever the length of the chain. Each count recorded with
a checkpoint is visited at most once per climb, and usually in only one climb.

Three invariants imply that L is the greatest consistent cut: L is consistent, every agent with checkpoints beyond L is blocked, and each
chain of blocked agents ends at missing messages. `TotalLine` implements guarantees G5 and G7 for the case that all agents fail.

The algorithm was designed for this project and has not been published elsewhere. A climb computes a least fixed point, whereas a recovery
line is the greatest fixed point without orphans. The algorithm watches one missing requirement instead of all, like watched literals in
satisfiability solvers (Moskewicz et al., Chaff, 2001).
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Self

import msgspec

from snapline.errors import NotFoundError, ProtocolError, UsageError
from snapline.recovery.dependency_records import LIVE, Channel, DependencyRecord, Records, descend, single_failures

Numbers = tuple[tuple[str, int], ...]


class CheckpointImage(msgspec.Struct, frozen=True, gc=False):
    """A stored checkpoint, with the number of messages sent to and received from each other agent so far. A count may be omitted if it
    equals the count at the previous checkpoint."""

    number: int
    sent: Numbers = ()
    received: Numbers = ()
    turns: int = 0


class AgentImage(msgspec.Struct, frozen=True, gc=False):
    """An agent's stored checkpoints (at least one) in ascending order, and the report of its live state."""

    agent: str
    checkpoints: tuple[CheckpointImage, ...] = (CheckpointImage(0),)
    live: CheckpointImage | None = None


class HistoryImage(msgspec.Struct, frozen=True, gc=False):
    """The complete history of a fleet, with one entry per agent, in the order in which the agents became known."""

    agents: tuple[AgentImage, ...] = ()


class LiveReport:
    """A report of an agent's live state, with its number of turns, its newest checkpoint, and the message counts that exceed those at its
    last durable checkpoint."""

    __slots__ = ("received", "sent", "taken", "turns")

    def __init__(self, sent: dict[Channel, int], received: dict[Channel, int], turns: int, taken: int) -> None:
        self.sent = sent
        self.received = received
        self.turns = turns
        self.taken = taken


def later_report(one: LiveReport, other: LiveReport) -> LiveReport:
    """Return the maximum of two reports from one incarnation of an agent. The counts of an incarnation never decrease, so the maximum is
    the later report."""
    sent = {channel: max(count, other.sent.get(channel, 0)) for channel, count in one.sent.items()}
    received = {channel: max(count, other.received.get(channel, 0)) for channel, count in one.received.items()}
    return LiveReport(
        other.sent | sent, other.received | received, max(one.turns, other.turns), max(one.taken, other.taken)
    )


def beyond_last(records: Records, agent: int, live: LiveReport) -> LiveReport:
    """Return the report with only those counts that exceed the counts at the agent's last checkpoint."""
    last = records.last[agent]
    return LiveReport(
        {channel: count for channel, count in live.sent.items() if count > channel.sent.newest()},
        {channel: count for channel, count in live.received.items() if count > channel.received.newest()},
        max(live.turns, records.checkpoints[agent][last].turns),
        max(live.taken, last),
    )


def image_of(records: Records, agent: int, live: LiveReport | None) -> AgentImage:
    """Return the history of one agent as an image. Each checkpoint in the image contains only the counts that have changed since the
    previous checkpoint."""
    checkpoints = []
    for number in records.numbers[agent]:
        known = records.checkpoints[agent][number]
        sent, received = sent_numbers(records, known.sent), received_numbers(records, known.received)
        checkpoints.append(CheckpointImage(number, sent, received, known.turns))
    if live is None:
        return AgentImage(records.names[agent], tuple(checkpoints))
    sent, received = sent_numbers(records, live.sent.items()), received_numbers(records, live.received.items())
    return AgentImage(records.names[agent], tuple(checkpoints), CheckpointImage(live.taken, sent, received, live.turns))


def sent_numbers(records: Records, counts: Iterable[tuple[Channel, int]]) -> Numbers:
    """Return the number of messages sent to each receiver, sorted by receiver."""
    return tuple(sorted((records.names[channel.receiver], count) for channel, count in counts))


def received_numbers(records: Records, counts: Iterable[tuple[Channel, int]]) -> Numbers:
    """Return the number of messages received from each sender, sorted by sender."""
    return tuple(sorted((records.names[channel.sender], count) for channel, count in counts))


def load_checkpoints(records: Records, image: AgentImage) -> None:
    """Add the checkpoints in an image to an agent that so far has only its initial checkpoint, which has the number 0.

    Raises:
        ProtocolError: the checkpoint numbers do not increase, or the counts decrease.
    """
    agent = records.ordinals[image.agent]
    records.start_at(agent, image.checkpoints[0].number)
    for place, known in enumerate(image.checkpoints):
        if place and known.number <= records.last[agent]:
            raise ProtocolError(
                f"{image.agent}: checkpoint {known.number} comes behind {records.last[agent]}; load them in their order"
            )
        records.add(agent, known.number, dict(known.sent), dict(known.received), known.turns)


class Missing(msgspec.Struct, frozen=True, gc=False):
    """Reason why an agent is blocked: no checkpoint of the channel's sender has sent `count` messages on the channel yet."""

    channel: Channel
    count: int


class Climb:
    """Progress of the search for all agents that must advance together with one agent.

    Attributes:
        levels: for each agent, the checkpoint that it must reach. `demands` covers the messages received up to that checkpoint.
        demands: for each channel with an unprocessed demand, the number of messages that the channel's sender must have sent.
    """

    __slots__ = ("demands", "levels")

    def __init__(self) -> None:
        self.levels: dict[int, int] = {}
        self.demands: dict[Channel, int] = {}


class TotalLine:
    """The total-failure line: the greatest consistent cut of all durable checkpoints in `records`.

    After each change to the records, the caller must first call the method of this class that corresponds to the change.

    Attributes:
        places: for each agent (by ordinal), its checkpoint on the line.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.places: list[int] = []
        self._reasons: list[Missing | int | None] = []  # reason why an agent is blocked; None: no newer checkpoint
        self._blocked_by: list[dict[int, None]] = []  # by agent, the agents that this agent blocks
        self._missing: list[dict[int, None]] = []  # by agent, the agents that wait for its messages
        self._climbs: list[Climb | None] = []

    def grow(self) -> None:
        """Add new agents to the line, each at its newest checkpoint, which is usually its initial checkpoint."""
        while len(self.places) < len(self._records.names):
            self.places.append(self._records.last[len(self.places)])
            self._reasons.append(None)
            self._blocked_by.append({})
            self._missing.append({})
            self._climbs.append(None)

    def checkpoint_added(self, agent: int) -> None:
        """Update the line after a checkpoint of `agent` was added to the records."""
        self.grow()
        undecided = [agent]
        missing = self._missing[agent]
        for blocked in list(missing):
            reason = self._reasons[blocked]
            assert isinstance(reason, Missing)
            if reason.channel.sent.newest() >= reason.count:
                del missing[blocked]
                self._reasons[blocked] = None
                undecided.append(blocked)
        self._settle(undecided)

    def checkpoints_forgotten(self) -> None:
        """Discard the progress of all climbs after obsolete checkpoints were forgotten, because a climb may have stopped at a forgotten
        checkpoint. The reasons that block agents remain valid."""
        self._climbs = [None] * len(self.places)

    def recompute(self) -> None:
        """Recompute the line by starting at the newest checkpoints and rolling back agents until there are no orphans. This method is
        correct after any change of the records."""
        count = len(self._records.names)
        self.places = list(self._records.last)
        descend(self._records, self.places, {}, {})
        for channel in self._records.all_channels():
            channel.sent.on_line = channel.sent.by(self.places[channel.sender])
            channel.received.on_line = channel.received.by(self.places[channel.receiver])
        self._reasons = [None] * count
        self._blocked_by = [{} for _ in range(count)]
        self._missing = [{} for _ in range(count)]
        self._climbs = [None] * count
        self._settle(list(range(count)))

    def _settle(self, undecided: list[int]) -> None:
        """For each agent in `undecided`, either determine why it is blocked, or advance it.

        If an agent advances, the agents that it blocked become undecided.
        """
        while undecided:
            agent = undecided.pop()
            if self._reasons[agent] is not None or self.places[agent] == self._records.last[agent]:
                continue
            climb = self._climbs[agent]
            reason = self._begin(agent) if climb is None else self._continue_climb(climb)
            self._reasons[agent] = reason
            if reason is None:
                climb = self._climbs[agent]
                assert climb is not None
                undecided += self._advance(climb)
            elif isinstance(reason, Missing):
                self._missing[reason.channel.sender][agent] = None
            else:
                self._blocked_by[reason][agent] = None

    def _begin(self, agent: int) -> Missing | int | None:
        climb = self._climbs[agent] = Climb()
        reason = self._raise(climb, agent, self._records.after(agent, self.places[agent]))
        return self._continue_climb(climb) if reason is None else reason

    def _continue_climb(self, climb: Climb) -> Missing | int | None:
        """Process the demands of a climb until none remains or one cannot be met. If a demand cannot be met, keep it in the climb and
        return the reason. Otherwise return None."""
        demands, levels = climb.demands, climb.levels
        while demands:
            channel, count = demands.popitem()
            if count <= channel.sent.on_line:
                continue
            reason = self._obstacle(channel, count)
            if reason is None:
                number = channel.sent.first_with(count)
                if number <= levels.get(channel.sender, -1):
                    continue
                reason = self._raise(climb, channel.sender, number)
            else:
                demands[channel] = count
            if reason is not None:
                return reason
        return None

    def _raise(self, climb: Climb, agent: int, number: int) -> Missing | int | None:
        """Add the demands that arise if `agent` advances to checkpoint `number`. Return the reason why the first of these demands cannot be
        met, or None if no such reason is known."""
        reason: Missing | int | None = None
        checkpoints = self._records.checkpoints[agent]
        level = climb.levels.get(agent, self.places[agent])
        climb.levels[agent] = number
        for reached in self._records.between(agent, level, number):
            for channel, count in checkpoints[reached].received:
                if count > channel.sent.on_line:
                    climb.demands[channel] = count
                    if reason is None:
                        reason = self._obstacle(channel, count)
        return reason

    def _obstacle(self, channel: Channel, count: int) -> Missing | int | None:
        """Return the reason why the channel's sender cannot advance to a checkpoint that has sent `count` messages, or None if no reason is
        known."""
        if channel.sent.newest() < count:
            return Missing(channel, count)
        agent = channel.sender
        reason = self._reasons[agent]
        while reason is not None:
            if isinstance(reason, Missing):
                return channel.sender
            reason = self._reasons[reason]
        return None

    def _advance(self, climb: Climb) -> list[int]:
        """Advance all agents of a successful climb to the checkpoints that it requires. Return the agents that must now be checked
        again."""
        undecided = []
        for agent, number in climb.levels.items():
            if number <= self.places[agent]:
                continue
            for passed in self._records.between(agent, self.places[agent], number):
                checkpoint = self._records.checkpoints[agent][passed]
                for channel, count in checkpoint.sent:
                    channel.sent.on_line = count
                for channel, count in checkpoint.received:
                    channel.received.on_line = count
            self.places[agent] = number
            self._climbs[agent] = None
            reason = self._reasons[agent]
            assert not isinstance(reason, Missing), "an agent that misses something advanced"
            if reason is not None:
                del self._blocked_by[reason][agent]
                self._reasons[agent] = None
            undecided.append(agent)
            for hanging in self._blocked_by[agent]:
                self._reasons[hanging] = None
                undecided.append(hanging)
            self._blocked_by[agent] = {}
        return undecided

    def validate(self) -> None:
        """Check every invariant. Raise AssertionError if an invariant is violated."""
        records, names = self._records, self._records.names
        for channel in records.all_channels():
            about = f"{names[channel.sender]} -> {names[channel.receiver]}"
            sent, received = channel.sent, channel.received
            assert sent.on_line == sent.by(self.places[channel.sender]), f"{about}: sent on the line"
            assert received.on_line == received.by(self.places[channel.receiver]), f"{about}: received on the line"
            assert received.on_line <= sent.on_line, f"{about}: the total-failure line has an orphan"
        for agent, reason in enumerate(self._reasons):
            has_more = self.places[agent] < records.last[agent]
            assert has_more == (reason is not None), f"{names[agent]}: blocked by {reason}, has more: {has_more}"
            for _ in names:
                if not isinstance(reason, int):
                    break
                assert agent in self._blocked_by[reason], f"{names[agent]} does not hang below {names[reason]}"
                agent, reason = reason, self._reasons[reason]
            assert not isinstance(reason, int), f"the reasons of {names[agent]} go round"
            if reason is not None:
                assert reason.channel.sent.newest() < reason.count, f"{names[agent]} misses what is there"
                assert agent in self._missing[reason.channel.sender], f"{names[agent]} is not told of new checkpoints"


class Line(msgspec.Struct, frozen=True, gc=False):
    """A recovery line of the fleet. A recovery line maps each agent to the checkpoint to which the agent returns, or to None if the agent
    keeps its live state."""

    checkpoints: dict[str, int | None]


class LineCost(msgspec.Struct, frozen=True, gc=False):
    """The cost of a recovery line for the agents that it rolls back.

    Attributes:
        checkpoints: for each agent, the number of durable checkpoints that it loses, which is 0 if it returns to its last checkpoint.
        turns: for each agent, the number of its known turns that are undone. An agent whose turns are not counted has no entry.
    """

    checkpoints: dict[str, int]
    turns: dict[str, int]


class FleetHistory:
    """The dependency records of one fleet's agents, and the recovery lines computed from them. The class does no I/O and never blocks."""

    def __init__(self, agents: Iterable[str] = ()) -> None:
        """Create a history in which each agent in `agents` has only its initial checkpoint, with no messages sent or received."""
        self._records = Records()
        self._total = TotalLine(self._records)
        self._live: dict[int, LiveReport] = {}  # by ordinal; default: the last checkpoint
        for agent in agents:
            self.join(agent)

    # -- reports ------------------------------------------------------------------------------------------------------

    def join(self, agent: str) -> None:
        """Add `agent` with its initial checkpoint, which has the number 0. If the agent has already joined, do nothing."""
        self._records.members[self._records.ordinal(agent)] = True
        self._total.grow()

    def add(
        self, agent: str, number: int, sent: Mapping[str, int], received: Mapping[str, int], turns: int = 0
    ) -> None:
        """Add a checkpoint that has become durable. If the history already has a checkpoint of this agent with the same or a higher number,
        do nothing.

        Args:
            number: number of the checkpoint. The numbers of an agent's checkpoints are consecutive.
            sent: for each receiver, the number of the last message sent to it. A receiver may be omitted if the number has not changed
                since the previous checkpoint.
            received: for each sender, the number of the last message received from it. A sender may be omitted if the number has not
                changed since the previous checkpoint.
            turns: number of turns from the agent's creation to the checkpoint, or 0 if turns are not counted.

        Raises:
            NotFoundError: `agent` has not joined.
            ProtocolError: If a checkpoint is skipped or a count has decreased, in which case the history remains unchanged.
        """
        ordinal = self._member(agent)
        last = self._records.last[ordinal]
        if number <= last:
            return
        if number != last + 1:
            raise ProtocolError(
                f"{agent} reports checkpoint {number}, but the last known one is {last}: report those in between first"
            )
        self._records.add(ordinal, number, sent, received, turns)
        self._total.checkpoint_added(ordinal)
        if (live := self._live.get(ordinal)) is not None:
            self._live[ordinal] = beyond_last(self._records, ordinal, live)

    def report_live(
        self,
        agent: str,
        received: Mapping[str, int],
        sent: Mapping[str, int] = {},
        turns: int = 0,
        taken: int | None = None,
    ) -> None:
        """Record how many messages the live state of `agent` has received and sent.

        The counts are cumulative. A report must include every channel that has changed since the last checkpoint passed to `add`, even if a
        newer checkpoint is being written. Counts never decrease within an incarnation, so an outdated report has no effect.

        Args:
            received: for each sender, the number of the last message received from it.
            sent: for each receiver, the number of the last message sent to it.
            turns: number of turns since the agent's creation, or 0 if turns are not counted.
            taken: number of the agent's newest checkpoint at the time of the report, whether durable or not. If `taken` is None, the report
                refers to the last checkpoint passed to `add`. Until this checkpoint is added to the history, `obsolete` ignores the live
                state (G7).

        Raises:
            NotFoundError: `agent` has not joined.
        """
        ordinal, records = self._member(agent), self._records
        live = LiveReport(
            {records.outgoing_channel(ordinal, peer): count for peer, count in sent.items()},
            {records.incoming_channel(ordinal, peer): count for peer, count in received.items()},
            turns,
            records.last[ordinal] if taken is None else taken,
        )
        old = self._live.get(ordinal)
        self._live[ordinal] = beyond_last(records, ordinal, live if old is None else later_report(old, live))
        self._total.grow()

    # -- lines --------------------------------------------------------------------------------------------------------

    def line(self, failed: Collection[str]) -> Line:
        """Return the recovery line for a simultaneous failure of the agents `failed`.

        Raises:
            NotFoundError: one of the failed agents has not joined.
        """
        places = [LIVE] * len(self._records.names)
        for agent in failed:
            ordinal = self._member(agent)
            places[ordinal] = self._records.last[ordinal]
        descend(self._records, places, self._live_received())
        return self._as_line(places)

    def lines(self, failures: Iterable[Collection[str]]) -> list[Line]:
        """Return the recovery line for each of `failures`. Each failure is a set of agents that fail at the same time. One pass over the
        rollback-dependency graph computes the lines for all single failures.

        Raises:
            NotFoundError: an agent has not joined.
        """
        rows = single_failures(self._records, self._records.last, self._live_received())
        by_failure = []
        for failed in failures:
            places = [LIVE] * len(self._records.names)
            for agent in failed:
                places = list(map(min, places, rows[self._member(agent)]))
            by_failure.append(self._as_line(places))
        return by_failure

    def total_line(self) -> dict[str, int]:
        """Return the recovery line for a failure of all agents, in O(agents) time. The line only moves forward, unless `roll_back` returns
        to a point before it."""
        places = self._total.places
        return {agent: places[ordinal] for ordinal, agent in self._members()}

    def cost(self, line: Line) -> LineCost:
        """Return the cost of the recovery line for each agent. The cost excludes turns that a failed agent has run since its last report,
        because they are unknown."""
        checkpoints, turns = {}, {}
        for agent, number in line.checkpoints.items():
            if number is None:
                continue
            ordinal = self._member(agent)
            last = self._records.last[ordinal]
            checkpoints[agent] = last - number
            known = self._records.checkpoints[ordinal]
            live = self._live.get(ordinal)
            latest = known[last].turns if live is None else live.turns
            if latest and number in known:
                turns[agent] = latest - known[number].turns
        return LineCost(checkpoints, turns)

    def in_transit(self, line: Line) -> dict[tuple[str, str], range]:
        """Return, for each channel, the numbers of the messages that are in transit on the recovery line `line`. The result is keyed by
        sender and receiver. Channels without messages in transit have no entry.

        A channel is included only if its sender or its receiver returns to a checkpoint. If both agents keep their live states, the link
        still holds the messages between them. If the sender keeps its live state, its last report determines which messages it has sent.
        """
        places = self._places_of(line)
        in_transit = {}
        for sender, agent in self._members():
            for peer, channel in self._records.outgoing[sender].items():
                if places[sender] == LIVE and places[channel.receiver] == LIVE:
                    continue
                sent = channel.sent.by(places[sender])
                if places[sender] == LIVE and (live := self._live.get(sender)) is not None:
                    sent = max(sent, live.sent.get(channel, 0))
                received = channel.received.by(places[channel.receiver])
                if places[channel.receiver] == LIVE and (live := self._live.get(channel.receiver)) is not None:
                    received = max(received, live.received.get(channel, 0))
                if sent > received:
                    in_transit[agent, peer] = range(received + 1, sent + 1)
        return in_transit

    # -- garbage ------------------------------------------------------------------------------------------------------

    def obsolete(self) -> dict[str, list[int]]:
        """Return, for each agent, its checkpoints in the history that no later recovery line can need. Agents without obsolete checkpoints
        have no entry.

        For N agents, at most N(N+1)/2 of the checkpoints that are not after the cut can be needed (Wang, Chung, Lin and Fuchs 1995). The
        method never returns an agent's newest checkpoint, even if it is useless, because the next record contains only changes since that
        checkpoint. A useless checkpoint is returned once a newer checkpoint of its agent exists.
        """
        records = self._records
        cut = list(records.last)
        sent: dict[Channel, int] = {}
        for ordinal, live in self._live.items():
            if live.taken <= cut[ordinal]:
                cut[ordinal] = LIVE
                sent |= live.sent
        descend(records, cut, self._live_received(), sent)
        received: dict[Channel, int] = {}
        for ordinal, live in self._live.items():
            if cut[ordinal] == LIVE:
                received |= live.received
        ends = [last if place == LIVE else place for place, last in zip(cut, records.last, strict=True)]
        needed: list[set[int]] = [set() for _ in ends]
        for places in single_failures(records, ends, received):
            for ordinal, place in enumerate(places):
                needed[ordinal].add(place)
        by_agent = {}
        for ordinal, agent in self._members():
            end = min(ends[ordinal], records.last[ordinal] - 1)
            numbers = [n for n in records.between(ordinal, -1, end) if n not in needed[ordinal]]
            if numbers:
                by_agent[agent] = numbers
        return by_agent

    def forget(self, agent: str, numbers: Collection[int]) -> None:
        """Forget obsolete checkpoints that have been deleted. Ignore checkpoints that were already forgotten.

        Raises:
            NotFoundError: `agent` has not joined.
            UsageError: If a checkpoint is the agent's newest, is on the total-failure line, or has never been reported.
        """
        ordinal = self._member(agent)
        place, last = self._total.places[ordinal], self._records.last[ordinal]
        for number in numbers:
            if number == place or number >= last:
                raise UsageError(
                    f"checkpoint {number} of {agent} is not obsolete (last {last}, on the total-failure line {place}): "
                    "forget only what obsolete() names"
                )
        known = self._records.checkpoints[ordinal]
        for number in sorted(numbers):
            if number in known:
                self._records.forget(ordinal, number)
        self._total.checkpoints_forgotten()

    # -- recoveries ---------------------------------------------------------------------------------------------------

    def roll_back(self, line: Line) -> None:
        """Roll the history back to the recovery line of a committed plan. All checkpoints and counts after the line are removed.

        If an agent returns to checkpoint n, its next checkpoint has the number n + 1, and the report of its live state is discarded. Agents
        without an entry in `line` keep their live states.

        Raises:
            NotFoundError: If an agent has not joined or does not have the checkpoint in `line`, in which case the history remains
                unchanged.
        """
        for ordinal, place in enumerate(self._places_of(line)):
            if place != LIVE:
                self._records.truncate(ordinal, place)
                self._live.pop(ordinal, None)
        self._total.recompute()

    # -- inspection ---------------------------------------------------------------------------------------------------

    def record_of(self, agent: str, number: int) -> DependencyRecord:
        """Return the dependency record of a checkpoint, with the counts of all channels.

        Raises:
            NotFoundError: `agent` has not joined, or has no such checkpoint.
        """
        ordinal = self._member(agent)
        self._check_kept(ordinal, number)
        sent = {peer: channel.sent.by(number) for peer, channel in self._records.outgoing[ordinal].items()}
        received = {peer: channel.received.by(number) for peer, channel in self._records.incoming[ordinal].items()}
        return DependencyRecord(
            {peer: count for peer, count in sent.items() if count},
            {peer: count for peer, count in received.items() if count},
        )

    def checkpoints_of(self, agent: str) -> list[int]:
        """Return the numbers of the agent's checkpoints in the history, in ascending order.

        Raises:
            NotFoundError: the agent has not joined.
        """
        return list(self._records.numbers[self._member(agent)])

    def validate(self) -> None:
        """Check every invariant. Raise AssertionError if an invariant is violated."""
        records = self._records
        for channel in records.all_channels():
            for column in (channel.sent, channel.received):
                rises = all(a < b for values in (column.at, column.counts) for a, b in pairwise(values))
                assert len(column.at) == len(column.counts) and rises, "a column of a channel does not rise"
        for ordinal, agent in enumerate(records.names):
            numbers = records.numbers[ordinal]
            assert numbers == sorted(records.checkpoints[ordinal]) and numbers[-1] == records.last[ordinal], agent
            assert records.members[ordinal] or numbers == [0], f"{agent} has checkpoints and has not joined"
            for number in numbers:
                checkpoint = records.checkpoints[ordinal][number]
                assert all(channel.sent.by(number) == count for channel, count in checkpoint.sent), agent
                assert all(channel.received.by(number) == count for channel, count in checkpoint.received), agent
        for live in self._live.values():
            assert all(count > channel.sent.newest() for channel, count in live.sent.items()), "an old live report"
            assert all(count > channel.received.newest() for channel, count in live.received.items())
        self._total.validate()

    def freeze(self) -> HistoryImage:
        """Return a hashable image of the history. Equal states have equal images."""
        return HistoryImage(
            tuple(image_of(self._records, ordinal, self._live.get(ordinal)) for ordinal, _ in self._members())
        )

    @classmethod
    def restore(cls, image: HistoryImage) -> Self:
        """Create a history from an image or from the content of a store. In a store, each checkpoint has its full dependency record.

        Raises:
            ProtocolError: an agent's checkpoint numbers do not increase, or its counts decrease.
        """
        restored = cls(agent.agent for agent in image.agents)
        for agent in image.agents:
            load_checkpoints(restored._records, agent)
            if (live := agent.live) is not None:
                restored.report_live(agent.agent, dict(live.received), dict(live.sent), live.turns, live.number)
        restored._total.recompute()
        return restored

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _members(self) -> list[tuple[int, str]]:
        members = self._records.members
        return [(ordinal, agent) for ordinal, agent in enumerate(self._records.names) if members[ordinal]]

    def _member(self, agent: str) -> int:
        ordinal = self._records.ordinals.get(agent)
        if ordinal is None or not self._records.members[ordinal]:
            raise NotFoundError(f"there is no agent {agent}: ask for one that has joined the fleet")
        return ordinal

    def _check_kept(self, ordinal: int, number: int) -> None:
        if number not in self._records.checkpoints[ordinal]:
            raise NotFoundError(
                f"{self._records.names[ordinal]} has no checkpoint {number} (any more); "
                f"it keeps {len(self._records.numbers[ordinal])}, the last is {self._records.last[ordinal]}"
            )

    def _places_of(self, line: Line) -> list[int]:
        places = [LIVE] * len(self._records.names)
        for agent, number in line.checkpoints.items():
            ordinal = self._member(agent)
            if number is not None:
                self._check_kept(ordinal, number)
                places[ordinal] = number
        return places

    def _as_line(self, places: list[int]) -> Line:
        return Line({agent: None if places[ordinal] == LIVE else places[ordinal] for ordinal, agent in self._members()})

    def _live_received(self) -> dict[Channel, int]:
        received: dict[Channel, int] = {}
        for live in self._live.values():
            received |= live.received
        return received
