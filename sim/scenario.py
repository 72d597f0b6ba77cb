"""A scenario: which fleet runs, on what network and store, which faults happen, and when it must be well again.

One TOML file drives simulation and real processes. It is read into frozen structs, every key with a default, unknown keys refused. `format_scenario` writes what
`parse_scenario` reads: sections with every key, so that a later change of a default does not change an old file, faults with what they say.

Two kinds of checks: types and allowed values (msgspec, with its paths made readable), then what needs more than one key:
names of nodes, times, keys that exclude each other. Whether the faults are within the budget is `faults.check_budget`'s.
"""

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from snapline.errors import UsageError
from snapline.protocols.names import PROTOCOLS, is_autonomous
from snapline.sim.faults.durations import Duration, OptionalDuration, duration_ns, format_duration
from snapline.sim.faults.points import FAILPOINTS, REAL_FAILPOINT_PREFIXES, REAL_FAILPOINTS, WORLD_FAILPOINTS
from snapline.sim.faults.words import (
    REFUSED_WORDS,
    CaptureFault,
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    HangFault,
    HoldFault,
    LossFault,
    MembershipFault,
    PartitionFault,
    PauseFault,
    ResetFault,
    SlowFault,
    SwizzleFault,
    Word,
)
from snapline.sim.toml_text import format_toml, readable, shown
from snapline.sim.world.limits import LIMITS
from snapline.storage.retention.retention_policy import parse_policy

__all__ = [
    "PATTERN_NAMES",
    "SCHEMA",
    "WORDS",
    "DelayPart",
    "FaultPart",
    "FleetPart",
    "LivenessPart",
    "NetworkPart",
    "PatternPart",
    "RunPart",
    "Scenario",
    "StorePart",
    "SwarmPart",
    "TriggerPart",
    "check_scenario",
    "coordinator_names",
    "duration_ns",
    "format_duration",
    "format_scenario",
    "host_names",
    "joining_hosts",
    "parse_scenario",
]

SCHEMA = 1

PATTERN_NAMES = (
    "ring",
    "pipeline",
    "star",
    "tree",
    "random",
    "clusters",
    "all-to-all",
    "grid",
    "request-reply",
    "skewed",
    "cyclic",
    "bursts",
    "bank",
    "domino",
    "failing",
    "spawning",
    "stepping",
    "crashing",
    "astray",
    "memory",
    "orders",
    *("planning", "paying", "returning", "booking", "booking-until"),
)
"""Patterns that `draw` draws from."""

PATTERNS_KNOWN = (*PATTERN_NAMES, "killing", "pagerank", "bank-example")

