"""The scenario of a simulated run. A scenario defines the fleet, its network and store, the faults, and the deadline for recovery.

The same TOML file configures both simulations and runs of real processes. The file is parsed into frozen structs. Every key has a default,
and unknown keys are rejected. `format_scenario` returns text that `parse_scenario` can read. Each section is written with all its keys, so
that an old file keeps its meaning when a default changes. For a fault, only the keys that differ from their defaults are written.

A scenario is checked in three steps. First, msgspec checks types and allowed values. The error messages of msgspec name the path of the
invalid key. Second, `check_scenario` checks conditions that involve several keys, such as node names, times and mutually exclusive keys.
Third, `faults.check_budget` checks that the faults do not exceed the fault budget.

Python's standard library can read TOML files but cannot write them. The writer in this module supports only the types of values that occur
in scenarios: strings, numbers, booleans, lists and tables. `readable` adds the invalid value and the allowed values to the error messages
of msgspec.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeGuard, get_args, get_origin

import msgspec

from snapline.errors import UsageError
from snapline.messages.status import HOSTS_MAX
from snapline.protocols.names import CHANDY_LAMPORT, PROTOCOLS, is_autonomous
from snapline.sim.faults.fault_kinds import (
    FAILPOINTS,
    REAL_FAILPOINT_PREFIXES,
    REAL_FAILPOINTS,
    REFUSED_FAULT_KINDS,
    WORLD_FAILPOINTS,
    CaptureFault,
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    Duration,
    FaultKind,
    HangFault,
    HoldFault,
    LossFault,
    MembershipFault,
    OptionalDuration,
    PartitionFault,
    PauseFault,
    ResetFault,
    SlowFault,
    SwizzleFault,
    duration_ns,
    format_duration,
)
from snapline.sim.world.product_patches import LIMITS
from snapline.storage.retention.epoch_retention import parse_policy

__all__ = [
    "FAULT_KINDS",
    "PATTERN_NAMES",
    "SCHEMA",
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
"""Names of the patterns from which `draw` chooses."""

PATTERNS_KNOWN = (*PATTERN_NAMES, "killing", "pagerank", "bank-example")

Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
PerMille = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Coordinators = Literal[1, 3, 5]
HostCount = Annotated[int, msgspec.Meta(ge=1, le=HOSTS_MAX)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all sections of a scenario."""


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
    """The traffic pattern of the fleet. `messages` is the approximate total number of messages, and `rate_per_s` is the message rate. For
    both settings, 0 means unlimited."""

    name: str = "bank"
    messages: Count = 400
    payload_bytes: Count = 16
    rate_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class TriggerPart(Part, frozen=True, kw_only=True):
    """The trigger of checkpoints. Depending on its kind, the trigger fires at the interval `every`, varied randomly by the fraction
    `jitter`, or after each `messages` messages."""

    kind: Literal["period", "messages", "adaptive", "none"] = "period"
    every: Duration = "500ms"
    jitter: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    messages: AtLeastOne = 50

    @property
    def every_ns(self) -> int:
        return duration_ns(self.every)


class FleetPart(Part, frozen=True, kw_only=True):
    """The fleet that the scenario runs.

    Attributes:
        module: importable name of the user's own fleet, such as "my_module:fleet". The user's fleet is created with `arguments` and
            replaces the traffic pattern.
        invariant: name of a function that is called with every complete cut of the user's fleet, such as "my_tests:no_coin_is_lost".
        at_end: name of a function that is called with the agents' final states when the user's fleet is idle, such as "my_tests:balances".
        log_bytes_max, epoch_timeout: settings that apply if the fleet runs a traffic pattern. The values 0 and "" select the default
            settings.
        recovery: what starts again after a failure, as in `Fleet.recovery`.
        answers: path of a file of `snapline answers export`, on whose answers the user's fleet runs.
        is_varied: whether the user's fleet runs until it is idle, with this section's protocol and trigger instead of its own.
    """

    agents: AtLeastOne = 5
    hosts: HostCount = 2
    coordinators: Coordinators = 1
    protocol: str = "chandy-lamport"
    recovery: Literal["global", "local"] = "global"
    pattern: PatternPart = PatternPart()
    trigger: TriggerPart = TriggerPart()
    log_bytes_max: Count = 0
    epoch_timeout: OptionalDuration = ""
    module: str = ""
    arguments: dict[str, str] = {}
    invariant: str = ""
    at_end: str = ""
    answers: str = ""
    is_varied: bool = False


