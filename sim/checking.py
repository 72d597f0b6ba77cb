"""Builds a simulated test of a fleet from the options of a test. Each seed of the test leads to one scenario.

Theory of operation
-------------------
A test provides either a fleet or a whole scenario. If the test provides a fleet, its environment is drawn from the seed: hosts and
coordinators, delays, and faults that follow a template (`swarm.py`). The fleet keeps its own settings, with one exception: it takes a
checkpoint at least every second, because a run lasts only a few seconds of virtual time. If the test provides a function that creates the
fleet, the function is called once per run. So state that the function resets does not leak from one run into the next.

A built-in traffic pattern can tell when its work is done, but a user's fleet cannot. So a user's fleet is first run once without faults on
a fast network. This measuring run determines how many turns each later run takes, up to `TURNS` (see `turns_of`). A later run ends when it
has taken that many turns or when the fleet is done. The faults that the template requires must happen before the end of the run. A run in
which these faults do not happen is called *hollow*. A hollow run proves nothing about the fleet, so its verdict is undecided.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

import msgspec

from snapline.agent_runtime.fleet import Fleet, load_fleet
from snapline.errors import UsageError
from snapline.protocols.policy import Adaptive, Every, EveryMessages
from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.faults.fault_kinds import duration_ns, format_duration
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    FAULT_KINDS,
    ClientsPart,
    DelayPart,
    FleetPart,
    LivenessPart,
    NetworkPart,
    RestoresPart,
    RunPart,
    Scenario,
    SwarmPart,
    TriggerPart,
    check_scenario,
    coordinator_names,
    host_names,
    parse_scenario,
    readable,
)
from snapline.sim.search.swarm import BUILT_IN, draw, small_limits
from snapline.sim.workloads import Workload, make_workload, user_workload
from snapline.sim.workloads.workload import GENERATED_INPUTS_MAX, AtEnd, CheckedWorkload, GivenInputs, Inputs, Invariant
from snapline.sim.world.recording import Recording

Target = Fleet | Callable[[], Fleet] | Scenario | Path | str
"""What a test can run: a fleet, a function that creates a fleet, "module:fleet", a scenario, or the path of its TOML file."""

Faults = Scenario | Sequence[str] | str
"""Faults to draw: a template, the name of a template, or a list of fault kinds."""

CLIENTS = 2
"""Default number of clients if the test provides inputs."""

DEFAULT_FAULTS = "crashes"
"""Default fault template for a user's own fleet, in tests and on the command line."""

HOSTS_DRAWN_MAX = 4
"""Maximum number of hosts to draw. Four hosts allow partitions of all shapes; more hosts would only make runs longer."""

TURNS = 600
"""Maximum number of turns of a run. A run ends earlier if its fleet is done. If the agents communicate, this many turns consume at least
500 messages."""

MEASURED = "30s"
"""Maximum virtual duration of the measuring run. A fleet that takes one turn per second takes thirty turns in this time."""

QUICK, SLOW = DelayPart(), DelayPart(least="40ms", jitter="40ms")
"""Network delays of the two measuring runs. A fleet that stops at a certain epoch takes fewer turns before that epoch on a slow network."""

NS = 10**9

_Part = TypeVar("_Part", bound=msgspec.Struct)


