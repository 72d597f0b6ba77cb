"""Determines the scenario and the seeds for a `snapline sim` command. A scenario comes from a file or a built-in template, or is built for
the user's own fleet."""

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from snapline.cli.command import RUNS, FleetArguments, allow_current_folder, parse_arguments
from snapline.errors import UsageError

if TYPE_CHECKING:
    from snapline.sim.scenario import Scenario

SEEDS_MAX = 10_000_000
"""Largest number of seeds for one command. This many seeds take a day, and a larger number is probably a typo."""

GIT_TIMEOUT_S = 5.0

DEFAULT_FAULTS: Final = "crashes"
"""Template of the faults for a user's own fleet. The template is the same as in `sim/checking.py`, which is not imported here so that
--help stays fast."""

HOSTS: Final = 3
COORDINATORS: Final = 3
"""Number of coordinators for a user's own fleet, unless a file defines the faults. With three, a majority can be lost or kept."""

ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A TOML file; MODULE:FLEET, your own agents; or a built-in template: quiet, crashes, partitions, disks, "
        "coordinator, orders, swarm.",
    ),
]
RunOrScenario = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|SCENARIO",
        help="Folder of a run, or the folder DIR/NAME for its latest run; or a scenario as for `sim run`.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of the run.", show_default="0")]
Seeds = Annotated[
    str, typer.Option("--seeds", metavar="A:B", help="Seeds from A up to, but not including, B; or A,B,C.")
]


@dataclass(frozen=True)
class ScenarioChanges:
    """Options that change a scenario."""

    arg: FleetArguments = None
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="SCENARIO",
            help="For MODULE:FLEET: template or file that defines faults and network.",
            show_default=DEFAULT_FAULTS,
        ),
    ] = None
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", metavar="NAME", help="Checkpointing protocol, instead of the scenario's.", show_default=False
        ),
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="NAME",
            help="Workload (`sim workloads`), instead of the scenario's.",
            show_default=False,
        ),
    ] = None
    hosts: Annotated[
        int | None,
        typer.Option(
            "--hosts",
            min=1,
            metavar="N",
            help="Number of hosts; the maximum, if the scenario draws the number.",
            show_default=False,
        ),
    ] = None
    agents: Annotated[
        int | None,
        typer.Option(
            "--agents",
            min=1,
            metavar="N",
            help="Number of agents; the maximum, if the scenario draws the number.",
            show_default=False,
        ),
    ] = None
    invariant: Annotated[
        str | None,
        typer.Option(
            "--invariant",
            metavar="MODULE:FUNCTION",
            help="For MODULE:FLEET: function of a snapline.Cut that asserts what must hold in every complete cut.",
            show_default=False,
        ),
    ] = None
    at_end: Annotated[
        str | None,
        typer.Option(
            "--at-end",
            metavar="MODULE:FUNCTION",
            help="For MODULE:FLEET: function that asserts what must hold for the states of the idle fleet at the end.",
            show_default=False,
        ),
    ] = None
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="MODULE:NAME|FILE",
            help="For MODULE:FLEET: inputs from clients: a list or function of (agent, message), or a file of JSON lines.",
            show_default=False,
        ),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients",
            min=1,
            max=16,
            metavar="N",
            help="For MODULE:FLEET: number of clients that send the inputs.",
            show_default="2",
        ),
    ] = None
    restores: Annotated[
        int | None,
        typer.Option(
            "--restores",
            min=0,
            metavar="N",
            help="For MODULE:FLEET: number of restores of an earlier snapshot; drawn in the template swarm.",
            show_default="0",
        ),
    ] = None
    moves: Annotated[
        int | None,
        typer.Option(
            "--moves",
            min=0,
            metavar="N",
            help="For MODULE:FLEET: number of times that an operator drains a host or spreads agents; drawn in the "
            "template swarm.",
            show_default="0",
        ),
    ] = None

    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="For MODULE:FLEET: answers of `answers export` that steps take. Without stubs, all other steps fail.",
            show_default=False,
        ),
    ] = None

    def words(self) -> list[str]:
        """Return these options as command-line arguments."""
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
            "--answers": self.answers,
        }
        words = [word for pair in self.arg or () for word in ("--arg", pair)]
        return words + [word for name, value in given.items() if value is not None for word in (name, str(value))]

    def template(self, word: str) -> "Scenario":
        """Return the scenario that `word` and these options specify, before any part of it is drawn at random.

        Raises:
            UsageError: If the scenario does not exist or is unreadable, or if the options are invalid for it.
        """
        from snapline.sim.faults.faults import check_budget

        if is_reference(word):
            base = self._scenario_for_fleet(word)
        else:
            self._reject_fleet_options(word)
            base = read_scenario(word)
            check_fleet(base)
        changed = self._changed(base)
        check_budget(changed)
        return changed

    def _reject_fleet_options(self, word: str) -> None:
        of_fleets = {
            "--arg": self.arg,
            "--faults": self.faults,
            "--invariant": self.invariant,
            "--at-end": self.at_end,
            "--inputs": self.inputs,
            "--clients": self.clients,
            "--restores": self.restores,
            "--moves": self.moves,
            "--answers": self.answers,
        }
        for name, value in of_fleets.items():
            if value:
                raise UsageError(f"{name} is for MODULE:FLEET, and {word!r} is a scenario: leave it out")

    def _scenario_for_fleet(self, word: str) -> "Scenario":
        """Return a scenario for the user's fleet, with the fleet's own protocol and agents."""
        import msgspec

        from snapline.agent_runtime.fleet import load_function
        from snapline.cli.fleet import check_reference, load, make_agents
        from snapline.sim.checking import turns_of
        from snapline.sim.scenario import FleetPart
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
            answers=self.answers or "",
        )
        swarm = faults.swarm and msgspec.structs.replace(faults.swarm, protocols=[fleet.protocol])
        scenario = msgspec.structs.replace(faults, name=f"{fleet.name}-{faults.name}", fleet=part, swarm=swarm)
        scenario = self._with_clients(scenario)
        if faults.run.turns:
            return scenario
        return msgspec.structs.replace(
            scenario, run=msgspec.structs.replace(scenario.run, turns=turns_of(scenario, lambda: make_workload(part)))
        )

    def _with_clients(self, scenario: "Scenario") -> "Scenario":
        """Add the clients, restores and moves that the options specify to the scenario."""
        import msgspec

        from snapline.sim.checking import clients_of
        from snapline.sim.workloads.workload import GivenInputs

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
        return parse_scenario(format_scenario(changed), source="the options")  # checks the values

    def refuse(self, folder: Path) -> None:
        """Reject options that would change the recorded run in `folder`.

        Raises:
            UsageError: If an option would change the run.
        """
        given = [word for word in self.words() if word.startswith("--")]
        if given:
            raise UsageError(f"{given[0]} cannot change {folder}, which is of a run: leave it out, or name a scenario")

    def repeat(self, word: str, seed: int | str, verb: str = "run") -> str:
        """Return the command line that reproduces the run with one seed."""
        return shlex.join(["snapline", "sim", verb, word, "--seed", str(seed), *self.words()])


