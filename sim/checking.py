"""A fleet under test: what may be given, the scenario of each seed, and the user's own invariants.

Theory of operation
-------------------
What a test gives is a fleet, or a whole scenario. Of a fleet everything around it is drawn from the seed: hosts and
coordinators, delays, and faults as a template says (`swarm.py`); the fleet itself stays as it is, but that it saves at least
each second, since a run lasts some seconds of virtual time. A function that makes a fleet is called for each run: what it sets
back cannot leak from one run into the next.

An invariant is asked about every complete cut; the oracles of the simulator have seen before that the cut is consistent.
`at_end` is asked about the states of a fleet that has come to rest, which is a stable property: a complete cut was quiet.
What they answer: nothing, a true value or "" is well; a sentence, a false value or a failed `assert` is a violation; any other
exception makes the run "broken", for then nobody knows.
"""

import copy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

import msgspec

from snapline.agent_runtime.fleet import Fleet, load_fleet
from snapline.agent_runtime.snapshots.cut import Cut
from snapline.errors import MisuseError
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Adaptive, Every, EveryMessages, Single
from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.faults.durations import duration_ns, format_duration
from snapline.sim.hunt.exercise import turns_of
from snapline.sim.hunt.swarm import BUILT_IN, draw
from snapline.sim.report.words import seconds
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    WORDS,
    FleetPart,
    Scenario,
    SwarmPart,
    TriggerPart,
    check_scenario,
    coordinator_names,
    host_names,
    parse_scenario,
)
from snapline.sim.toml_text import readable
from snapline.sim.workloads import Workload, make_workload
from snapline.sim.world.recording import Recording

Target = Fleet | Callable[[], Fleet] | Scenario | Path | str
"""What a test gives: a fleet, a function that makes one, "module:fleet"; a scenario, or its TOML file."""

Faults = Scenario | Sequence[str] | str
"""A template, its name, or a list of fault words."""

Invariant = Callable[[Cut], object]
AtEnd = Callable[[Mapping[str, object]], object]

DEFAULT_FAULTS = "crashes"
"""The template around a user's own fleet, here and on the command line."""

HOSTS_DRAWN_MAX = 4
"""Enough for partitions of all shapes; more hosts only make runs longer."""

PERIOD_MAX_S = 1.0
"""A fleet under test saves at least so often: a run lasts some seconds of virtual time, and its cuts are what is checked."""

PERIOD_S = 0.5
"""Of a fleet whose checkpoints are taken by hand: nobody does that here."""

STATE_SHOWN = 100
"""Characters of the state that an invariant read last."""

NS = 10**9

_Part = TypeVar("_Part", bound=msgspec.Struct)
_Seen = TypeVar("_Seen")


class Options(TypedDict, total=False):
    """What surrounds a fleet. Of a scenario all of this stands in the scenario.

    Attributes:
        faults: name of a template ("crashes", which is the default, "quiet", "partitions", "disks", "coordinator", "orders", "swarm"), a
            list of fault words, or a Scenario of which all but the fleet is taken.
        hosts, coordinators: how many; else drawn: 2 to 4 hosts, no more than agents, and 1 or 3 coordinators.
        until: virtual time until which faults happen, and that a run lasts, such as "20s"; else drawn, 2.5 s to 7 s.
        every: how often checkpoints are taken; "" is as the fleet says, but at least each second.
        budget: "beyond" checks safety alone.
        arguments: of the function that "module:fleet" names.
    """

    faults: Faults
    hosts: int
    coordinators: int
    until: str
    every: str
    budget: str
    arguments: Mapping[str, str]