class Options(TypedDict, total=False):
    """Options that define the environment of a fleet under test. If the test provides a scenario instead of a fleet, the scenario defines
    these settings.

    Attributes:
        faults: name of a template ("crashes", which is the default, "quiet", "partitions", "disks", "coordinator", "orders", "swarm"), a
            list of fault kinds, or a Scenario, whose fleet is ignored.
        hosts, coordinators: number of hosts and number of coordinators. By default, the seed determines both: 2 to 4 hosts (at most one per
            agent), and 1 or 3 coordinators.
        until: virtual time at which the run and its faults end, such as "20s". By default, the seed determines a time from 2.5 s to 7 s.
        every: checkpoint interval, such as "1s". The value "" selects the fleet's own interval, but at most one second.
        budget: the value "beyond" allows more faults than the fleet is designed to tolerate, and only safety is checked, not liveness.
        arguments: arguments for the function that a "module:fleet" target names.
        inputs: inputs that the clients send. Inputs are given as a list of `(agent, message)` pairs, a function that yields such pairs,
            "module:name" of such a list or function, or the path of a JSON Lines file. The JSON Lines file has the keys `agent`, `type` and
            `fields`. A function may take a `random.Random`, and its first 100 pairs are used. Each input of a list or file is sent once. By
            default, the fleet has no clients.
        clients: number of clients that send the inputs. The default is 2. Some of the clients' requests and answers are lost, and the
            clients resend the requests with the same key.
        restores: number of times that an operator restores the fleet, including its inputs, from an earlier snapshot. The default is 0,
            except that the template "swarm" chooses a random number.
        moves: number of times that an operator drains a host or rebalances agents. The default is 0, except that the template "swarm"
            chooses a random number.
        answers: path of a file of `snapline answers export`. Steps take these answers, instead of calling stubs or functions.
        limits: whether the seed determines small values for the product's limits, so that even a small fleet reaches them.
    """

    faults: Faults
    hosts: int
    coordinators: int
    until: str
    every: str
    budget: str
    arguments: Mapping[str, str]
    inputs: Inputs
    clients: int
    restores: int
    moves: int
    answers: str
    limits: bool