def _replaced(struct: Any, **fields: object) -> Any:  # Any: any struct; the result has the same type
    import msgspec

    return msgspec.structs.replace(struct, **{name: value for name, value in fields.items() if value is not None})


def is_reference(word: str) -> bool:
    """Return whether `word` is a reference MODULE:FLEET and not the name of a file that contains a colon."""
    return ":" in word and not Path(word).exists()


def read_scenario(word: str) -> "Scenario":
    """Return the built-in template that `word` names, or the scenario in the file that `word` names.

    Raises:
        UsageError: If there is no such template or file, or the file is unreadable.
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
    """Check `fleet.module` for misspelt names before anything runs. For a built-in workload, do nothing.

    Raises:
        FleetDefinitionError: If the module does not exist.
    """
    from snapline.cli.fleet import check_reference

    if scenario.fleet.module:
        allow_current_folder()
        check_reference(scenario.fleet.module)


def run_folder(word: str) -> Path | None:
    """Return the folder of a recorded run, where `word` is the path of this folder or of its parent folder. Return None if `word` specifies
    a scenario instead.

    Raises:
        UsageError: If `word` is a folder that contains no run.
    """
    from snapline.sim.report.run_folder import LATEST, RESULT
    from snapline.sim.search.swarm import BUILT_IN

    path = Path(word)
    if not path.is_dir():
        return None
    for folder in (path, path / LATEST):
        if (folder / RESULT).exists():
            # Resolve the link, because it may point to another run later.
            return folder.parent / folder.readlink() if folder.is_symlink() else folder
    if word in BUILT_IN:
        return None
    raise UsageError(f"{path} holds no run: name a folder with {RESULT}, such as runs/NAME/{LATEST}")


def require_run_folder(word: str) -> Path:
    """Return the folder of the recorded run that `word` names. Commands that require a recorded run use this function.

    Raises:
        UsageError: If `word` does not name a recorded run.
    """
    folder = run_folder(word)
    if folder is None:
        raise UsageError(f"there is no folder {word!r} of a run: `snapline sim run` makes them, under {RUNS}/")
    return folder


def parse_seeds(text: str) -> Sequence[int]:
    """Parse seeds such as `"0:100"` (without 100), `"7"`, `"1,5,9"`, or a comma-separated combination of these forms.

    Raises:
        UsageError: If the text has any other form, contains a seed twice, or contains too many seeds.
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
    seeds = range(first, first + 1 if match[2] is None else int(match[2]))
    if not seeds:
        raise UsageError(f"--seeds {text!r} has an empty range: the first seed must be below the end")
    return seeds


def parse_list(text: str, option: str) -> list[str]:
    """Split `"a, b"` into `["a", "b"]`.

    Raises:
        UsageError: If an item is empty or occurs twice.
    """
    items = [part.strip() for part in text.split(",")]
    if not all(items) or len(dict.fromkeys(items)) < len(items):
        raise UsageError(f"{option} {text!r} is no list: write A,B, each once")
    return items


def commit_of_code(run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run) -> str:
    """Return the commit of the running snapline code, with "-dirty" appended if files have changed.

    If the code is not in a Git checkout, return the version of snapline.
    """
    import snapline

    here = Path(snapline.__file__).resolve()
    version = f"v{snapline.__version__}"
    try:
        # snapline may be installed inside another project's checkout, so check that git tracks this very file.
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
