"""Subject of a command of `snapline sim`: a scenario from a file, by name, or around the user's own fleet; and seeds."""

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from snapline.cli.options import FleetArguments, allow_current_folder, parse_arguments
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.scenario import Scenario
    from snapline.sim.search.worker import Runner

RUNS = Path("runs")
"""Parent of run folders."""

SEEDS_MAX = 10_000_000
"""Most seeds of one command: a day's work; more is a typo."""

GIT_TIMEOUT_S = 5.0

DEFAULT_FAULTS: Final = "crashes"
"""The template around a user's own fleet; the same as in `sim/checking.py`, which is not loaded for --help."""

HOSTS: Final = 3
COORDINATORS: Final = 3
"""Sizes for a user's own fleet, unless the faults are from a file: a majority can be lost, and kept."""

ScenarioWord = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A TOML file; MODULE:FLEET, your own agents; or a built-in template: "
        "quiet, crashes, partitions, disks, coordinator, orders, swarm.",
    ),
]
RunOrScenario = Annotated[
    str, typer.Argument(metavar="FOLDER|SCENARIO", help="The folder of a run, or a scenario as for `sim run`.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="The run's seed.", show_default="0")]
Seeds = Annotated[str, typer.Option("--seeds", metavar="A:B", help="Seeds from A up to, not including, B; or A,B,C.")]


@dataclass(frozen=True)
class ScenarioChanges:
    """Changes to a scenario by options."""

    arg: FleetArguments = None
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="SCENARIO",
            help="For MODULE:FLEET: the template, or file, whose faults and network it gets.",
            show_default=DEFAULT_FAULTS,
        ),
    ] = None
    protocol: Annotated[
        str | None, typer.Option("--protocol", metavar="NAME", help="This protocol.", show_default=False)
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="NAME", help="This workload (`sim workloads`).", show_default=False),
    ] = None
    hosts: Annotated[
        int | None,
        typer.Option("--hosts", min=1, metavar="N", help="So many hosts; at most, if drawn.", show_default=False),
    ] = None
    agents: Annotated[
        int | None,
        typer.Option("--agents", min=1, metavar="N", help="So many agents; at most, if drawn.", show_default=False),
    ] = None
    invariant: Annotated[
        str | None,
        typer.Option(
            "--invariant",
            metavar="MODULE:FUNCTION",
            help="For MODULE:FLEET: a function of a snapline.Cut that asserts what must hold in every complete cut.",
            show_default=False,
        ),
    ] = None
    at_end: Annotated[
        str | None,
        typer.Option(
            "--at-end",
            metavar="MODULE:FUNCTION",
            help="The same, of the states of the fleet at rest.",
            show_default=False,
        ),
    ] = None
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="MODULE:NAME|FILE",
            help="For MODULE:FLEET: what clients give to it, a list or function of (agent, message) or a file of JSON lines.",
            show_default=False,
        ),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, max=16, metavar="N", help="Clients that give the inputs.", show_default="2"),
    ] = None
    restores: Annotated[
        int | None,
        typer.Option(
            "--restores",
            min=0,
            metavar="N",
            help="For MODULE:FLEET: restores of an earlier snapshot.",
            show_default="0",
        ),
    ] = None
    moves: Annotated[
        int | None,
        typer.Option(
            "--moves",
            min=0,
            metavar="N",
            help="For MODULE:FLEET: times that an operator drains a host or spreads agents.",
            show_default="0",
        ),
    ] = None
    mutant: Annotated[str, typer.Option("--mutant", hidden=True, help="Put in a seeded bug of sim/mutants/.")] = ""

    def words(self) -> list[str]:
        """The same options as arguments."""
        given = {
            "--faults": self.faults,
            "--protocol": self.protocol,
            "--pattern": self.pattern,
            "--hosts": self.hosts,
            "--agents": self.agents,
            "--invariant": self.invariant,
            "--at-end": self.at_end,
            "--inputs": self.inputs,
            "--clients": self.clients,
            "--restores": self.restores,
            "--moves": self.moves,
            "--mutant": self.mutant or None,
        }
        words = [word for pair in self.arg or () for word in ("--arg", pair)]
        return words + [word for name, value in given.items() if value is not None for word in (name, str(value))]

    def template(self, word: str) -> "Scenario":
        """The scenario that `word` and these options name, not drawn yet.

        Raises:
            UsageError: there is none, it cannot be read, or the options do not fit it.
        """
        from snapline.sim.faults.faults import check_budget

        if is_reference(word):
            found = self._around_fleet(word)
        else:
            self._refuse_of_fleets(word)
            found = read_scenario(word)
            check_fleet(found)
        changed = self._changed(found)
        check_budget(changed)
        return changed

    def _refuse_of_fleets(self, word: str) -> None:
        of_fleets = {
            "--arg": self.arg,
            "--faults": self.faults,
            "--invariant": self.invariant,
            "--at-end": self.at_end,
            "--inputs": self.inputs,
            "--clients": self.clients,
            "--restores": self.restores,
            "--moves": self.moves,
        }
        for name, value in of_fleets.items():
            if value:
                raise UsageError(f"{name} is for MODULE:FLEET, and {word!r} is a scenario: leave it out")

    def _around_fleet(self, word: str) -> "Scenario":
        """A scenario whose fleet is the user's. Its protocol and agents are the fleet's."""
        import msgspec

        from snapline.agent_runtime.fleet import load_function
        from snapline.cli.fleets import check_reference, load, make_agents
        from snapline.sim.scenario import FleetPart
        from snapline.sim.search.coverage import turns_of
        from snapline.sim.workloads import make_workload

        check_reference(word)
        arguments = parse_arguments(self.arg)
        fleet = load(word, arguments)
        make_agents(fleet)
        for name in filter(None, (self.invariant, self.at_end)):
            load_function(name)
        faults = read_scenario(self.faults or DEFAULT_FAULTS)
        is_built_in = faults.swarm is not None and faults.fleet == FleetPart()
        part = FleetPart(
            agents=len(fleet.agents),
            hosts=min(HOSTS, len(fleet.agents)) if is_built_in else faults.fleet.hosts,
            coordinators=COORDINATORS if is_built_in else faults.fleet.coordinators,
            protocol=fleet.protocol,
            module=word,
            arguments=arguments,
            invariant=self.invariant or "",
            at_end=self.at_end or "",
        )
        swarm = faults.swarm and msgspec.structs.replace(faults.swarm, protocols=[fleet.protocol])
        made = msgspec.structs.replace(faults, name=f"{fleet.name}-{faults.name}", fleet=part, swarm=swarm)
        made = self._used(made)
        if faults.run.turns:
            return made
        return msgspec.structs.replace(
            made, run=msgspec.structs.replace(made.run, turns=turns_of(made, lambda: make_workload(part)))
        )

    def _used(self, scenario: "Scenario") -> "Scenario":
        """Add the clients, restores and moves that the options name."""
        import msgspec

        from snapline.sim.checking import clients_of
        from snapline.sim.workloads.given import GivenInputs

        if self.clients is not None and self.inputs is None:
            raise UsageError("--clients says how many give inputs: say which with --inputs")
        changed = scenario
        if self.inputs is not None:
            clients = clients_of(GivenInputs(self.inputs), self.inputs, self.clients)
            changed = msgspec.structs.replace(changed, clients=clients)
        restores = _replaced(changed.restores, times=self.restores)
        return msgspec.structs.replace(changed, restores=restores, run=_replaced(changed.run, moves=self.moves))

    def _changed(self, scenario: "Scenario") -> "Scenario":
        import msgspec

        from snapline.sim.scenario import format_scenario, parse_scenario

        fleet, swarm = scenario.fleet, scenario.swarm
        of_pattern = {"--protocol": self.protocol, "--pattern": self.pattern, "--agents": self.agents}
        given = [name for name, value in of_pattern.items() if value is not None]
        if fleet.module and given:
            raise UsageError(f"{given[0]} is for built-in workloads: {fleet.module} says by itself what it runs")
        if not given and self.hosts is None:
            return scenario
        pattern = _replaced(fleet.pattern, name=self.pattern)
        fleet = _replaced(fleet, protocol=self.protocol, pattern=pattern, hosts=self.hosts, agents=self.agents)
        if swarm is not None:
            swarm = _replaced(
                swarm,
                protocols=self.protocol and [self.protocol],
                patterns=self.pattern and [self.pattern],
                hosts_max=self.hosts,
                agents_max=self.agents,
            )
        changed = msgspec.structs.replace(scenario, fleet=fleet, swarm=swarm)
        return parse_scenario(format_scenario(changed), source="the options")  # checks what they say

    def runner(self) -> "Runner":
        """Return the runner.

        Raises:
            UsageError: there is no such mutant.
        """
        return runner_of(self.mutant)

    def refuse(self, folder: Path) -> None:
        """Reject options next to the folder of a run.

        Raises:
            UsageError: an option wants to change it.
        """
        given = [word for word in self.words() if word.startswith("--") and word != "--mutant"]
        if given:
            raise UsageError(f"{given[0]} cannot change {folder}, which is of a run: leave it out, or name a scenario")

    def repeat(self, word: str, seed: int | str, verb: str = "run") -> str:
        """The line that runs one seed again."""
        return shlex.join(["snapline", "sim", verb, word, "--seed", str(seed), *self.words()])