class NetworkPart(Part, frozen=True, kw_only=True):
    """Network delays. `paths` overrides the delay from one node to another for the whole run. Its keys have the form "c1>h2"."""

    delay: DelayPart = DelayPart()
    paths: dict[str, DelayPart] = {}

    def delay_of(self, sender: str, receiver: str) -> DelayPart:
        return self.paths.get(f"{sender}>{receiver}", self.delay) if self.paths else self.delay


class StorePart(Part, frozen=True, kw_only=True):
    delay: DelayPart = DelayPart(least="1ms", jitter="2ms")


class LivenessPart(Part, frozen=True, kw_only=True):
    """Deadlines of a run. All faults are healed at the time `heal`. If `heal` is "", they are healed immediately after the last fault ends.
    After the healing, all work must be done within the duration `within`."""

    heal: OptionalDuration = ""
    within: Duration = "30s"

    @property
    def heal_ns(self) -> int:
        return duration_ns(self.heal)

    @property
    def within_ns(self) -> int:
        return duration_ns(self.within)


class ClientsPart(Part, frozen=True, kw_only=True):
    """Clients of the fleet. There are `count` clients. Each client sends `inputs` inputs, with a pause of `pause` on average between two
    requests.

    Attributes:
        inputs_from: source of all clients' inputs, given as "module:name" or as the path of a file. This source replaces the pattern's
            inputs.
        asks: whether clients wait for some of the answers to their inputs.
        is_settling: whether an operator retries some dead letters and drops others.
    """

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
    """Outputs of agents. On average, one turn in `one_in` emits an output, where 0 means that there are no outputs. If `is_watched` is
    True, a consumer reads outputs immediately, so outputs trigger epochs."""

    one_in: Count = 0
    is_watched: bool = False


class StepsPart(Part, frozen=True, kw_only=True):
    """Rates, per thousand, of stub calls that are late, are never answered, or fail. A failing call may or may not have been executed. Of
    recorded answers, `wrong_per_mille` have a wrong content: they are cut off, of another shape, or refusals. The rates apply until
    faults are healed."""

    late_per_mille: PerMille = 0
    lost_per_mille: PerMille = 0
    failed_per_mille: PerMille = 0
    wrong_per_mille: PerMille = 0


class RestoresPart(Part, frozen=True, kw_only=True):
    """Restores of the fleet from a retained epoch. The number of restores is `times`. One restore in `drops_one_in` drops inputs, where 0
    means that none does."""

    times: Count = 0
    drops_one_in: Count = 0


class RunPart(Part, frozen=True, kw_only=True):
    """Settings of a run.

    Attributes:
        until: time by which all faults must have ended.
        faults_from: moment to which the times of faults refer, which is either the time when the fleet is running or the start of the run.
        retention: policy by which the coordinator keeps more epochs than `keep_epochs`, such as "last=3,hourly=2,daily=0".
        snapshots_every: interval at which an operator requests a snapshot.
        turns_in_a_row: number of successive turns after which a host does other work.
        turns: number of turns after which the run of a fleet without a known end stops. The run also ends if the fleet is idle or the
            waiting time has expired. The value 0 means that the run does not wait for turns.
        moves: number of times that an operator drains a host or rebalances agents.
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
    """A fault. Exactly one of the fields for kinds of faults is set."""

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
    def word(self) -> FaultKind:
        """Return the settings of the fault, whose type depends on the kind of the fault."""
        return next(word for _, word in self.words())

    @property
    def kind(self) -> str:
        """Return the kind of the fault, such as "crash"."""
        return next(name for name, _ in self.words())

    def words(self) -> Iterator[tuple[str, FaultKind]]:
        for name in self.__struct_fields__:
            word = getattr(self, name)
            if word is not None:
                yield name, word


FAULT_KINDS = FaultPart.__struct_fields__


class SwarmPart(Part, frozen=True, kw_only=True):
    """The settings that a swarm may choose at random for each run. If a list is empty, all values are allowed.

    Attributes:
        faults: kinds of faults that may be chosen, such as "crash".
        always: kinds of faults that occur at least once in every run while the fleet works.
        fleet, network, limits, clients, outputs, steps, restores: whether this section of the scenario is chosen at random. If the flag is
            False, the section of the template is kept. The flag `restores` also covers the moves that operators make.
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
    """The scenario of one simulated run. If `budget` is "beyond", only safety is checked, not liveness. `limits` contains, by name, values
    that override the product's limits (`product_patches.py`)."""

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
    """Return whether the fleet may emit outputs that a consumer can read. The agents of a pattern emit outputs only if the scenario enables
    them. A user's agents may always emit outputs."""
    return bool(scenario.outputs.one_in or scenario.fleet.module)


