"""Faults put into what a host says of its links: for each, a test of `test_host_core_epochs.py` fails."""

from collections.abc import Callable

import pytest
from tests.agent_runtime import test_host_core_epochs as rules
from tests.agent_runtime.driving import Driver

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_state import Peer
from snapline.agent_runtime.host.links import HostLinks
from snapline.messages import host_messages as msg

Patch = pytest.MonkeyPatch


def every_attempt_counts_anew(patch: Patch) -> None:
    closed = HostLinks.on_stream_closed

    def mutant(self: HostLinks, event: ev.StreamClosed) -> None:
        closed(self, event)
        for peer in self._shared.peers.values():
            peer.broken_ns = self._shared.now

    patch.setattr(HostLinks, "on_stream_closed", mutant)


def a_link_that_never_stood_is_not_missed(patch: Patch) -> None:
    make = HostLinks._make

    def mutant(self: HostLinks, entry: msg.RosterEntry) -> Peer:
        peer = make(self, entry)
        peer.broken_ns = None
        return peer

    patch.setattr(HostLinks, "_make", mutant)


def nothing_ever_waits(patch: Patch) -> None:
    patch.setattr(Peer, "is_waited", False)


def something_always_waits(patch: Patch) -> None:
    patch.setattr(Peer, "is_waited", True)


def markers_do_not_wait(patch: Patch) -> None:
    patch.setattr(Peer, "is_waited", property(lambda self: any(x.queue for x in self.outlets.values())))


SAYS = rules.test_heartbeats_say_which_hosts_of_the_plan_are_not_reached_since_when_and_what_waits
MUTANTS = [
    (every_attempt_counts_anew, SAYS),
    (a_link_that_never_stood_is_not_missed, SAYS),
    (nothing_ever_waits, SAYS),
    (something_always_waits, SAYS),
    (markers_do_not_wait, rules.test_a_marker_waits_for_a_link_too),
]


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_mutant_is_found(
    mutant: Callable[[Patch], None],
    rule: Callable[[Callable[..., Driver]], None],
    monkeypatch: Patch,
    drive: Callable[..., Driver],
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        rule(drive)