def _replaced(struct: Any, **fields: object) -> Any:  # Any: a struct of whatever type, and the same type comes back
    import msgspec

    return msgspec.structs.replace(struct, **{name: value for name, value in fields.items() if value is not None})


def runner_of(mutant: str) -> "Runner":
    """`snapline.sim.run.run`, perhaps with a seeded bug.

    Raises:
        UsageError: there is no such mutant, or none can be put in here.
    """
    from functools import partial

    from snapline.sim.mutants import MUTANTS, check_replaceable
    from snapline.sim.run import run

    if not mutant:
        return run
    if mutant not in MUTANTS:
        raise UsageError(f"--mutant {mutant!r} is not known: use one of {', '.join(MUTANTS)}")
    check_replaceable()
    return partial(run, mutant=mutant)


def is_reference(word: str) -> bool:
    """MODULE:FLEET, and no file that happens to have a colon in its name."""
    return ":" in word and not Path(word).exists()


def read_scenario(word: str) -> "Scenario":
    """The built-in template, or the file, of that name.

    Raises:
        UsageError: there is neither, or the file cannot be read.
    """
    from snapline.sim.scenario import parse_scenario
    from snapline.sim.search.swarm import BUILT_IN

    path = Path(word)
    if word in BUILT_IN and not path.is_file():
        return BUILT_IN[word]
    if not path.is_file():
        raise UsageError(
            f"there is no scenario {word!r}: give a TOML file, MODULE:FLEET, or one of {', '.join(BUILT_IN)}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return parse_scenario(text, source=word)


def check_fleet(scenario: "Scenario") -> None:
    """Find a misspelt `fleet.module` before anything runs; does nothing for a workload of ours.

    Raises:
        FleetDefinitionError: there is no such module.
    """
    from snapline.cli.fleets import check_reference

    if scenario.fleet.module:
        allow_current_folder()
        check_reference(scenario.fleet.module)


def run_folder(word: str) -> Path | None:
    """The folder of a run, if `word` names one, or the folder above it; None for a scenario.

    Raises:
        UsageError: a folder without a run.
    """
    from snapline.sim.report.folder import LATEST, RESULT
    from snapline.sim.search.swarm import BUILT_IN

    path = Path(word)
    if not path.is_dir():
        return None
    for folder in (path, path / LATEST):
        if (folder / RESULT).exists():
            # Not by the name of a link that points elsewhere tomorrow.
            return folder.parent / folder.readlink() if folder.is_symlink() else folder
    if word in BUILT_IN:
        return None
    raise UsageError(f"{path} holds no run: name a folder with {RESULT}, such as runs/NAME/{LATEST}")


def the_run_folder(word: str) -> Path:
    """The same, for commands that need one.

    Raises:
        UsageError: it is none.
    """
    folder = run_folder(word)
    if folder is None:
        raise UsageError(f"there is no folder {word!r} of a run: `snapline sim run` makes them, under {RUNS}/")
    return folder


def parse_seeds(text: str) -> Sequence[int]:
    """`"0:100"` without its end, `"7"`, `"1,5,9"`, or some of these with commas between.

    Raises:
        UsageError: it is not of this form, names a seed twice, or too many.
    """
    ranges = [_seed_range(part.strip(), text) for part in text.split(",")]
    if sum(map(len, ranges)) > SEEDS_MAX:
        raise UsageError(f"--seeds {text!r} are more than {SEEDS_MAX:,}: sweep them in parts")
    if len(ranges) == 1:
        return ranges[0]
    seeds = [seed for part in ranges for seed in part]
    if len(dict.fromkeys(seeds)) < len(seeds):
        raise UsageError(f"--seeds {text!r} names a seed twice: give each once")
    return seeds


def _seed_range(part: str, text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,18})(?::([0-9]{1,18}))?", part)
    if match is None:
        raise UsageError(f"--seeds {text!r} are no seeds: write 0:100 (without 100), 7, or 1,5,9")
    first = int(match[1])
    found = range(first, first + 1 if match[2] is None else int(match[2]))
    if not found:
        raise UsageError(f"--seeds {text!r} has an empty range: the first seed must be below the end")
    return found


def parse_list(text: str, option: str) -> list[str]:
    """`"a, b"` as `["a", "b"]`.

    Raises:
        UsageError: an empty one, or one twice.
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found) or len(dict.fromkeys(found)) < len(found):
        raise UsageError(f"{option} {text!r} is no list: write A,B, each once")
    return found


def commit_of_code(run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run) -> str:
    """The commit of this snapline, with "-dirty" if files have changed since; its version if it is no checkout."""
    import snapline

    here = Path(snapline.__file__).resolve()
    version = f"v{snapline.__version__}"
    try:
        # Installed into somebody's environment, the checkout around us is not ours: is this very file of it?
        for arguments in (
            ["ls-files", "--error-unmatch", here.name],
            ["describe", "--always", "--dirty", "--abbrev=12"],
        ):
            done = run(
                ["git", "-C", str(here.parent), *arguments],
                capture_output=True,
                text=True,
                timeout=GIT_TIMEOUT_S,
                check=True,
            )
        return done.stdout.strip() or version
    except (OSError, subprocess.SubprocessError):
        return version
