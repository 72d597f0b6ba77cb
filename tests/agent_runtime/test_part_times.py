"""The times of a host's part: those of the agent that recorded last there."""

from types import SimpleNamespace
from typing import Any

from snapline.agent_runtime.host.coordinator_messages import timed
from snapline.messages.host_messages import EpochReport, ReportedPack

REPORT = EpochReport(1, 1, ReportedPack("packs/x", 1, b""))


def captured(started_ns: int, capture_ns: int) -> Any:
    return SimpleNamespace(started_ns=started_ns, capture_ns=capture_ns)


def test_the_phases_of_the_last_agent_follow_each_other_to_the_end() -> None:
    captures = {"a": captured(110, 50), "b": captured(140, 30), "c": captured(150, 1)}
    found = timed(REPORT, captures, heard_ns=100, closed_ns=200, durable_ns=260)
    phases = (found.start_delay_ns, found.slowest_capture_ns, found.alignment_ns, found.store_ns)
    assert (found.slowest, phases) == ("b", (40, 30, 30, 60))
    assert sum(phases) == 160


def test_a_host_without_agents_still_says_how_long_it_waited_and_stored() -> None:
    found = timed(REPORT, {}, heard_ns=100, closed_ns=200, durable_ns=260)
    assert (found.slowest, found.start_delay_ns, found.alignment_ns, found.store_ns) == ("", 0, 100, 60)
