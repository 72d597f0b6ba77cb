"""G1 and G2 of the epoch-stamped protocol over random executions, and the faults that the same property must find.

The oracle knows unique message ids and how far each agent's history had come at its record. It asks no core what was in
transit.
"""

from collections import Counter
from random import Random

import pytest
from tests.protocols.epoch_driver import Cut, Epoch, SimulatedAgent, World

from snapline.errors import ProtocolError
from snapline.protocols.epoch_stamped import (
    AgentReport,
    Command,
    EpochStampedCore,
    MarkerReceived,
    MessageArrived,
    TurnBoundaryReached,
    WaitingMessage,
)
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans

AGENTS, TOKENS, STEPS = 3, 10, 500
EXECUTIONS, LONG_EXECUTIONS = 250, 20_000
MUTANT_EXECUTIONS = 250


def run(world_type: type[World], random: Random, *, steps: int = STEPS) -> World:
    """One execution, checked to its end."""
    world = world_type(random, agents=AGENTS, tokens=TOKENS)
    for _ in range(steps):
        world.step()
    world.settle()
    assert not world.alarms, f"the coordinator saw orphans: {world.alarms}"
    assert not world.open, f"epochs {list(world.open)} never end"
    for agent in world.agents.values():
        if agent.phase != "gone":
            assert agent.core.open_epochs() == (), f"{agent.name} keeps {agent.core.open_epochs()}"
    for epoch, cut in world.cuts.items():
        check_cut(world, epoch, cut)
    return world


def history(world: World, epoch: int, cut: Cut, name: str) -> tuple[list[int], set[int]]:
    """The ids that `name` had sent, in order, and consumed inside the cut, from its history alone."""
    agent = world.agents[name]
    if name in cut.gone:
        return agent.sent_ids, set(agent.consumed_ids)
    if name not in cut.members:
        return [], set()
    image = agent.images[epoch]
    return agent.sent_ids[: image.sent_count], set(agent.consumed_ids[: image.consumed_count])


def check_cut(world: World, epoch: int, cut: Cut) -> None:
    sent: dict[str, list[int]] = {}
    consumed: dict[str, set[int]] = {}
    for name in world.agents:
        sent[name], consumed[name] = history(world, epoch, cut, name)
    all_sent = {identity for identities in sent.values() for identity in identities}
    all_consumed = set().union(*consumed.values())
    assert all_consumed <= all_sent, f"G1, epoch {epoch}: orphans {sorted(all_consumed - all_sent)}"

    expected: dict[tuple[str, str], list[int]] = {}
    for name, identities in sent.items():
        for identity in identities:
            receiver = world.messages[identity][1]
            if identity not in all_consumed and receiver not in cut.gone:
                expected.setdefault((name, receiver), []).append(identity)
    recorded = {
        (sender, receiver): [int(message.payload) for message in messages]
        for receiver, record in cut.records.items()
        for sender, messages in record.in_transit.items()
    }
    assert recorded == expected, f"G2, epoch {epoch}: recorded {recorded}, in transit {expected}"
    check_tokens(world, epoch, cut, all_sent - all_consumed)
    check_numbers(cut)


def check_tokens(world: World, epoch: int, cut: Cut, in_transit: set[int]) -> None:
    """Tokens are neither made nor lost; those sent to an agent that is gone are dead letters."""
    images = [world.agents[name].images[epoch] for name in cut.members]
    total = sum(image.tokens + sum(parcel.tokens for parcel in image.outbox) for image in images)
    total += sum(world.agents[name].tokens for name in cut.gone)
    total += sum(world.messages[identity][2] for identity in in_transit if world.messages[identity][1] in cut.gone)
    for record in cut.records.values():
        for messages in record.in_transit.values():
            total += sum(world.messages[int(message.payload)][2] for message in messages)
    assert total == AGENTS * TOKENS, f"epoch {epoch}: {total} tokens"