class Subject:
    """What is under test: draws its scenarios, and runs them.

    Attributes:
        name: of the fleet, or of the scenario.
    """

    def __init__(
        self,
        target: Target,
        *,
        place: str = "",
        invariant: Invariant | None = None,
        at_end: AtEnd | None = None,
        **options: Unpack[Options],
    ) -> None:
        """`place`: names the test, where a fleet has no name by which it can be imported.

        Raises:
            MisuseError: the target is none, or an option is not possible.
        """
        self._options = options
        self._invariant, self._at_end = invariant, at_end
        self._work = 0
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
            fleet = self._make_fleet()
            self.name = fleet.name
            self._part = _fleet_part(fleet, reference_of(target) or place or fleet.name, options)
            self._faults = template_of(options.get("faults", DEFAULT_FAULTS))
        else:
            self.name = self._template.name
            _refuse_options(options)

    def scenario(self, seed: int) -> Scenario:
        """The concrete scenario of a seed.

        Raises:
            MisuseError: an option does not fit the faults, such as a host that is named and does not exist.
        """
        scenario = draw(self._template or self._surrounded(seed), seed)
        until = self._options.get("until", "")
        if self._template is None and (until or (self._faults.swarm is not None and not scenario.liveness.heal)):
            scenario = _ended_by(scenario, until or scenario.run.until)
        check_scenario(scenario, source=self.name)
        return scenario

    def _surrounded(self, seed: int) -> Scenario:
        """The template with the fleet, on hosts that are drawn unless its faults name them."""
        template, options = self._faults, self._options
        dice = RandomChoices(seed)
        is_drawn = template.swarm is not None and not template.fault
        # Two at least, so that messages are under way; a host without agents has nothing to lose.
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
        changed = msgspec.structs.replace(
            template,
            name=self.name,
            budget=options.get("budget") or template.budget,
            fleet=_converted(fields, FleetPart),
            swarm=swarm,
            run=msgspec.structs.replace(template.run, turns=self._turns()),
        )
        return _converted(msgspec.to_builtins(changed, str_keys=True), Scenario)

    def _turns(self) -> int:
        """The work of one run, measured once."""
        if not self._work:
            self._work = turns_of(Scenario(fleet=self._part), Workload(self._make_fleet()))
        return self._work

    def run(
        self, scenario: Scenario, seed: int, choices: Choices | None = None, *, recording: Recording | None = None
    ) -> Result:
        """Run one seed, or with these choices; a `Runner`."""
        inner = make_workload(scenario.fleet) if self._source is None else Workload(self._make_fleet())
        workload = CheckedWorkload(inner, invariant=self._invariant, at_end=self._at_end)
        result = run(scenario, seed, choices, recording=recording, workload=workload)
        if workload.failure:
            at = "".join(f"{seconds(found.t_ns)}, {found.text}\n" for found in result.violations[:1])
            result.verdict, result.error, result.violations = "broken", f"{workload.failure}at {at}", []
        return result

    def _make_fleet(self) -> Fleet:
        assert self._source is not None
        made = self._source()
        if not isinstance(made, Fleet):
            raise MisuseError(f"{self._source!r} made a {type(made).__qualname__}: return a snapline.Fleet")
        fleet = copy.copy(made)  # the user's own stays as it is
        fleet.triggers = triggers_for(made, self._options.get("every", ""))
        return fleet


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
    """One run, without pytest. `choices`: instead of the seed's, such as `HypothesisChoices`; the scenario is the seed's.

    Raises:
        MisuseError: as `Subject`.
    """
    subject = Subject(target, invariant=invariant, at_end=at_end, **options)
    return subject.run(subject.scenario(seed), seed, choices, recording=recording)


# -- what a test gives --------------------------------------------------------------------------------------------------


def source_of(target: object, arguments: Mapping[str, str]) -> Callable[[], Fleet]:
    """The function that makes the fleet of each run.

    Raises:
        MisuseError: the target is none.
    """
    match target:
        case str() if ":" in target:
            return lambda: load_fleet(target, arguments)
        case _ if arguments:
            raise MisuseError("arguments are for 'module:fleet': bind those of a function by functools.partial")
        case Fleet():
            return lambda: target
        case _ if callable(target):
            return target
    raise MisuseError(
        f"{target!r} cannot be checked: give a snapline.Fleet, a function that returns one, 'module:fleet', "
        "a Scenario or the path of its .toml file"
    )


