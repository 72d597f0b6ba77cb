"""Faults put into the host core on purpose: each must be found by the seeded world within a bounded number of seeds.

A world that lets one of these pass would not notice the real thing either.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.coins import play

from snapline.agent_runtime.host import channel_ends
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import ChannelEnds, Outlets
from snapline.agent_runtime.host.entries import MessageEntry
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_state import AgentOutlet, LocalAgent
from snapline.agent_runtime.host.links import HostLinks
from snapline.agent_runtime.host.modes import coordinated
from snapline.agent_runtime.host.modes.coordinated import CoordinatedMode
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.plans import HostPlans, Membership
from snapline.agent_runtime.host.turn_ends import TurnEnds
from snapline.agent_runtime.host.turns import Turns
from snapline.channels import channel
from snapline.messages import host_messages as msg

SEEDS_MAX = 8
"""Tried from the first one on, or from where a mutant is known to be found soon."""

RARE_SEEDS_MAX = 1000

Patch = pytest.MonkeyPatch


def changed(patch: Patch, where: Any, name: str, make: Callable[[Any], Any]) -> None:
    patch.setattr(where, name, make(getattr(where, name)))


def record_now(mode: HostMode, agent: LocalAgent) -> None:
    assert isinstance(mode, CoordinatedMode)
    mode._record(agent)


# ---- the mutants ----------------------------------------------------------------------------------------------------


def sends_leave_after_the_record(patch: Patch) -> None:
    def make(leave: Any) -> Any:
        def late(self: Outlets, agent: LocalAgent, sends: Any) -> None:
            if agent.owes and not agent.is_failed:
                record_now(self._mode, agent)
            leave(self, agent, sends)

        return late

    changed(patch, Outlets, "leave", make)


def the_mailbox_is_not_recorded(patch: Patch) -> None:
    patch.setattr(CoordinatedMode, "_waiting_of", lambda self, agent: ())


def markers_leave_before_all_have_recorded(patch: Patch) -> None:
    def hasty(self: CoordinatedMode) -> None:
        for epoch in list(self.epochs.values()):
            if not epoch.markers_sent:
                self._send_markers(epoch)
            if not epoch.awaited and not epoch.is_stored and not epoch.unrecorded:
                self._close(epoch)

    patch.setattr(CoordinatedMode, "_check", hasty)


def a_part_closes_before_the_others_markers_have_come(patch: Patch) -> None:
    def hasty(self: CoordinatedMode) -> None:
        for epoch in list(self.epochs.values()):
            if not epoch.markers_sent and not epoch.unrecorded and not self._membership.reservations:
                self._send_markers(epoch)
                epoch.awaited.clear()
                self._close(epoch)

    patch.setattr(CoordinatedMode, "_check", hasty)


def markers_do_not_wait_for_reservations(patch: Patch) -> None:
    def hasty(self: CoordinatedMode) -> None:
        for epoch in list(self.epochs.values()):
            if not epoch.markers_sent and not epoch.unrecorded:
                self._send_markers(epoch)
            if epoch.markers_sent and not epoch.awaited and not epoch.is_stored:
                self._close(epoch)

    patch.setattr(CoordinatedMode, "_check", hasty)


def restored_numbers_are_off_by_one(patch: Patch) -> None:
    def make(restore: Any) -> Any:
        def off(self: HostPlans, agent: LocalAgent, checkpoint: Any) -> None:
            restore(self, agent, checkpoint)
            for outlet in agent.outlets.values():
                outlet.number += 1

        return off

    changed(patch, HostPlans, "_restore_channels", make)


def restored_mailboxes_are_empty(patch: Patch) -> None:
    def make(restore: Any) -> Any:
        def empty(self: HostPlans, agent: LocalAgent, checkpoint: Any) -> None:
            restore(self, agent, checkpoint)
            for entry in agent.mailbox:
                if isinstance(entry, MessageEntry):
                    entry.inlet.consumed += 1
            agent.mailbox = deque(entry for entry in agent.mailbox if not isinstance(entry, MessageEntry))

        return empty

    changed(patch, HostPlans, "_restore_channels", make)


def without(field: str) -> Callable[[Patch], None]:
    def mutant(patch: Patch) -> None:
        def make(control: Any) -> Any:
            def poorer(self: LocalAgent, now_ns: int) -> ev.Control:
                made: ev.Control = msgspec.structs.replace(control(self, now_ns), **{field: []})
                return made

            return poorer

        changed(patch, LocalAgent, "control", make)

    mutant.__name__ = f"{field}_is_missing_from_checkpoints"
    return mutant


def fired_timers_are_missing_from_checkpoints(patch: Patch) -> None:
    def make(control: Any) -> Any:
        def poorer(self: LocalAgent, now_ns: int) -> ev.Control:
            made: ev.Control = control(self, now_ns)
            poor: ev.Control = msgspec.structs.replace(made, timers=made.timers[: len(self.timers)])
            return poor

        return poorer

    changed(patch, LocalAgent, "control", make)


def messages_are_stamped_with_the_epoch_owed(patch: Patch) -> None:
    def make(depart: Any) -> Any:
        def ahead(self: Outlets, outlet: AgentOutlet, peer: Any, payload: bytes) -> None:
            protocol = outlet.owner.protocol
            recorded, protocol.recorded = protocol.recorded, protocol.owed
            try:
                depart(self, outlet, peer, payload)
            finally:
                protocol.recorded = max(recorded, protocol.recorded if protocol.recorded != protocol.owed else recorded)

        return ahead

    changed(patch, Outlets, "_depart", make)


def newer_stamps_do_not_wait_for_the_record(patch: Patch) -> None:
    patch.setattr(CoordinatedMode, "_show", lambda self, owner, inlet, stamp, payload: None)


def failed_turns_are_not_undone(patch: Patch) -> None:
    patch.setattr(Turns, "undo", lambda self, agent: None)


def crashed_agents_are_recorded(patch: Patch) -> None:
    def make(crash: Any) -> Any:
        def recorded(self: HostFailures, agent: LocalAgent, entry: Any, event: Any) -> None:
            crash(self, agent, entry, event)
            if agent.owes:
                record_now(self._mode, agent)

        return recorded

    changed(patch, HostFailures, "crash", make)


def a_crashed_agent_goes_on_without_the_message(patch: Patch) -> None:
    def make(failed: Any) -> Any:
        def lossy(self: TurnEnds, event: ev.TurnFailed) -> None:
            failed(self, event)
            agent = self._shared.agents.get(event.agent)
            if agent is not None and agent.is_failed and event.on_error == "recover":
                agent.is_failed = False
                self._mailboxes.consume(agent.mailbox.popleft())
                self._mailboxes.next_turn(agent)

        return lossy

    changed(patch, TurnEnds, "on_turn_failed", make)


def a_running_turn_does_not_delay_the_record(patch: Patch) -> None:
    def make(begin: Any) -> Any:
        def hasty(self: CoordinatedMode, epoch: int) -> None:
            begin(self, epoch)
            for agent in list(self._shared.agents.values()):
                if agent.is_busy and agent.owes:
                    self._record(agent)

        return hasty

    changed(patch, CoordinatedMode, "_begin", make)


def children_are_unborn_in_no_epoch(patch: Patch) -> None:
    def make(create: Any) -> Any:
        def born(self: CoordinatedMode, child: LocalAgent, reserved: msg.AgentsReserved) -> None:
            create(self, child, msgspec.structs.replace(reserved, open_epochs=()))

        return born

    changed(patch, CoordinatedMode, "create", make)


def what_comes_early_for_a_child_is_dropped(patch: Patch) -> None:
    patch.setattr(Membership, "keep_early", lambda self, inlet, mark, payload: False)


def leavers_go_at_once(patch: Patch) -> None:
    def make(retired: Any) -> Any:
        def hasty(self: Membership, event: msg.AgentRetired) -> None:
            retired(self, msgspec.structs.replace(event, open_epochs=()))

        return hasty

    changed(patch, Membership, "on_agent_retired", make)


def a_plan_keeps_the_queue_of_the_old_links(patch: Patch) -> None:
    def make(drop: Any) -> Any:
        def keeping(self: HostLinks) -> None:
            peers = dict(self._shared.peers)
            drop(self)
            self._shared.peers.update(peers)

        return keeping

    changed(patch, HostLinks, "drop", make)


def parked_messages_are_overtaken(patch: Patch) -> None:
    def make(leave: Any) -> Any:
        def overtaking(self: Outlets, agent: LocalAgent, sends: Any) -> None:
            for receiver, payload in sends:
                outlet = agent.outlets.get(receiver)
                if outlet is not None and outlet.parked:
                    outlet.parked.appendleft(payload)
                    agent.parked += 1
                else:
                    leave(self, agent, [(receiver, payload)])

        return overtaking

    changed(patch, Outlets, "leave", make)


def held_sends_leave_before_the_reservation(patch: Patch) -> None:
    def hasty(self: Membership, agent: LocalAgent, event: ev.TurnEnded) -> None:
        agent.spawns = event.spawns
        self.reserve(agent)
        self._outlets.leave(agent, event.sends)

    patch.setattr(Membership, "hold", hasty)


def nobody_is_behind_a_new_link(patch: Patch) -> None:
    patch.setattr(CoordinatedMode, "is_behind", lambda self, agent, peer: False)


def a_link_that_is_being_opened_has_no_marker(patch: Patch) -> None:
    patch.setattr(coordinated, "_is_marked", lambda peer, epoch: peer.floor is not None and epoch > peer.floor)


def epochs_before_a_link_wait_for_its_marker(patch: Patch) -> None:
    patch.setattr(CoordinatedMode, "linked", lambda self, peer: None)


def who_is_held_stays_held(patch: Patch) -> None:
    patch.setattr(ChannelEnds, "release", lambda self, agent: self.held.pop(agent))


COMMON = [
    sends_leave_after_the_record,
    the_mailbox_is_not_recorded,
    markers_leave_before_all_have_recorded,
    a_part_closes_before_the_others_markers_have_come,
    restored_numbers_are_off_by_one,
    restored_mailboxes_are_empty,
    without("outbox"),
    without("timers"),
    without("spawns"),
    without("dead_letters"),
    fired_timers_are_missing_from_checkpoints,
    messages_are_stamped_with_the_epoch_owed,
    newer_stamps_do_not_wait_for_the_record,
    failed_turns_are_not_undone,
    a_running_turn_does_not_delay_the_record,
    leavers_go_at_once,
    parked_messages_are_overtaken,
    nobody_is_behind_a_new_link,
    a_link_that_is_being_opened_has_no_marker,
    epochs_before_a_link_wait_for_its_marker,
    who_is_held_stays_held,
]
RARE = [
    markers_do_not_wait_for_reservations,
    crashed_agents_are_recorded,
    a_crashed_agent_goes_on_without_the_message,
    children_are_unborn_in_no_epoch,
    what_comes_early_for_a_child_is_dropped,
    a_plan_keeps_the_queue_of_the_old_links,
    held_sends_leave_before_the_reservation,
]
"""These need a creation, a crash and an epoch at one moment. Each has a test of its own beside `test_host_core_*`."""

NEAR: dict[Callable[[Patch], None], int] = {
    a_link_that_is_being_opened_has_no_marker: 5,
    epochs_before_a_link_wait_for_its_marker: 6,
    who_is_held_stays_held: 2,
}
"""Seeds that find these; all others are found by one of the first three."""

SEEDS = (0, 1, 2, *dict.fromkeys(seed for seed in NEAR.values() if seed > 2))


def narrow(patch: Patch) -> None:
    """Little credit: messages are parked, and markers come in between."""
    for module in (channel, channel_ends):
        patch.setattr(module, "CHANNEL_CREDIT", 4)


def found_by(seeds: Iterable[int]) -> int | None:
    """The first seed that notices."""
    for seed in seeds:
        try:
            play(seed, steps=1200)
        except Exception:
            return seed
    return None


SLOW = (epochs_before_a_link_wait_for_its_marker, who_is_held_stays_held)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW), id=each.__name__) for each in COMMON],
)
def test_a_mutant_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    narrow(monkeypatch)
    mutant(monkeypatch)
    first = NEAR.get(mutant, 0)
    assert found_by(range(first, first + SEEDS_MAX)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", RARE, ids=lambda mutant: mutant.__name__)
def test_a_rare_mutant_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    narrow(monkeypatch)
    mutant(monkeypatch)
    assert found_by(range(RARE_SEEDS_MAX)) is not None


def test_without_a_mutant_the_same_seeds_pass(monkeypatch: Patch) -> None:
    narrow(monkeypatch)
    assert found_by(SEEDS) is None
