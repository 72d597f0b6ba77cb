"""The total-failure line, kept up to date while checkpoints are added.

Theory of operation
-------------------
L is the greatest consistent cut of durable checkpoints: the line if all agents fail, "the line" below. A new checkpoint
can only raise it. Recomputing it would cost the depth of the domino for each new checkpoint; this module updates it instead.

If an agent is to advance beyond L, its next checkpoint demands, by what it has received, that certain senders advance
to certain checkpoints, which demand more in turn. Demands only grow with the checkpoint. So either this *climb* ends,
and all agents in it advance together, or it meets a demand that no checkpoint fulfils yet, and the agent is *blocked*:

- missing (channel, count): no checkpoint of the channel's sender has sent that many. Only a new checkpoint of the
  sender can unblock the agent;
- another blocked agent that would have to advance. Only its advance can unblock the agent.

The reasons form a forest whose roots are missing demands. A reason is a chain of implications that does not mention L,
so it stays true when other agents advance. Hence a new checkpoint affects only its own agent and the agents that miss a
message of it; all other agents are not touched. An agent whose reason has gone continues its climb where it stopped: on
a staircase a new checkpoint costs a few steps, independent of the height. Each change of a checkpoint is visited at most
once per climb, and usually in only one climb.

Invariants: L is consistent; every agent with checkpoints beyond L has a reason; following reasons ends in a missing
demand. Together they say that L is the greatest consistent cut. Carries G5 and G7 for the case that all fail.

Source: ours. The climb is the least fix-point that mirrors the orphan fix-point; to watch one missing demand instead of
all is the idea of watched literals in satisfiability solvers (Moskewicz et al., Chaff, 2001).
"""

import msgspec

from snapline.recovery.history_lines import descend
from snapline.recovery.history_records import Channel, Records


class Missing(msgspec.Struct, frozen=True, gc=False):
    """No checkpoint of the channel's sender has sent `count` messages on it."""

    channel: Channel
    count: int


class Climb:
    """Demands of one agent's advance, as far as they have been processed.

    Attributes:
        levels: by agent, the checkpoint that it must reach; `demands` includes the receives up to it.
        demands: by channel, the number of messages that its sender must have sent; not yet processed.
    """

    __slots__ = ("demands", "levels")

    def __init__(self) -> None:
        self.levels: dict[int, int] = {}
        self.demands: dict[Channel, int] = {}


class TotalLine:
    """Keeps the line of all durable checkpoints of `records`, and in its columns the counts on it.

    The caller's duty: after each change of the records, call the corresponding method before anything else.

    Attributes:
        places: by ordinal, the checkpoint on the line.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.places: list[int] = []
        self._reasons: list[Missing | int | None] = []  # reason why an agent is blocked; None: no newer checkpoint
        self._blocked_by: list[dict[int, None]] = []  # by agent, the agents that it blocks
        self._missing: list[dict[int, None]] = []  # by agent, the agents that miss a message of it
        self._climbs: list[Climb | None] = []

    def grow(self) -> None:
        """Add agents that have new ordinals, at their checkpoint 0."""
        while len(self.places) < len(self._records.names):
            self.places.append(self._records.last[len(self.places)])
            self._reasons.append(None)
            self._blocked_by.append({})
            self._missing.append({})
            self._climbs.append(None)

    def checkpoint_added(self, agent: int) -> None:
        """Update the line for a new checkpoint of `agent`."""
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
        """Discard climbs after obsolete checkpoints are forgotten: a climb may be at such a checkpoint. Reasons stay true."""
        self._climbs = [None] * len(self.places)

    def recompute(self) -> None:
        """Recompute the line from the newest checkpoints by the orphan fix-point, after any change."""
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
        """Give each of `undecided` a reason, or let it advance; the agents that it blocked are undecided then, too."""
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
        """Look at demands until one cannot be fulfilled, which is returned and stays, or none is left."""
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
        """Add the demands of `agent` reaching checkpoint `number`; return the first obstacle, if any."""
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
        """Return why the sender cannot advance to a checkpoint that has sent `count`; None if no reason is known."""
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
        """Advance all agents of a finished climb; return the agents to be processed again."""
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
        """Check every invariant; AssertionError if one does not hold."""
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