def read_scenario(path: Path) -> Scenario:
    """Read a TOML file.

    Raises:
        MisuseError: it cannot be read, or is no scenario.
    """
    try:
        return parse_scenario(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path} cannot be read: {error}; give the path of a scenario") from error


def template_of(faults: Faults) -> Scenario:
    """The faults that may happen.

    Raises:
        MisuseError: there is no such template or word.
    """
    match faults:
        case Scenario():
            return faults
        case str() if faults in BUILT_IN:
            return BUILT_IN[faults]
        case str():
            raise MisuseError(f"faults is {faults!r}: use {', '.join(BUILT_IN)}, or a list of {', '.join(WORDS)}")
        case _:
            unknown = [word for word in faults if word not in WORDS]
            if unknown:
                raise MisuseError(f"faults holds {unknown[0]!r}: use {', '.join(WORDS)}")
            return Scenario(swarm=SwarmPart(faults=list(faults), steps=False) if faults else SwarmPart(faults_max=0))


def reference_of(target: object) -> str:
    """ "module:name", by which another process finds the fleet; "" if there is none."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    if not module or not name or isinstance(target, Fleet):
        return ""
    found = reduce(lambda holder, part: getattr(holder, part, None), name.split("."), sys.modules.get(module))
    return f"{module}:{name}" if found is target else ""


def triggers_for(fleet: Fleet, every: str) -> tuple[Single, ...]:
    """When the fleet saves under test.

    Raises:
        MisuseError: `every` is no duration.
    """
    if every:
        return (Every(duration_ns(every) / NS),)
    if not fleet.triggers and not is_autonomous(fleet.protocol):
        return (Every(PERIOD_S),)
    return tuple([_quick(trigger) for trigger in fleet.triggers])


def _quick(trigger: Single) -> Single:
    match trigger:
        case Every() if trigger.seconds > PERIOD_MAX_S:
            return Every(PERIOD_MAX_S, trigger.jitter)
        case _:
            return trigger


def _fleet_part(fleet: Fleet, module: str, options: Options) -> FleetPart:
    arguments = dict(options.get("arguments", {}))
    trigger = trigger_part(fleet)
    return FleetPart(
        agents=len(fleet.agents), protocol=fleet.protocol, trigger=trigger, module=module, arguments=arguments
    )


def trigger_part(fleet: Fleet) -> TriggerPart:
    """The fleet's trigger in a scenario's words; of several, the first. For people: the fleet's own is what counts."""
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
    """Check the fields as those of a file."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise MisuseError(readable(str(error), fields, kind)) from error


def _check_names(options: Options) -> None:
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise MisuseError(f"there is no option {unknown[0]!r}: use {', '.join(Options.__annotations__)}")


def _refuse_options(options: Options) -> None:
    for name in options:
        raise MisuseError(f"{name} is for fleets: write it into the scenario")


def _ended_by(scenario: Scenario, until: str) -> Scenario:
    """Faults that would go on after `until` are left out; the run lasts until then."""
    until_ns, hosts = duration_ns(until), len(host_names(scenario))
    fault = [part for part in scenario.fault if part.word.ends_ns(hosts) <= until_ns]
    replace = msgspec.structs.replace
    ended = replace(
        scenario,
        fault=fault,
        run=replace(scenario.run, until=until),
        liveness=replace(scenario.liveness, heal=until),
    )
    nodes = host_names(ended) + coordinator_names(ended)  # without those that would have joined
    paths = {path: delay for path, delay in scenario.network.paths.items() if all(x in nodes for x in path.split(">"))}
    return replace(ended, network=replace(scenario.network, paths=paths))


# -- invariants ---------------------------------------------------------------------------------------------------------


class CheckedWorkload(Workload):
    """A workload and the user's own invariants.

    Attributes:
        failure: the traceback of an invariant that could not be asked; "" if all is well.
    """

    def __init__(self, inner: Workload, *, invariant: Invariant | None, at_end: AtEnd | None) -> None:
        super().__init__(inner.fleet, ends=inner.ends or at_end is not None)
        self._inner = inner
        self._invariant, self._at_end = invariant, at_end
        self._quiet: Cut | None = None
        self.failure = ""

    def check_cut(self, cut: Cut) -> str | None:
        if self._at_end is not None and cut.is_quiet:
            self._quiet = cut
        broken = self._inner.check_cut(cut)
        if broken or self._invariant is None:
            return broken
        cut.states = read = _ReadStates(cut.states)
        return self._ask(self._invariant, cut, read=read)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """At rest: who looks at idle hosts alone does not see timers."""
        if self._inner.ends and not self._inner.is_done(states):
            return False
        return self._at_end is None or self._quiet is not None

    def check_end(self, states: Mapping[str, object]) -> str | None:
        broken = self._inner.check_end(states) if self._inner.ends else None
        if broken or self._at_end is None:
            return broken
        if self._quiet is not None and any(agent not in states for agent in self._quiet.states):
            states = dict(
                self._quiet.states
            )  # `stop_when` has ended the fleet: its hosts are gone, or came back for nothing
        read = _ReadStates(states)
        return self._ask(self._at_end, read, read=read, when="at the end: ")

    def _ask(
        self, question: Callable[[_Seen], object], seen: _Seen, *, read: "_ReadStates", when: str = ""
    ) -> str | None:
        name = getattr(question, "__name__", "the invariant").replace("<lambda>", "the invariant")
        try:
            answer = question(seen)
            if isinstance(answer, str):
                return f"{when}{answer}" if answer else None
            return (
                None if answer is None or answer else f"{when}{name} is {answer!r} ({_place_of(question)}{read.told()})"
            )
        except AssertionError as error:
            first, *others = (str(error) or "assert").splitlines()
            return "\n".join([f"{when}{name}: {first} ({_line_of(error)}{read.told()})", *others])
        except Exception as error:
            trace = error.__traceback__ and error.__traceback__.tb_next  # not this frame
            self.failure = "".join([f"{name} raised\n", *traceback.format_exception(type(error), error, trace)])
            return f"{when}{name} raised ({_line_of(error, below=1)}{read.told()})"


class _ReadStates(Mapping[str, object]):
    """States that remember which of them was read last: where an invariant fails, it is mostly that one."""

    def __init__(self, states: Mapping[str, object]) -> None:
        self._states = states
        self._last: str | None = None

    def __getitem__(self, agent: str) -> object:
        self._last = agent
        return self._states[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def told(self) -> str:
        """Which one, to be said behind a place in the code."""
        if self._last is None:
            return "; it read no state"
        if self._last not in self._states:
            return f"; there is no agent {self._last!r}"
        try:
            shown = repr(self._states[self._last])
        except Exception as error:  # the user's own repr
            shown = f"<its repr raised {type(error).__name__}>"
        if len(shown) > STATE_SHOWN:
            shown = f"{shown[:STATE_SHOWN]}…"
        return f"; the last state it read: {self._last}, {' '.join(shown.split())}"


def _line_of(error: Exception, below: int | None = None) -> str:
    """Where it was raised; or the line of the frame so far below ours, on the way there."""
    frames = traceback.extract_tb(error.__traceback__)
    found = frames[-1] if below is None else frames[: below + 1][-1]
    return f"{found.filename}:{found.lineno}"


def _place_of(question: Callable[[_Seen], object]) -> str:
    """Where it is defined."""
    code = getattr(question, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(type(question), "__qualname__", "a callable")
    )