def host_names(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of all hosts that may exist. The hosts that join later are at the end."""
    return tuple(f"h{number + 1}" for number in range(scenario.fleet.hosts + len(_joins(scenario))))


def joining_hosts(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of the hosts that join during the run."""
    return host_names(scenario)[scenario.fleet.hosts :]


def coordinator_names(scenario: Scenario) -> tuple[str, ...]:
    return tuple(f"c{number + 1}" for number in range(scenario.fleet.coordinators))


def _joins(scenario: Scenario) -> list[MembershipFault]:
    words = [fault.membership for fault in scenario.fault if fault.membership]
    return [word for word in words if word.kind == "join"]


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Parse a scenario from TOML. Error messages contain the file name `source`.

    Raises:
        UsageError: If the scenario is invalid. The error message names the file, the key and the allowed values.
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
    """Check the conditions that types cannot express.

    Raises:
        UsageError: If a condition is violated. The error message describes the first violated condition.
    """
    for problem in _problems(scenario):
        raise UsageError(f"{source}: {problem}")


def format_scenario(scenario: Scenario) -> str:
    """Return the scenario as TOML text, which `parse_scenario` converts back to the same scenario."""
    return format_toml(msgspec.to_builtins(scenario))


def _refuse_early(raw: Mapping[str, object], source: str) -> None:
    """Reject other schema versions, and kinds of faults that are deliberately not supported. Without this check, msgspec would report them
    without an explanation."""
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"{source}: schema is {shown(raw['schema'])}: this snapline reads schema {SCHEMA}")
    faults = raw.get("fault")
    for index, fault in enumerate(faults if isinstance(faults, list) else []):
        for word in fault if isinstance(fault, dict) else ():
            if word in REFUSED_FAULT_KINDS:
                raise UsageError(f"{source}: fault[{index}].{word} cannot be: {REFUSED_FAULT_KINDS[word]}")


def _problems(scenario: Scenario) -> Iterator[str]:
    """Yield a description of each violated condition. Each description begins with the invalid key."""
    yield from _part_problems(scenario)
    for index, fault in enumerate(scenario.fault):
        path = f"fault[{index}]"
        names = [name for name, _ in fault.words()]
        if len(names) == 1:
            for problem in _word_problems(scenario, fault.word):
                yield f"{path}.{names[0]}{problem}"
        else:
            finding = f"has the words {' and '.join(names)}" if names else "has no word"
            yield f"{path} {finding}: each [[fault]] has exactly one of {', '.join(FAULT_KINDS)}"


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
    if fleet.recovery == "local" and fleet.protocol != CHANDY_LAMPORT and not is_drawn:
        yield f'fleet.recovery is "local": it needs the protocol {CHANDY_LAMPORT}, not {fleet.protocol}'
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
        yield from _unknown("swarm.faults", scenario.swarm.faults, FAULT_KINDS)
        yield from _unknown("swarm.always", scenario.swarm.always, FAULT_KINDS)
        yield from _unknown("swarm.protocols", scenario.swarm.protocols, PROTOCOLS)
        yield from _unknown("swarm.patterns", scenario.swarm.patterns, PATTERN_NAMES)


