"""Dependency records of the checkpoints of an uncoordinated or communication-induced fleet, as the coordinator knows them.

Theory of operation
-------------------
Hosts report one record per durable checkpoint, and from time to time (always when they freeze for a recovery) the counts
of an agent's live state. Channels are FIFO and numbered 1, 2, 3 …, so a count describes a prefix. From these follow

- `line`, the recovery line (protocols.md, section 6; G5): failed agents start at their last durable checkpoint,
  survivors at their live state. A survivor never makes orphans, since its sends are never undone: only the
  receives of its live state matter. With reports of frozen survivors the line is exact. Without reports, or with old
  ones, it is an estimate: the line of an execution in which survivors have received no more than reported;
- `total_line`, the line if all fail, which bounds every other from below; kept up to date with each checkpoint;
- `obsolete`, by the exact rule of section 7 (G7). Reports of different agents are of different age, and together need
  not be a state that the fleet was ever in. So this takes the greatest consistent cut of the known states, keeps the
  checkpoints that each *single* failure would need there, and touches nothing above the cut. Later events continue
  that cut and need nothing else if every checkpoint inside the cut is known. So a live state behind a checkpoint
  that is still being written does not count there;
- `received_on_total_line`, the numbers up to which senders may drop their logs (section 3).

A recovery truncates the history: `roll_back` removes everything past its line, and numbers are used again from there.

The caller's duties:

1. Report each agent's checkpoints in order, only durable ones, and no reports of a replaced incarnation: numbers alone
   cannot distinguish a late report from a new one.
2. Call `roll_back` when a plan is committed, before any report of the new incarnations.
3. Delete from the store only checkpoints that `obsolete` returns, then call `forget`; a list from before a `roll_back`
   is invalid.

`history_lines` finds the line, `history_total` keeps the total line.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Self

import msgspec

from snapline.errors import NotFoundError, ProtocolError, UsageError
from snapline.recovery.cuts import DependencyRecord
from snapline.recovery.history_image import (
    HistoryImage,
    LiveReport,
    beyond_last,
    image_of,
    later_report,
    load_checkpoints,
)
from snapline.recovery.history_lines import LIVE, descend, single_failures
from snapline.recovery.history_records import Channel, Records
from snapline.recovery.history_total import TotalLine


class Line(msgspec.Struct, frozen=True, gc=False):
    """Recovery line: by agent, the checkpoint it goes back to; None: it keeps its live state."""

    checkpoints: dict[str, int | None]


class LineCost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a line, for the agents that do not keep their live state.

    Attributes:
        checkpoints: by agent, the number of durable checkpoints that it passes over; 0: it goes back to its last one.
        turns: by agent, the reported turns undone. Agents without reports have no entry.
    """

    checkpoints: dict[str, int]
    turns: dict[str, int]