def check_numbers(cut: Cut) -> None:
    """The reported numbers say the same as the channel states."""
    records = {name: DependencyRecord(record.sent, record.received) for name, record in cut.records.items()}
    assert orphans(records, gone=cut.gone) == []
    numbers = in_transit_numbers(records, gone=cut.gone)
    for receiver, record in cut.records.items():
        for sender, messages in record.in_transit.items():
            if sender in records:
                assert [message.number for message in messages] == list(numbers.pop((sender, receiver)))
    assert numbers == {}


def test_random_executions_have_neither_orphans_nor_wrong_channel_states() -> None:
    seen: Counter[str] = Counter()
    for seed in range(EXECUTIONS):
        try:
            world = run(World, Random(seed))
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        count(world, seen)
    # Against vacuity: the executions did contain what they are to test.
    assert seen["complete"] > EXECUTIONS
    assert seen["aborted"] > EXECUTIONS / 20
    assert seen["unborn with channel state"] > EXECUTIONS / 20
    assert seen["cuts after a leave"] > EXECUTIONS / 20
    assert seen["one image for several epochs"] > EXECUTIONS / 20
    assert seen["messages in several cuts"] > EXECUTIONS / 20


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_many_longer_executions_have_neither_orphans_nor_wrong_channel_states() -> None:
    for seed in range(LONG_EXECUTIONS):
        try:
            run(World, Random(f"long {seed}"), steps=2 * STEPS)
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"seed 'long {seed}': {error}") from error


def count(world: World, seen: Counter[str]) -> None:
    seen["complete"] += len(world.cuts)
    seen["aborted"] += world.begun - len(world.cuts)
    memberships: Counter[bytes] = Counter()
    for cut in world.cuts.values():
        seen["cuts after a leave"] += bool(cut.gone)
        for record in cut.records.values():
            seen["unborn with channel state"] += record.is_unborn and bool(record.in_transit)
            memberships.update(message.payload for messages in record.in_transit.values() for message in messages)
    seen["messages in several cuts"] += any(times > 1 for times in memberships.values())
    for agent in world.agents.values():
        positions = [(image.sent_count, image.consumed_count) for image in agent.images.values()]
        seen["one image for several epochs"] += len(set(positions)) < len(positions)


def test_one_seed_gives_one_execution() -> None:
    first, second = run(World, Random(7)), run(World, Random(7))
    assert (first.messages, first.cuts) == (second.messages, second.cuts)
    assert [agent.core.freeze() for agent in first.agents.values()] == [
        agent.core.freeze() for agent in second.agents.values()
    ]


# Faults. Each is one overridden decision of the core, the host or the coordinator.


class StampsIgnoredCore(EpochStampedCore):
    def _on_message_arrived(self, event: MessageArrived) -> list[Command]:
        return [] if event.stamp > self.recorded else super()._on_message_arrived(event)


class MailboxTakenAsStateCore(EpochStampedCore):
    def _on_turn_boundary_reached(self, event: TurnBoundaryReached) -> list[Command]:
        received = dict(event.received)
        for message in event.waiting:
            if message.stamp < self.owed:
                received[message.channel] = message.number
        waiting = tuple(message for message in event.waiting if message.stamp >= self.owed)
        return super()._on_turn_boundary_reached(TurnBoundaryReached(event.sent, received, waiting))


class OnlyNewestEpochRecordsCore(EpochStampedCore):
    def _on_message_arrived(self, event: MessageArrived) -> list[Command]:
        if event.stamp >= self.recorded or not self._open:
            return super()._on_message_arrived(event)
        newest = max(self._open)
        if event.stamp < newest:
            message = WaitingMessage(event.channel, event.number, event.stamp, event.payload)
            self._open[newest].record(message)
        return []


class OnlyKnownChannelsRecordCore(EpochStampedCore):
    def _on_message_arrived(self, event: MessageArrived) -> list[Command]:
        if all(event.channel not in open_epoch.received for open_epoch in self._open.values()):
            return self._owe(event.stamp)
        return super()._on_message_arrived(event)


class StampsIgnored(World):
    core_type = StampsIgnoredCore


class MailboxTakenAsState(World):
    core_type = MailboxTakenAsStateCore


class OnlyNewestEpochRecords(World):
    core_type = OnlyNewestEpochRecordsCore


