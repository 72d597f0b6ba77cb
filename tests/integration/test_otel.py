"""Requests, epochs and recoveries of a fleet of real processes, as a collector of OpenTelemetry sees them (`--otel`)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.processes import LIMIT_S
from tests.integration.running import LOOK_S, running

import snapline

trace = pytest.importorskip("opentelemetry.trace", reason="needs OpenTelemetry: pip install 'snapline[otel]'")
pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from tests.integration.fleets.couriers import GATED, LIBRARY, STOPS, Parcel
from tests.kit.collector import Collector, Told, collecting

pytestmark = pytest.mark.timeout(120)


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"in vain: {what}") from None


def caller(number: int) -> object:
    """A span of a program outside, as its own library would have made it."""
    context = trace.SpanContext(0xA0 + number, 0xB0 + number, False, trace.TraceFlags(1))
    return trace.NonRecordingSpan(context)


def trace_of(number: int) -> str:
    return f"{0xA0 + number:032x}"


def turns_of(collector: Collector, number: int) -> dict[str, list[Told]]:
    """By agent."""
    found: dict[str, list[Told]] = {}
    for span in collector.of(trace_of(number)):
        if span.name == "turn Parcel":
            found.setdefault(str(span.attributes["snapline.agent"]), []).append(span)
    return found


def check_request(collector: Collector, number: int) -> None:
    """Each turn once, each below the one that sent its message, and the whole below the caller's span."""
    turns = turns_of(collector, number)
    assert sorted(turns) == sorted(f"stop-{stop}" for stop in range(STOPS)), sorted(turns)
    parent = f"{0xB0 + number:016x}"
    for stop in range(STOPS):
        (turn,) = turns[f"stop-{stop}"]
        assert turn.parent == parent, (stop, turn)
        assert not turn.is_error
        parent = turn.span
    assert len({span.process for of in turns.values() for span in of}) == 3, "on several hosts"
    (steps,) = [{x.name for x in collector.of(trace_of(number)) if x.parent == turns[f"stop-{GATED}"][0].span}]
    assert {"step weigh", "step gate", "turn Parcel"} == steps
    (looked,) = [x for x in collector.of(trace_of(number)) if x.name == "look up"]
    assert looked.parent == turns[f"stop-{LIBRARY}"][0].span
    (delivered,) = [x for x in collector.of(trace_of(number)) if x.name == "effect deliver"]
    assert delivered.parent == turns[f"stop-{STOPS - 1}"][0].span
    known = {x.span for x in collector.of(trace_of(number))} | {f"{0xB0 + number:016x}"}
    assert all(x.parent in known for x in collector.of(trace_of(number))), "no span hangs in the air"


async def test_a_request_is_one_trace_through_ten_agents_whose_host_is_killed(data_dir: Path) -> None:
    """The first parcel stands in a durable turn and the second in its agent's mailbox when their host is killed."""
    gate = data_dir.with_name("gate")
    with collecting() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        arguments = {"gate": str(gate), "parcels": "3"}
        async with running(
            data_dir, "couriers:fleet", arguments, log=("--otel", "0"), environment=environment
        ) as fleet:
            await fleet.until(lambda now: now.phase == "running")
            async with await snapline.Client.connect(fleet.local.address) as client:
                for number in range(2):
                    with trace.use_span(caller(number)):
                        await client.send("stop-0", Parcel(f"p{number}", 0), timeout_s=LIMIT_S)
                await client.send("stop-0", Parcel("nobody follows it", 0), timeout_s=LIMIT_S)
            before = f"stop-{GATED - 1}"
            await until(lambda: all(before in turns_of(collector, x) for x in range(2)), "both stand before the gate")
            await until(lambda: collector.named("step weigh"), "the first one is within its turn")
            epoch = (await fleet.client.create_snapshot()).epoch
            hosts = {"h1", "h2", "h3"}
            await until(lambda: hosts <= {x.process for x in parts_of(collector, epoch)}, "all hosts have told of it")
            (place,) = (await fleet.client.locate([f"stop-{GATED}"])).agents
            await fleet.recovered_from(place.host)
            gate.touch()
            await fleet.end_by_hand()
    for number in range(2):
        check_request(collector, number)
        (turn,) = turns_of(collector, number)[f"stop-{GATED}"]
        assert turn.attributes["snapline.replayed"] is True and turn.attributes["snapline.incarnation"] == 2
        (first,) = turns_of(collector, number)["stop-0"]
        assert "snapline.replayed" not in first.attributes and first.attributes["snapline.number"] == number + 1
    assert len(collector.named("turn Parcel")) == 2 * STOPS, "the third request is in nobody's trace"
    check_epoch(collector, epoch)
    check_recovery(collector, epoch)


def parts_of(collector: Collector, epoch: int) -> list[Told]:
    return [x for x in collector.named("host.checkpoint") if x.attributes["snapline.epoch"] == epoch]


def check_epoch(collector: Collector, epoch: int) -> None:
    """One trace of the coordinator's and all hosts' spans."""
    (whole,) = [x for x in collector.named("checkpoint") if x.attributes["snapline.epoch"] == epoch]
    assert (whole.process, whole.parent, whole.is_error) == ("c1", "", False)
    assert whole.attributes["snapline.protocol"] == "chandy-lamport" and whole.attributes["snapline.trigger"]
    parts = parts_of(collector, epoch)
    assert sorted(x.process for x in parts) == ["h1", "h2", "h3"]
    assert {(x.trace, x.parent) for x in parts} == {(whole.trace, whole.span)}
    assert all(x.events == ["recorded", "channels closed", "stored"] for x in parts)
    below = {x.name: x for x in collector.of(whole.trace)}
    assert set(below) == {"checkpoint", "host.checkpoint", "agent.checkpoint", "checkpoint.commit"}
    assert below["checkpoint.commit"].parent == whole.span
    assert below["agent.checkpoint"].parent in {x.span for x in parts}


def check_recovery(collector: Collector, epoch: int) -> None:
    """It is linked to the checkpoint that it restored, and every host has told how it loaded."""
    (recovery,) = collector.named("recovery")
    (whole,) = [x for x in collector.named("checkpoint") if x.attributes["snapline.epoch"] == epoch]
    assert recovery.links == [(whole.trace, whole.span)] and recovery.attributes["snapline.line_epoch"] == epoch
    assert recovery.process == "c1" and recovery.attributes["snapline.lost_hosts"]
    parts = collector.of(recovery.trace)
    assert sorted(x.name for x in parts if x.process == "c1") == ["recovery", "recovery.load", "recovery.plan"]
    assert sorted(x.process for x in parts if x.name == "host.recovery") == ["h1", "h2", "h3"]
    assert all(x.parent == recovery.span for x in parts if x is not recovery)