HOSTS_MAX = 1000
"""Names are listed, and every pair of hosts has a link: a typing error must not make a billion of them."""
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
PerMille = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Coordinators = Literal[1, 3, 5]
HostCount = Annotated[int, msgspec.Meta(ge=1, le=HOSTS_MAX)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class DelayPart(Part, frozen=True, kw_only=True):
    least: Duration = "1ms"
    jitter: Duration = "4ms"

    @property
    def least_ns(self) -> int:
        return duration_ns(self.least)

    @property
    def jitter_ns(self) -> int:
        return duration_ns(self.jitter)


class PatternPart(Part, frozen=True, kw_only=True):
    """Traffic pattern. `messages`: approximate total, 0 for ever. `rate_per_s`: 0 is as fast as it goes."""

    name: str = "bank"
    messages: Count = 400
    payload_bytes: Count = 16
    rate_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class TriggerPart(Part, frozen=True, kw_only=True):
    """Trigger of checkpoints: each `every`, give or take the part `jitter`, or after `messages`."""

    kind: Literal["period", "messages", "adaptive", "none"] = "period"
    every: Duration = "500ms"
    jitter: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    messages: AtLeastOne = 50

    @property
    def every_ns(self) -> int:
        return duration_ns(self.every)


class FleetPart(Part, frozen=True, kw_only=True):
    """Fleet to run. `module`: "my_module:fleet", the user's own fleet instead of a pattern, made with `arguments`.

    `invariant`, `at_end`: "my_tests:no_coin_is_lost", called with every complete cut of the user's fleet, and with its states at rest.
    `log_bytes_max`, `epoch_timeout`: of a pattern's fleet; 0 and "" are a fleet's defaults. `is_varied`: the
    user's fleet runs under this protocol and trigger instead of its own, until nothing moves any more.
    """

    agents: AtLeastOne = 5
    hosts: HostCount = 2
    coordinators: Coordinators = 1
    protocol: str = "chandy-lamport"
    pattern: PatternPart = PatternPart()
    trigger: TriggerPart = TriggerPart()
    log_bytes_max: Count = 0
    epoch_timeout: OptionalDuration = ""
    module: str = ""
    arguments: dict[str, str] = {}
    invariant: str = ""
    at_end: str = ""
    is_varied: bool = False


class NetworkPart(Part, frozen=True, kw_only=True):
    """`paths`: from one node to another, "c1>h2", where it takes longer, or shorter, than elsewhere; for the whole run."""

    delay: DelayPart = DelayPart()
    paths: dict[str, DelayPart] = {}

    def delay_of(self, sender: str, receiver: str) -> DelayPart:
        return self.paths.get(f"{sender}>{receiver}", self.delay) if self.paths else self.delay


class StorePart(Part, frozen=True, kw_only=True):
    delay: DelayPart = DelayPart(least="1ms", jitter="2ms")


class LivenessPart(Part, frozen=True, kw_only=True):
    """`heal`: when everything is made whole; "" is right after the last fault. `within`: until when all must be done."""

    heal: OptionalDuration = ""
    within: Duration = "30s"

    @property
    def heal_ns(self) -> int:
        return duration_ns(self.heal)

    @property
    def within_ns(self) -> int:
        return duration_ns(self.within)


class ClientsPart(Part, frozen=True, kw_only=True):
    """Clients of the fleet: `count` clients with `inputs` each, `pause` between two requests on average. `inputs_from`:
    "module:name" or a file, from which all of them take their inputs, instead of a pattern's. `asks`: they wait for some of the answers.
    `is_settling`: an operator retries dead letters, and drops some."""

    count: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    inputs: Count = 20
    inputs_from: str = ""
    pause: Duration = "20ms"
    asks: bool = True
    is_settling: bool = False

    @property
    def pause_ns(self) -> int:
        return duration_ns(self.pause)


class OutputsPart(Part, frozen=True, kw_only=True):
    """Outputs of agents: one turn in `one_in` emits; 0: none. `is_watched`: a consumer reads them as they come, so epochs begin for
    them."""

    one_in: Count = 0
    is_watched: bool = False


class StepsPart(Part, frozen=True, kw_only=True):
    """Rates per thousand of a user's stub calls, until all is healed, that are late, never answered, or fail, done or not."""

    late_per_mille: PerMille = 0
    lost_per_mille: PerMille = 0
    failed_per_mille: PerMille = 0


class RestoresPart(Part, frozen=True, kw_only=True):
    """Number of restores of the fleet from a kept epoch; one in `drops_one_in` drops inputs, 0: none."""

    times: Count = 0
    drops_one_in: Count = 0


class RunPart(Part, frozen=True, kw_only=True):
    """Settings of a run. `until`: faults end by then. `turns_in_a_row`: turns a host runs before any other work.

    `retention`: what is kept beyond `keep_epochs`, as of the coordinator: "last=3,hourly=2,daily=0". `snapshots_every`: an operator requests a
    snapshot that often; `moves`: times an operator drains a host, or rebalances agents. `faults_from`: origin of fault times. `turns`: for a fleet
    whose end is unknown: it goes on until that many were taken, or it is at rest, or for some seconds; 0 is at once.
    """

    until: Duration = "10s"
    faults_from: Literal["running", "start"] = "running"
    events_max: AtLeastOne = 5_000_000
    keep_epochs: AtLeastOne = 3
    rejoin_grace: Duration = "1s"
    retention: str = ""
    snapshots_every: OptionalDuration = ""
    turns_in_a_row: AtLeastOne = 64
    turns: Count = 0
    moves: Count = 0

    @property
    def until_ns(self) -> int:
        return duration_ns(self.until)

    @property
    def snapshots_every_ns(self) -> int:
        return duration_ns(self.snapshots_every)

    @property
    def rejoin_grace_ns(self) -> int:
        return duration_ns(self.rejoin_grace)


class FaultPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one word is set."""

    delay: DelayFault | None = None
    slow: SlowFault | None = None
    loss: LossFault | None = None
    reset: ResetFault | None = None
    hold: HoldFault | None = None
    clog: ClogFault | None = None
    swizzle: SwizzleFault | None = None
    partition: PartitionFault | None = None
    crash: CrashFault | None = None
    capture: CaptureFault | None = None
    pause: PauseFault | None = None
    hang: HangFault | None = None
    disk: DiskFault | None = None
    clock: ClockFault | None = None
    coordinator: CoordinatorFault | None = None
    membership: MembershipFault | None = None

    @property
    def word(self) -> Word:
        """The one that is set."""
        return next(word for _, word in self.words())

    @property
    def kind(self) -> str:
        """The word itself, such as "crash"."""
        return next(name for name, _ in self.words())

    def words(self) -> Iterator[tuple[str, Word]]:
        for name in self.__struct_fields__:
            word = getattr(self, name)
            if word is not None:
                yield name, word


WORDS = FaultPart.__struct_fields__


class SwarmPart(Part, frozen=True, kw_only=True):
    """Choices that a swarm may draw; an empty list is everything.

    Attributes:
        faults: words, such as "crash". always: words of which each run has one at least, in the midst of the work.
        fleet, network, limits, clients, outputs, steps and restores (with moves): whether these are drawn, or stay as the template says.
    """

    faults: list[str] = []
    always: list[str] = []
    faults_max: Annotated[int, msgspec.Meta(ge=0, le=64)] = 4
    protocols: list[str] = []
    patterns: list[str] = []
    agents_max: Annotated[int, msgspec.Meta(ge=2)] = 8
    hosts_max: HostCount = 5
    coordinators_max: Coordinators = 3
    fleet: bool = True
    network: bool = True
    limits: bool = True
    clients: bool = True
    outputs: bool = True
    steps: bool = True
    restores: bool = True


class Scenario(Part, frozen=True, kw_only=True):
    """One situation to run. `budget`: "beyond" checks safety alone. `limits`: of the product, by name (`limits.py`)."""

    schema: Literal[1] = 1
    name: str = "scenario"
    budget: Literal["within", "beyond"] = "within"
    fleet: FleetPart = FleetPart()
    network: NetworkPart = NetworkPart()
    store: StorePart = StorePart()
    clients: ClientsPart = ClientsPart()
    outputs: OutputsPart = OutputsPart()
    steps: StepsPart = StepsPart()
    restores: RestoresPart = RestoresPart()
    fault: list[FaultPart] = []
    liveness: LivenessPart = LivenessPart()
    run: RunPart = RunPart()
    limits: dict[str, AtLeastOne] = {}
    swarm: SwarmPart | None = None


def reads_outputs(scenario: Scenario) -> bool:
    """Return whether a consumer reads outputs: patterns emit where the scenario says so, a user's fleet whenever it likes."""
    return bool(scenario.outputs.one_in or scenario.fleet.module)


def host_names(scenario: Scenario) -> tuple[str, ...]:
    """Return all possible hosts, those that join later at the end."""
    return tuple(f"h{number + 1}" for number in range(scenario.fleet.hosts + len(_joins(scenario))))


def joining_hosts(scenario: Scenario) -> tuple[str, ...]:
    """Hosts that are not there at the start."""
    return host_names(scenario)[scenario.fleet.hosts :]


def coordinator_names(scenario: Scenario) -> tuple[str, ...]:
    return tuple(f"c{number + 1}" for number in range(scenario.fleet.coordinators))


def _joins(scenario: Scenario) -> list[MembershipFault]:
    words = [fault.membership for fault in scenario.fault if fault.membership]
    return [word for word in words if word.kind == "join"]


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Read TOML; `source` is the file's name, for errors.

    Raises:
        UsageError: names file and key, and what is allowed.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: is not TOML: {error}") from error
    _refuse_early(raw, source)
    try:
        scenario = msgspec.convert(raw, Scenario)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {readable(str(error), raw, Scenario)}") from error
    check_scenario(scenario, source=source)
    return scenario


def check_scenario(scenario: Scenario, *, source: str) -> None:
    """Check what types cannot say.

    Raises:
        UsageError: the first problem.
    """
    for problem in _problems(scenario):
        raise UsageError(f"{source}: {problem}")


def format_scenario(scenario: Scenario) -> str:
    """Return TOML that parses to the same."""
    return format_toml(msgspec.to_builtins(scenario))


def _refuse_early(raw: Mapping[str, object], source: str) -> None:
    """Reject what would otherwise only be an unknown key."""
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"{source}: schema is {shown(raw['schema'])}: this snapline reads schema {SCHEMA}")
    faults = raw.get("fault")
    for index, fault in enumerate(faults if isinstance(faults, list) else []):
        for word in fault if isinstance(fault, dict) else ():
            if word in REFUSED_WORDS:
                raise UsageError(f"{source}: fault[{index}].{word} cannot be: {REFUSED_WORDS[word]}")