class FleetHistory:
    """Records of one fleet's agents, and the lines that follow from them. Pure; never blocks."""

    def __init__(self, agents: Iterable[str] = ()) -> None:
        """Create a history in which every one of `agents` has its checkpoint 0, with nothing sent and nothing received."""
        self._records = Records()
        self._total = TotalLine(self._records)
        self._live: dict[int, LiveReport] = {}  # by ordinal; no entry: the last checkpoint
        for agent in agents:
            self.join(agent)

    # -- reports ------------------------------------------------------------------------------------------------------

    def join(self, agent: str) -> None:
        """Add `agent` with its checkpoint 0. Adding it again is a no-op."""
        self._records.members[self._records.ordinal(agent)] = True
        self._total.grow()

    def add(
        self, agent: str, number: int, sent: Mapping[str, int], received: Mapping[str, int], turns: int = 0
    ) -> None:
        """Add a checkpoint that has become durable. Ignore one that is or was known.

        Args:
            agent: its agent.
            number: the one after the agent's last.
            sent: by receiver, the last number sent, for channels that changed since the checkpoint before.
            received: by sender, the last number received, for such channels.
            turns: the agent's turns up to the checkpoint, counted from its start; 0 if not counted.

        Raises:
            NotFoundError: `agent` has not joined.
            ProtocolError: a checkpoint in between is missing, or a count falls; nothing is changed.
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
        """Report what the live state of `agent` has received and sent.

        The counts are cumulative, for the channels that changed since the last *reported* checkpoint (`add`); a checkpoint
        that is still being written does not count. Counts only rise in an incarnation, so an outdated report or
        checkpoint changes nothing.

        Args:
            agent: whose state.
            received: by sender the last number received.
            sent: by receiver the last number sent.
            turns: the agent's turns so far, counted from its start; 0 if not counted.
            taken: the agent's newest checkpoint at that moment, durable or not; None: the last reported one.
                Until it is reported, `obsolete` ignores this live state (G7).

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
        """Return the recovery line for a simultaneous failure of the agents `failed`, by the orphan fix-point.

        Raises:
            NotFoundError: one of them has not joined.
        """
        places = [LIVE] * len(self._records.names)
        for agent in failed:
            ordinal = self._member(agent)
            places[ordinal] = self._records.last[ordinal]
        descend(self._records, places, self._live_received())
        return self._as_line(places)

    def lines(self, failures: Iterable[Collection[str]]) -> list[Line]:
        """Return `line` for each of `failures`; the graph gives all single failures at once.

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
        """Return the line if all agents fail. It only rises, except by a `roll_back` below it. O(agents)."""
        places = self._total.places
        return {agent: places[ordinal] for ordinal, agent in self._members()}

    def cost(self, line: Line) -> LineCost:
        """Return the cost of `line` by agent. Turns of a failed agent since its last report are unknown and not counted."""
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
        """Return, by (sender, receiver), the numbers sent and not received inside `line`; only channels with any.

        Only channels with an end that goes back: the link still holds messages between two agents that keep their live
        state. The sends of a live sender are those of its last report.
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
        """Return the kept checkpoints that no later line can need, also after recoveries; only agents that have any.

        Of the checkpoints at or below the cut, at most N(N+1)/2 can be needed, for N agents (Wang, Chung, Lin and
        Fuchs 1995). An agent's newest checkpoint is not returned even if it is useless: the next record holds only
        changes since that one. It is returned when there is a newer one.
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

    def received_on_total_line(self, receiver: str) -> Mapping[str, int]:
        """Return, by sender, the last number that `receiver` has received at its checkpoint on the total-failure line.

        Senders may drop these messages and earlier ones from their logs; later ones can still be needed.

        Raises:
            NotFoundError: `receiver` has not joined.
        """
        channels = self._records.incoming[self._member(receiver)]
        return {sender: channel.received.on_line for sender, channel in channels.items() if channel.received.on_line}

    def forget(self, agent: str, numbers: Collection[int]) -> None:
        """Forget obsolete checkpoints that have been deleted. Ignores checkpoints forgotten before.

        Raises:
            NotFoundError: `agent` has not joined.
            UsageError: a checkpoint is the agent's last, is on the total-failure line, or has never been reported.
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
        """Roll back to the line of a committed plan: remove everything past it.

        Agents that go back continue with the number after the line's; their live reports are discarded. Agents without an
        entry in `line` keep their live state.

        Raises:
            NotFoundError: an agent has not joined, or has no such checkpoint; nothing is changed.
        """
        for ordinal, place in enumerate(self._places_of(line)):
            if place != LIVE:
                self._records.truncate(ordinal, place)
                self._live.pop(ordinal, None)
        self._total.recompute()

    # -- inspection ---------------------------------------------------------------------------------------------------

    def record_of(self, agent: str, number: int) -> DependencyRecord:
        """Return the full dependency record of a kept checkpoint.

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
        """Return the kept checkpoints of `agent`, ascending.

        Raises:
            NotFoundError: the agent has not joined.
        """
        return list(self._records.numbers[self._member(agent)])

    def validate(self) -> None:
        """Check every invariant; AssertionError if one does not hold."""
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
        """Return a hashable image; equal states have equal images."""
        return HistoryImage(
            tuple(image_of(self._records, ordinal, self._live.get(ordinal)) for ordinal, _ in self._members())
        )

    @classmethod
    def restore(cls, image: HistoryImage) -> Self:
        """Build a history from a frozen image, or from the content of a store: each kept checkpoint with its full record.

        Raises:
            ProtocolError: an agent's checkpoint numbers do not rise, or its counts fall.
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