class OnlyKnownChannelsRecord(World):
    core_type = OnlyKnownChannelsRecordCore


class StampedWithTheEpochOwed(World):
    def _stamp(self, agent: SimulatedAgent) -> int:
        return agent.core.owed


class NewAgentAtZero(World):
    def _create_core(self, name: str) -> EpochStampedCore:
        return self.core_type(name)


class UnbornNotWaitedFor(World):
    def _unchecked_receivers(self, epoch: Epoch) -> frozenset[str]:
        unborn = self.agents.keys() - epoch.members - epoch.records.keys()
        return epoch.gone | unborn


class LeaversNumbersForgotten(World):
    def _expected_reports(self, epoch: Epoch) -> dict[str, AgentReport]:
        reports = super()._expected_reports(epoch)
        return {name: report for name, report in reports.items() if name not in epoch.gone}


class LeaverGoesEarly(World):
    def _may_go(self, agent: SimulatedAgent) -> bool:
        return True


class OutboxCountedAsSent(World):
    def _record_agent(self, agent: SimulatedAgent) -> None:
        if agent.phase != "gone" and not agent.is_busy and agent.core.owed > agent.core.recorded:
            sent = dict(agent.sent)
            for parcel in agent.outbox:
                if parcel.receiver in self.agents:
                    sent[parcel.receiver] = sent.get(parcel.receiver, 0) + 1
            self._hand_in(agent, TurnBoundaryReached(sent, agent.received, tuple(agent.mailbox)))


class TurnsGoOnWhileOwed(World):
    def _start_turn(self) -> None:
        agent = self._pick()
        if agent.phase == "running" and not agent.is_busy:
            agent.is_busy = True
            agent.running_message = agent.mailbox.popleft() if agent.mailbox else None


@pytest.mark.parametrize(
    "fault",
    [
        StampsIgnored,
        StampedWithTheEpochOwed,
        MailboxTakenAsState,
        NewAgentAtZero,
        UnbornNotWaitedFor,
        OnlyNewestEpochRecords,
        OnlyKnownChannelsRecord,
        LeaversNumbersForgotten,
        LeaverGoesEarly,
        OutboxCountedAsSent,
        TurnsGoOnWhileOwed,
    ],
)
def test_the_property_finds(fault: type[World]) -> None:
    with pytest.raises((AssertionError, ProtocolError)):
        for seed in range(MUTANT_EXECUTIONS):
            run(fault, Random(seed))


class UncheckedCore(EpochStampedCore):
    """A core whose own checks are off, so that only the oracle can see a fault."""

    def _on_marker_received(self, event: MarkerReceived) -> list[Command]:
        return []

    def validate(self) -> None:
        return None


class MarkersLost(World):
    core_type = UncheckedCore


def test_markers_that_neither_close_nor_trigger_are_no_fault() -> None:
    """Word and stamps suffice; the marker only closes channels early and checks."""
    for seed in range(MUTANT_EXECUTIONS // 2):
        run(MarkersLost, Random(seed))


class UncheckedStampsIgnoredCore(StampsIgnoredCore, UncheckedCore):
    pass


class UncheckedStampsIgnored(World):
    core_type = UncheckedStampsIgnoredCore

    def _take_report(self, agent: SimulatedAgent, epoch_number: int) -> None:
        """A coordinator without balance: complete when every member has reported."""
        epoch = self.open.get(epoch_number)
        if epoch is not None:
            epoch.records[agent.name] = agent.core.record_of(epoch_number)
            if epoch.members <= epoch.records.keys():
                self.cuts[epoch_number] = Cut(epoch.members, epoch.gone, dict(epoch.records))
                self._end(epoch_number)


def test_the_oracle_alone_finds_orphans_when_every_check_of_ours_is_off() -> None:
    found: Counter[str] = Counter()
    for seed in range(MUTANT_EXECUTIONS // 2):
        try:
            run(UncheckedStampsIgnored, Random(seed))
        except AssertionError as error:
            found[str(error)[:2]] += 1
    assert found["G1"] > 0
