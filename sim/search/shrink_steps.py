"""Reduced scenarios, and choices limited to some streams, for the shrinker (`shrink.py`).

Times change in whole milliseconds.
"""

from collections.abc import Collection

import msgspec

from snapline.errors import UsageError
from snapline.sim.choices import Key, RandomChoices
from snapline.sim.faults.durations import duration_ns, format_duration
from snapline.sim.scenario import DelayPart, FaultPart, Scenario, format_scenario, parse_scenario

MS = 10**6
"""One millisecond in nanoseconds; times are reduced in whole milliseconds."""

TIMES = ("at", "lasts", "restart_after", "back_after", "every")
"""Fields of fault words that hold times or durations."""


class FreshChoices(RandomChoices):
    """Random choices of a seed in some streams, and benign ones in all others."""

    def __init__(self, seed: int, streams: Collection[str]) -> None:
        super().__init__(seed, is_recording=True)
        self._drawn = frozenset(streams)

    def pick(self, stream: str, key: Key, n: int) -> int:
        return super().pick(stream, key, n) if stream in self._drawn else 0


def duration_of(fault: FaultPart, field: str) -> int:
    """Return a field of a fault in nanoseconds; 0 if the fault has no such field or it is empty."""
    text = getattr(fault.word, field, "")
    return duration_ns(text) if isinstance(text, str) and text else 0


def is_valid(scenario: Scenario) -> bool:
    """Return whether the scenario could be read from a file."""
    try:
        parse_scenario(format_scenario(scenario), source="a candidate")
    except UsageError:
        return False
    return True


def in_fleet(scenario: Scenario, **fields: object) -> Scenario:
    return msgspec.structs.replace(scenario, fleet=msgspec.structs.replace(scenario.fleet, **fields))


def in_pattern(scenario: Scenario, **fields: object) -> Scenario:
    return in_fleet(scenario, pattern=msgspec.structs.replace(scenario.fleet.pattern, **fields))


def with_part(scenario: Scenario, part: str, **fields: object) -> Scenario:
    """Return the scenario with changed fields in a section such as "clients"."""
    return msgspec.structs.replace(scenario, **{part: msgspec.structs.replace(getattr(scenario, part), **fields)})


def with_less_work(scenario: Scenario, messages: int) -> Scenario:
    """Return the scenario with fewer messages, and with proportionally earlier checkpoints and faults."""
    most = max(1, scenario.fleet.pattern.messages)

    def earlier(time_ns: int) -> int:
        return max(1, time_ns * messages // (most * MS))

    every = format_duration(earlier(scenario.fleet.trigger.every_ns) * MS)
    reduced = in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, every=every))
    for index, fault in enumerate(scenario.fault):
        for field in TIMES:
            if duration_of(fault, field):
                reduced = with_fault_time(reduced, index, field, earlier(duration_of(fault, field)))
    return in_pattern(reduced, messages=messages)


def with_every_ms(scenario: Scenario, every_ms: int) -> Scenario:
    every = format_duration(every_ms * MS)
    return in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, every=every, jitter=0.0))


def with_rate(scenario: Scenario, rate_per_s: float) -> Scenario:
    return in_pattern(scenario, rate_per_s=rate_per_s)


def with_trigger_messages(scenario: Scenario, messages: int) -> Scenario:
    return in_fleet(scenario, trigger=msgspec.structs.replace(scenario.fleet.trigger, messages=messages))


def with_delays(scenario: Scenario, delay: DelayPart) -> Scenario:
    return msgspec.structs.replace(scenario, network=msgspec.structs.replace(scenario.network, delay=delay))


def with_until_ms(scenario: Scenario, until_ms: int) -> Scenario:
    until = format_duration(until_ms * 10**6)
    return msgspec.structs.replace(scenario, run=msgspec.structs.replace(scenario.run, until=until))


def with_fault_time(scenario: Scenario, index: int, field: str, time_ms: int) -> Scenario:
    part = scenario.fault[index]
    word = msgspec.structs.replace(part.word, **{field: format_duration(time_ms * 10**6)})
    fault = list(scenario.fault)
    fault[index] = msgspec.structs.replace(part, **{part.kind: word})
    return msgspec.structs.replace(scenario, fault=fault)
