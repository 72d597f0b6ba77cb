"""Shared parts of a simulated world: time, choices, disks, the network and the observers."""

import traceback
from collections.abc import Callable

from snapline.sim.choices import Choices, RandomStreams
from snapline.sim.oracles.judge import Judge, JudgeTerms
from snapline.sim.oracles.line_oracles import ExpectedRetention
from snapline.sim.result import ExecutedFault, Violation
from snapline.sim.scenario import Scenario, coordinator_names, host_names
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.counters import RunCounters
from snapline.sim.world.kernel import Clocks, Journal, Kernel, NotSimulatedError
from snapline.sim.world.network import Network
from snapline.sim.world.output_injector import OutputInjector
from snapline.sim.world.points import Points
from snapline.sim.world.recording import Recording
from snapline.sim.world.stores import Stores
from snapline.sim.world.tracing import SharedTrace
from snapline.storage.retention.retention_policy import parse_policy

CLOCKS_AGENTS_MAX = 16
"""Largest fleet with vector clocks, whose cost per turn grows with the number of agents. In larger fleets only counts are compared."""


class WorldState:
    """State shared by the parts of one world.

    Attributes:
        kernel, network, clocks, stores, points: simulated environment of this run. choices: source of all its choices.
        workload: workload with its fleet.
        judge: oracles. speech: injector of outputs. journal, figures: journal and counters, filled by all parts.
        recording, trace: recording and trace, if requested.
        hosts, coordinators, agents: all possible names.
        random_of: source of `ctx.random()`: a stream for each agent, so that another order of turns draws the same numbers.
        faults: executed faults.
        misuse: reason why the user's agents cannot be simulated.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        choices: Choices,
        workload: Workload,
        *,
        recording: Recording | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.scenario = scenario
        self.choices = choices
        self.workload = workload
        self.journal = journal or Journal()
        self.kernel = Kernel()
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents = tuple(workload.fleet.agents)
        self.network = _network_of(scenario, self.kernel, choices)
        self.judge = _judge_of(scenario, workload)
        self.output_injector = OutputInjector(choices, self.judge.books, scenario.outputs.one_in)
        self.clocks = Clocks(self.kernel)
        self.points = Points()
        self.random_of = RandomStreams(seed, "agent").random
        self.figures = RunCounters()
        self.stores = Stores(seed, choices, scenario.store.delay, lambda: self.kernel.now_ns)
        self.recording = recording
        self.trace = SharedTrace(self.kernel, recording, self.agents) if recording is not None else None
        self.faults: list[ExecutedFault] = []
        self.misuse = ""

    def call_at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Schedule a call at that time."""
        self.kernel.at(t_ns, _call, call)

    def say(self, oracle: str, guarantee: str, text: str) -> None:
        """Report a violation that the world itself has detected."""
        self.judge.violations.append(Violation(oracle, guarantee, self.kernel.now_ns, text))

    def misused(self, why: str) -> None:
        """End the run, since the user's code cannot be simulated."""
        self.misuse = self.misuse or why
        self.kernel.is_over = True

    def core_failed(self, node: str, error: Exception) -> None:
        """Report an error of the product as a violation. Re-raise an error of the simulator itself, which makes the run "broken"."""
        if isinstance(error, NotSimulatedError):
            self.misused(str(error))
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        if "/sim/" in where.filename:
            raise error
        if not self.kernel.is_over:
            place = f"{where.name}, {where.filename.rpartition('/')[2]}:{where.lineno}"
            self.judge.on_core_failed(self.kernel.now_ns, node, error, place)
        self.kernel.is_over = True


def _network_of(scenario: Scenario, kernel: Kernel, choices: Choices) -> Network:
    delay = scenario.network.delay
    paths = {
        (sender, receiver): (path.least_ns, path.jitter_ns)
        for name, path in scenario.network.paths.items()
        for sender, _, receiver in [name.partition(">")]
    }
    return Network(kernel, choices, least_ns=delay.least_ns, jitter_ns=delay.jitter_ns, paths=paths)


def _judge_of(scenario: Scenario, workload: Workload) -> Judge:
    fleet = workload.fleet
    is_small = len(fleet.agents) <= CLOCKS_AGENTS_MAX
    terms = JudgeTerms(
        protocol=fleet.protocol,
        budget=scenario.budget,
        check_cut=workload.check_cut,
        with_clocks=is_small,
        with_replay=is_small,
        is_own=bool(scenario.fleet.module),
        wanted=_wanted(scenario) if scenario.run.retention else None,
    )
    return Judge(terms, fleet=fleet, agents=tuple(fleet.agents))


def _wanted(scenario: Scenario) -> ExpectedRetention:
    policy, limits = parse_policy(scenario.run.retention), scenario.limits
    hour_s, day_s = limits.get("hour_s", 3600), limits.get("day_s", 86_400)
    return ExpectedRetention(policy.keep_last, policy.hourly, policy.daily, hour_s * 1000, day_s * 1000)


def _call(call: Callable[[], None]) -> None:
    call()