def _problems(scenario: Scenario) -> Iterator[str]:
    """Sentences, each beginning with the key."""
    yield from _part_problems(scenario)
    for index, fault in enumerate(scenario.fault):
        path = f"fault[{index}]"
        names = [name for name, _ in fault.words()]
        if len(names) == 1:
            for problem in _word_problems(scenario, fault.word):
                yield f"{path}.{names[0]}{problem}"
        else:
            said = f"has the words {' and '.join(names)}" if names else "has no word"
            yield f"{path} {said}: each [[fault]] has exactly one of {', '.join(WORDS)}"


def _part_problems(scenario: Scenario) -> Iterator[str]:
    fleet = scenario.fleet
    yield from _unknown("fleet.protocol", [fleet.protocol], PROTOCOLS)
    if not fleet.module:
        yield from _unknown("fleet.pattern.name", [fleet.pattern.name], PATTERNS_KNOWN)
        for key, name in (("invariant", fleet.invariant), ("at_end", fleet.at_end)):
            if name:
                yield f"fleet.{key} is for a fleet of your own, fleet.module: built-in workloads have their own invariants"
    is_drawn = scenario.swarm is not None and scenario.swarm.fleet
    if fleet.trigger.kind in ("messages", "adaptive") and not is_autonomous(fleet.protocol) and not is_drawn:
        yield f"fleet.trigger.kind is {shown(fleet.trigger.kind)}: {fleet.protocol} takes period, none"
    if not math.isfinite(fleet.pattern.rate_per_s):
        yield f"fleet.pattern.rate_per_s is {fleet.pattern.rate_per_s}: use a number"
    try:
        parse_policy(scenario.run.retention)
    except UsageError as error:
        yield f"run.retention is {shown(scenario.run.retention)}: {error}"
    yield from _unknown("limits", scenario.limits, tuple(LIMITS))
    nodes = host_names(scenario) + coordinator_names(scenario)
    known = tuple(f"{sender}>{receiver}" for sender in nodes for receiver in nodes if sender != receiver)
    yield from _unknown("network.paths", scenario.network.paths, known)
    if scenario.swarm is not None:
        yield from _unknown("swarm.faults", scenario.swarm.faults, WORDS)
        yield from _unknown("swarm.always", scenario.swarm.always, WORDS)
        yield from _unknown("swarm.protocols", scenario.swarm.protocols, PROTOCOLS)
        yield from _unknown("swarm.patterns", scenario.swarm.patterns, PATTERN_NAMES)


