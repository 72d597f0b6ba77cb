"""Recordings to test reports with, made by a small random executor with rollbacks, from a list of operations."""

import math
import random
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from snapline.recovery.trace import CheckpointTaken, Event, MessageReceived, MessageSent, Recovery
from snapline.sim.result import ExecutedFault, Result, Violation
from snapline.sim.world.recording import EpochSpan, HostSpan, Recording

EVIL = "<script>alert('&\"1')</script>{{config}}"
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("a", "b c", "d<e>&\"'", "ü", "]]>")

Operation = tuple[str, int, int, int]
"""What, two numbers to choose by, and nanoseconds that pass before."""

WORDS = (
    "send",
    "send",
    "send",
    "receive",
    "receive",
    "checkpoint",
    "forced",
    "epoch",
    "loose",
    "aborted",
    "recover",
    "crash",
)

operations = st.lists(
    st.tuples(st.sampled_from(WORDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3_000_000)), max_size=60
)

few = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Fleet:
    """Agents with channels, coordinated cuts, and recoveries to the last of them.

    A "loose" epoch is complete with whatever checkpoints there are: its cut may have orphans.
    """

    def __init__(self, agents: int = len(NAMES)) -> None:
        self.recording = Recording()
        self.agents = [NAMES[index] if index < len(NAMES) else f"agent-{index}" for index in range(agents)]
        self.recording.agents = self.agents[:-1]  # the last one comes later
        self.recording.placed = {agent: f"h{index % 2 + 1}" for index, agent in enumerate(self.agents[:-1])}
        self.recording.hosts = [HostSpan("h1", 0), HostSpan("h2", 0)]
        self.now_ns = 0
        self.sent = 0
        self.plan = 0
        self.waiting: list[tuple[str, str]] = []
        self.numbers = dict.fromkeys(self.agents, 0)
        self.line: tuple[dict[str, int], list[tuple[str, str]]] = (dict(self.numbers), [])

    def run(self, steps: list[Operation]) -> Recording:
        for what, one, other, passed_ns in steps:
            self.now_ns += passed_ns
            getattr(self, what)(one, other)
        return self.recording

    def add(self, event: Event | Recovery) -> None:
        self.recording.add(self.now_ns, event)

    def send(self, one: int, other: int) -> None:
        sender, receiver = self.agents[one % len(self.agents)], self.agents[other % len(self.agents)]
        self.sent += 1
        message = f"{sender}/{self.plan}>{receiver}:{self.sent}"
        self.add(MessageSent(sender, message, receiver))
        self.waiting.append((message, receiver))

    def receive(self, one: int, other: int) -> None:
        if self.waiting:
            message, receiver = self.waiting.pop(one % len(self.waiting))
            self.add(MessageReceived(receiver, message))

    def checkpoint(self, one: int, other: int) -> None:
        agent = self.agents[one % len(self.agents)]
        self.numbers[agent] += 1
        self.add(CheckpointTaken(agent, self.numbers[agent], "forced" if other < 0 else "basic"))

    def forced(self, one: int, other: int) -> None:
        self.checkpoint(one, -1)

    def epoch(self, one: int, other: int) -> None:
        for index in range(len(self.agents)):
            self.checkpoint(index, 0)
        self.line = (dict(self.numbers), list(self.waiting))
        self._end("complete", dict(self.numbers))

    def loose(self, one: int, other: int) -> None:
        self._end("complete", dict(self.numbers))

    def aborted(self, one: int, other: int) -> None:
        self._end("aborted", {})

    def _end(self, outcome: Any, cut: dict[str, int]) -> None:
        number = len(self.recording.epochs) + 1
        self.now_ns += 1  # a recovery never shares its time
        self.recording.epochs[number] = EpochSpan(number, self.plan, self.now_ns, self.now_ns + 1, outcome, cut)
        self.now_ns += 2

    def recover(self, one: int, other: int) -> None:
        numbers, waiting = self.line
        self.plan += 1
        self.add(Recovery(dict(numbers)))
        self.numbers, self.waiting = dict(numbers), list(waiting)

    def crash(self, one: int, other: int) -> None:
        self.recording.hosts[-1 - one % 2].until_ns = self.now_ns
        self.recording.hosts.append(HostSpan(self.recording.hosts[-1 - one % 2].host, self.now_ns + 5))
        self.now_ns += 10


def random_steps(seed: int, length: int) -> list[Operation]:
    source = random.Random(seed)
    return [
        (source.choice(WORDS), source.randrange(10), source.randrange(10), source.randrange(2_000_000))
        for _ in range(length)
    ]


def busy_steps(seed: int, length: int) -> list[Operation]:
    """Few epochs among many messages."""
    source = random.Random(seed)
    words = ["send", "receive"] * 40 + ["epoch", "checkpoint"]
    return [(source.choice(words), source.randrange(10), source.randrange(10), 1_000_000) for _ in range(length)]


def result_of(recording: Recording, **fields: Any) -> Result:
    end_ns = recording.events[-1].t_ns if recording.events else 0
    found: dict[str, Any] = {"name": "cut", "seed": 7, "verdict": "pass", "virtual_ns": end_ns + 5} | fields
    return Result(**found)


def evil_result(end_ns: int) -> Result:
    """Every text of a result is hostile."""
    return Result(
        name=EVIL,
        seed=7,
        verdict="violation",
        violations=[Violation(EVIL, EVIL, end_ns, EVIL), Violation("orphans", "G1", end_ns, "a\x1b[31mb")],
        pending=[EVIL],
        error=f"{EVIL}\n\tline two",
        trace_hash=EVIL,
        virtual_ns=end_ns,
        probes={EVIL: 3, "epoch complete": 1},
        metrics={EVIL: 1.5, "epochs": 3.0, "unknown": math.nan},
        faults=[ExecutedFault(EVIL, EVIL, 0, end_ns), ExecutedFault("crash", EVIL, end_ns // 2)],
    )


def drawn_states(svg: str) -> list[tuple[str, str]]:
    """What the picture says: message and state, from its attributes."""
    found = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "data-message" in element.attrib:
            found.append((element.attrib["data-message"], element.attrib["data-state"]))
    return found