def _word_problems(scenario: Scenario, word: FaultKind) -> Iterator[str]:
    """Yield a description of each problem in a fault's keys. Each description begins with a space, or with "." and the invalid key."""
    for problem in (*word.problems(), *_name_problems(scenario, word), *_point_problems(word.point)):
        yield f".{problem}"
    ends_ns = word.ends_ns(len(host_names(scenario)))
    if ends_ns > scenario.run.until_ns:
        over = format_duration(ends_ns)
        yield f" is over at {over}, after run.until {scenario.run.until}: raise run.until"
    if scenario.liveness.heal and ends_ns > scenario.liveness.heal_ns:
        over, heal = format_duration(ends_ns), scenario.liveness.heal
        yield f" is over at {over}, after liveness.heal {heal}: raise liveness.heal"


def _name_problems(scenario: Scenario, word: FaultKind) -> Iterator[str]:
    """Yield a description of each name that does not belong to any node."""
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


def format_toml(document: Mapping[str, object]) -> str:
    """Return a document as TOML text. Plain values come first, followed by one section for each table and for each table in a list. Nested
    tables are written inline, and `None` is omitted."""
    lines: list[str] = []
    sections: list[str] = []
    for key, value in document.items():
        match value:
            case None:
                pass
            case dict():
                sections += ["", f"[{key}]", *_table(value)]
            case [dict(), *_] if len(tables := [table for table in value if isinstance(table, dict)]) == len(value):
                for table in tables:
                    sections += ["", f"[[{key}]]", *_table(table)]
            case _:
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *sections]) + "\n"


def _table(table: Mapping[str, object]) -> list[str]:
    return [f"{_toml_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            items = ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
        case _:
            return repr(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def readable(message: str, raw: object, root: type[msgspec.Struct]) -> str:
    """Return a readable form of an error message from msgspec. The result names the key, the key's value in `raw`, and the values that
    `root` allows for the key."""
    reason, _, tail = message.partition(" - at `$")
    path = tail.rstrip("`").lstrip(".")
    value, kind = _look_up(path, raw, root)
    if unknown := re.search(r"unknown field `(.*)`", reason):
        keys = [field.encode_name for field in msgspec.structs.fields(kind)] if _is_struct(kind) else []
        return f"{path or 'the file'} has no key {shown(unknown[1])}: use {', '.join(keys)}"
    return f"{path} is {shown(value)}: {_allowed(reason, kind)}"


def _allowed(what: str, kind: object) -> str:
    if get_origin(kind) is Literal:
        return "use " + ", ".join(shown(choice) if choice == "" else str(choice) for choice in get_args(kind))
    if "matching regex" in what:
        return "use a duration such as 250us, 1ms, 1.5s or 3m"
    wanted = what.removeprefix("Expected ").partition(", got")[0]
    for name, word in _TYPE_WORDS.items():
        wanted = wanted.replace(f"`{name}`", word).replace(f"`{name} | null`", word)
    return f"use {wanted}"


_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def shown(value: object) -> str:
    """Format a value as it appears in a scenario file."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _look_up(path: str, raw: object, kind: object) -> tuple[object, object]:
    """Return the value at a path such as `fault[2].crash.host`, and the declared type of the value."""
    for key, index in re.findall(r"([\w-]+)|\[(\d+|\.\.\.)\]", path):
        kind = _declared(kind, key)
        match raw:
            case dict():
                raw = raw.get(key)
            case list() if index.isdigit():
                raw = raw[int(index)]
            case _:
                return raw, kind
    return raw, kind


def _declared(kind: object, key: str) -> object:
    """Return the type of the field `key` of a struct, or of the items in a list or dict, without `Annotated` and `None`."""
    if _is_struct(kind):
        inner = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}.get(key)
    else:
        inner = get_args(kind)[-1] if get_args(kind) else None
    while get_origin(inner) not in (None, Literal, list, dict):
        inner = next(part for part in get_args(inner) if part is not type(None))
    return inner