class Subject:
    """The fleet or scenario under test. For each seed, the subject creates a scenario and runs it."""

    def __init__(
        self,
        target: Target,
        *,
        place: str = "",
        invariant: Invariant | None = None,
        at_end: AtEnd | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Create a subject that runs the target with these options.

        Args:
            place: name of the test, which identifies a fleet that has no importable name.

        Raises:
            UsageError: If the target is not a fleet or scenario, or if an option is invalid.
        """
        self._options = options
        self._invariant, self._at_end = invariant, at_end
        self._work = 0
        self._inputs = GivenInputs(options["inputs"]) if "inputs" in options else None
        self._template: Scenario | None = None
        self._source: Callable[[], Fleet] | None = None
        _check_names(options)
        match target:
            case Scenario():
                self._template = target
            case Path():
                self._template = read_scenario(target)
            case str() if target.endswith(".toml"):
                self._template = read_scenario(Path(target))
            case _:
                self._source = source_of(target, options.get("arguments", {}))
        if self._template is None:
            fleet = self._make().fleet
            self.name = fleet.name
            self._part = _fleet_part(fleet, reference_of(target) or place or fleet.name, options)
            self._faults = template_of(options.get("faults", DEFAULT_FAULTS))
        else:
            self.name = self._template.name
            _refuse_options(options)

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario that a seed determines. All random values of the scenario are fixed.

        Raises:
            UsageError: If an option contradicts the faults, for example if a fault names a host that does not exist.
        """
        scenario = draw(self._template or self._surrounded(seed), seed)
        until = self._options.get("until", "")
        if self._template is None and (until or (self._faults.swarm is not None and not scenario.liveness.heal)):
            scenario = _ended_by(scenario, until or scenario.run.until)
        check_scenario(scenario, source=self.name)
        return scenario

    def _surrounded(self, seed: int) -> Scenario:
        """Add the fleet to the scenario template, and return the result. The number of hosts is random unless the template's faults name
        hosts."""
        template, options = self._faults, self._options
        dice = RandomChoices(seed)
        is_drawn = template.swarm is not None and not template.fault
        # With at least two hosts, messages are in transit. A crash of a host without agents would lose nothing.
        most = min(HOSTS_DRAWN_MAX, self._part.agents)
        hosts = (
            min(2, most) + dice.pick("surroundings", ("hosts",), max(1, most - 1)) if is_drawn else template.fleet.hosts
        )
        coordinators = 1 + 2 * dice.pick("surroundings", ("coordinators",), 2)
        fields = msgspec.to_builtins(self._part) | {
            "hosts": options.get("hosts") or hosts,
            "coordinators": options.get("coordinators") or (coordinators if is_drawn else template.fleet.coordinators),
        }
        swarm = template.swarm and msgspec.structs.replace(template.swarm, fleet=False)
        limits = small_limits(seed) if options.get("limits") else {}
        changed = msgspec.structs.replace(
            template,
            name=self.name,
            budget=options.get("budget") or template.budget,
            fleet=_converted(fields, FleetPart),
            swarm=swarm,
            clients=self._clients(),
            restores=RestoresPart(times=options.get("restores", template.restores.times)),
            run=msgspec.structs.replace(
                template.run, turns=self._turns(), moves=options.get("moves", template.run.moves)
            ),
            limits=limits | template.limits,
        )
        return _converted(msgspec.to_builtins(changed, str_keys=True), Scenario)

    def _clients(self) -> ClientsPart:
        """Return the scenario section for the clients that send the inputs. If there are no inputs, the section has no clients."""
        if self._inputs is None:
            return ClientsPart()
        inputs = self._options["inputs"]
        name = str(inputs) if isinstance(inputs, Path) else reference_of(inputs)
        return clients_of(self._inputs, name, self._options.get("clients"))

    def _turns(self) -> int:
        """Return the number of turns that each run takes. The number is measured only once."""
        if not self._work:
            self._work = turns_of(Scenario(fleet=self._part, clients=self._clients()), self._make)
        return self._work

    def run(
        self, scenario: Scenario, seed: int, choices: Choices | None = None, *, recording: Recording | None = None
    ) -> Result:
        """Run the scenario with a seed, or with the given choices instead of random ones. This method implements `Runner`."""
        inner = make_workload(scenario.fleet) if self._source is None else self._make()
        workload = CheckedWorkload(inner, invariant=self._invariant, at_end=self._at_end)
        return run(scenario, seed, choices, recording=recording, workload=workload)

    def _make(self) -> Workload:
        assert self._source is not None
        fleet = self._source()
        if not isinstance(fleet, Fleet):
            raise UsageError(f"{self._source!r} made a {type(fleet).__qualname__}: return a snapline.Fleet")
        workload = user_workload(fleet, self._options.get("every", ""))
        workload.inputs = self._inputs
        return workload


def run_fleet(
    target: Target,
    seed: int = 0,
    *,
    choices: Choices | None = None,
    recording: Recording | None = None,
    invariant: Invariant | None = None,
    at_end: AtEnd | None = None,
    **options: Unpack[Options],
) -> Result:
    """Run a fleet once, without pytest.

    If `choices` are given, for example as `HypothesisChoices`, they replace the run's random choices. The seed still determines the
    scenario.

    Raises:
        UsageError: If the target is not a fleet or scenario, or if an option is invalid.
    """
    subject = Subject(target, invariant=invariant, at_end=at_end, **options)
    return subject.run(subject.scenario(seed), seed, choices, recording=recording)


# -- targets and options of a test --------------------------------------------------------------------------------------


def source_of(target: object, arguments: Mapping[str, str]) -> Callable[[], Fleet]:
    """Return a function that returns the fleet for each run.

    Raises:
        UsageError: If the target is neither a fleet, a function, nor "module:fleet", or if `arguments` are given for a
            target other than "module:fleet".
    """
    match target:
        case str() if ":" in target:
            return lambda: load_fleet(target, arguments)
        case _ if arguments:
            raise UsageError("arguments are for 'module:fleet': bind those of a function by functools.partial")
        case Fleet():
            return lambda: target
        case _ if callable(target):
            return target
    raise UsageError(
        f"{target!r} cannot be checked: give a snapline.Fleet, a function that returns one, 'module:fleet', "
        "a Scenario or the path of its .toml file"
    )


def read_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        UsageError: If the file is unreadable or is not a valid scenario.
    """
    try:
        return parse_scenario(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give the path of a scenario") from error


def template_of(faults: Faults) -> Scenario:
    """Return a scenario that serves as fault template. `faults` is a template's name, a list of fault kinds, or the scenario itself.

    Raises:
        UsageError: If the template or a fault kind is unknown.
    """
    match faults:
        case Scenario():
            return faults
        case str() if faults in BUILT_IN:
            return BUILT_IN[faults]
        case str():
            raise UsageError(f"faults is {faults!r}: use {', '.join(BUILT_IN)}, or a list of {', '.join(FAULT_KINDS)}")
        case _:
            unknown = [word for word in faults if word not in FAULT_KINDS]
            if unknown:
                raise UsageError(f"faults holds {unknown[0]!r}: use {', '.join(FAULT_KINDS)}")
            return Scenario(swarm=SwarmPart(faults=list(faults), steps=False) if faults else SwarmPart(faults_max=0))


def turns_of(scenario: Scenario, make: Callable[[], Workload]) -> int:
    """Return the number of turns that a run of this fleet should take. The result is the number of turns in a run without faults, but at
    most `TURNS`."""
    workload = make()
    networks = (QUICK, SLOW) if workload.fleet.stop_when is not None else (QUICK,)
    turns = min([_taken(scenario, workload if delay is QUICK else make(), delay) for delay in networks])
    return min(TURNS, turns) or TURNS


def _taken(scenario: Scenario, workload: Workload, delay: DelayPart) -> int:
    quiet = Scenario(
        fleet=msgspec.structs.replace(scenario.fleet, coordinators=1),
        network=NetworkPart(delay=delay),
        clients=scenario.clients,
        run=RunPart(turns=TURNS),
        liveness=LivenessPart(within=MEASURED),
    )
    result = run(quiet, 0, workload=workload)
    return (
        TURNS if result.verdict == "violation" else int(result.metrics.get("turns", 0))
    )  # a violation ends the run before the fleet is done


def reference_of(target: object) -> str:
    """Return the name "module:name" by which another process can import the target, or "" if the target cannot be imported."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    if not module or not name or isinstance(target, Fleet):
        return ""
    imported = reduce(lambda holder, part: getattr(holder, part, None), name.split("."), sys.modules.get(module))
    return f"{module}:{name}" if imported is target else ""


def clients_of(inputs: GivenInputs, source: str, count: int | None) -> ClientsPart:
    """Return the scenario section for clients that send these inputs. `source` is the name by which another process imports the inputs, or
    "" if it cannot import them."""
    fields = {"count": CLIENTS if count is None else count, "inputs_from": source}
    return _converted({**fields, "inputs": inputs.count or GENERATED_INPUTS_MAX}, ClientsPart)


def _fleet_part(fleet: Fleet, module: str, options: Options) -> FleetPart:
    arguments = dict(options.get("arguments", {}))
    trigger = trigger_part(fleet)
    return FleetPart(
        agents=len(fleet.agents),
        protocol=fleet.protocol,
        trigger=trigger,
        module=module,
        arguments=arguments,
        answers=options.get("answers", ""),
    )


def trigger_part(fleet: Fleet) -> TriggerPart:
    """Return the scenario section for the fleet's first checkpoint trigger. The section is for display only, because the run uses the
    fleet's own triggers."""
    match fleet.triggers[0] if fleet.triggers else None:
        case Every(seconds=seconds, jitter=jitter):
            return TriggerPart(every=format_duration(round(seconds * NS)), jitter=jitter)
        case EveryMessages(count=count):
            return TriggerPart(kind="messages", messages=count)
        case Adaptive(least_s=least_s):
            return TriggerPart(kind="adaptive", every=format_duration(round(least_s * NS)))
        case _:
            return TriggerPart(kind="none")


def _converted(fields: object, kind: type[_Part]) -> _Part:
    """Convert the fields to a struct, with the same checks as for fields read from a file."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise UsageError(readable(str(error), fields, kind)) from error


def _check_names(options: Options) -> None:
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}: use {', '.join(Options.__annotations__)}")


def _refuse_options(options: Options) -> None:
    for name in options:
        raise UsageError(f"{name} is for fleets: write it into the scenario")


def _ended_by(scenario: Scenario, until: str) -> Scenario:
    """Return the scenario with `until` as the end of the run. Omit the faults that would end later."""
    until_ns, hosts = duration_ns(until), len(host_names(scenario))
    fault = [part for part in scenario.fault if part.word.ends_ns(hosts) <= until_ns]
    replace = msgspec.structs.replace
    ended = replace(
        scenario,
        fault=fault,
        run=replace(scenario.run, until=until),
        liveness=replace(scenario.liveness, heal=until),
    )
    nodes = host_names(ended) + coordinator_names(ended)  # without hosts whose joining was dropped
    paths = {path: delay for path, delay in scenario.network.paths.items() if all(x in nodes for x in path.split(">"))}
    return replace(ended, network=replace(scenario.network, paths=paths))