def _word_problems(scenario: Scenario, word: Word) -> Iterator[str]:
    """Yield problems; each begins with "." and a key, or a blank."""
    for problem in (*word.problems(), *_name_problems(scenario, word), *_point_problems(word.point)):
        yield f".{problem}"
    ends_ns = word.ends_ns(len(host_names(scenario)))
    if ends_ns > scenario.run.until_ns:
        over = format_duration(ends_ns)
        yield f" is over at {over}, after run.until {scenario.run.until}: raise run.until"
    if scenario.liveness.heal and ends_ns > scenario.liveness.heal_ns:
        over, heal = format_duration(ends_ns), scenario.liveness.heal
        yield f" is over at {over}, after liveness.heal {heal}: raise liveness.heal"


def _name_problems(scenario: Scenario, word: Word) -> Iterator[str]:
    """Names of nodes that there are not."""
    hosts, coordinators = host_names(scenario), coordinator_names(scenario)
    for key, name in word.nodes():
        match key, word:
            case "host", DiskFault(is_cut=False):
                known = hosts + coordinators
            case ("host", _) | (_, HoldFault()):
                known = hosts
            case "node", _:
                known = coordinators
            case _:
                known = hosts + coordinators
        yield from _unknown(key, [name] if name else [], known)
    if isinstance(word, MembershipFault) and word.kind == "join" and word.host:
        yield from _unknown("host", [word.host], joining_hosts(scenario))
        if sum(other.host == word.host for other in _joins(scenario)) > 1:
            yield f"host is {shown(word.host)}, which joins twice: leave the name out"


def _point_problems(point: str) -> Iterator[str]:
    known = ("", *FAILPOINTS, *WORLD_FAILPOINTS, *REAL_FAILPOINTS)
    if point not in known and not point.startswith(REAL_FAILPOINT_PREFIXES):
        near = difflib.get_close_matches(point, FAILPOINTS, n=3, cutoff=0)
        yield f"failpoint is {shown(point)}, which no code passes: near it are {', '.join(near)}"


def _unknown(key: str, names: Iterable[str], known: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"{key} is {shown(name)}: use {', '.join(known)}"
