"""How fast the simulator is, against its goals (design of simulation, section 12).

    python benchmarks/sim.py [rounds] [part ...]

Parts: kernel, fleet, seeds, explorer, pace; all of them if left out. The parts take turns for so many rounds (3), so that a
busy minute of the machine meets all of them, and the best round counts: a neighbour only ever makes things slower. Every part
of a round has a process of its own, whose CPU seconds and memory are its own.

    kernel    tokens passed between agents through `sim.world.kernel.Kernel`, with FIFO channels kept in a dict, and drawn delays; also
              through simpy, where it is installed
    fleet     10,000 agents on four hosts exchange 300,000 messages, with one epoch in their midst: production cores, agents,
              leader and store, and every oracle that applies at this size
    seeds     the standard swarm, all protocols, patterns and faults, with fleets of 5 agents that send 400 messages on 2 or 3
              hosts: two processes at once, seconds by the clock
    explorer  every state of 3 agents that send once each, with one crash, over all protocols
    pace      10 agents that send 100 messages a second for a minute, and checkpoint every half second
"""

import gc
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random

import msgspec

from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.run import run
from snapline.sim.scenario import (
    FaultPart,
    FleetPart,
    LivenessPart,
    PatternPart,
    RunPart,
    Scenario,
    SwarmPart,
    TriggerPart,
)
from snapline.sim.search.swarm import draw
from snapline.sim.search.worker import CONTAINERS_MAX
from snapline.sim.world.kernel import Kernel

Figures = dict[str, float]

DEGREE = 4
LEAST_NS, JITTER_NS = 1_000_000, 4_000_000
KERNEL_EVENTS = 400_000
SEEDS, JOBS = 200, 2
HELD = ("events", "turns", "epochs_complete", "virtual_s", "not_passed")
"""Counts of a seed's content: generated runs grow with the simulator, so their time alone is meaningless."""

PART_LIMIT_S = 600.0
"""Time limit of a part, far more than any part takes."""

TARGETS: tuple[tuple[str, str, str, float], ...] = (
    ("kernel, 100 agents, events/s", "kernel_100_per_s", ">=", 800_000),
    ("kernel, 10,000 agents, events/s", "kernel_10000_per_s", ">=", 250_000),
    ("kernel : simpy, 100 agents", "simpy_100_ratio", ">=", 2.5),
    ("kernel : simpy, 10,000 agents", "simpy_10000_ratio", ">=", 2.5),
    ("10,000 agents, 300,000 messages, CPU s", "fleet_cpu_s", "<=", 5),
    ("10,000 agents, 300,000 messages, MB", "fleet_mb", "<=", 250),
    ("sweep on two cores, seeds/s", "seeds_per_s", ">=", 150),
    ("sweep, CPU ms per seed", "seed_cpu_ms", "<=", 13),
    ("explorer, states/s", "states_per_s", ">=", 40_000),
    ("virtual : real time, 10 agents", "pace_ratio", ">=", 100),
)


# ---- kernel -----------------------------------------------------------------------------------------------------------


class Tokens:
    """Each agent begins with one token and passes every token on to its next neighbour."""

    def __init__(self, agents: int) -> None:
        self.kernel = Kernel()
        self._random = Random(1).random
        self._last_ns: dict[tuple[int, int], int] = {}
        self._taken = [0] * agents
        self._receivers = neighbours(agents)
        for agent in range(agents):
            self.kernel.at(0, self._take, agent)

    def _take(self, agent: object) -> None:
        assert type(agent) is int
        count = self._taken[agent] = self._taken[agent] + 1
        receiver = self._receivers[agent][count % DEGREE]
        at_ns = self.kernel.now_ns + LEAST_NS + int(self._random() * JITTER_NS)
        channel = (agent, receiver)
        last_ns = self._last_ns.get(channel, 0)
        if at_ns <= last_ns:
            at_ns = last_ns + 1
        self._last_ns[channel] = at_ns
        self.kernel.at(at_ns, self._take, receiver)


def neighbours(agents: int) -> list[list[int]]:
    return [[(agent * 7 + step * 13 + 1) % agents for step in range(DEGREE)] for agent in range(agents)]


def events_per_s(agents: int) -> float:
    tokens = Tokens(agents)
    began_s = time.process_time()
    tokens.kernel.run(KERNEL_EVENTS)
    return KERNEL_EVENTS / (time.process_time() - began_s)


def simpy_events_per_s(agents: int) -> float:
    """The same with a process and a store for each agent, as simpy's documentation shows it."""
    import simpy  # type: ignore[import-not-found,unused-ignore]  # optional

    environment, random, receivers = simpy.Environment(), Random(1).random, neighbours(agents)
    boxes = [simpy.Store(environment) for _ in range(agents)]
    taken = [0] * agents

    def carry(receiver: int) -> Iterator[object]:
        yield environment.timeout(LEAST_NS + int(random() * JITTER_NS))
        yield boxes[receiver].put(1)

    def live(agent: int) -> Iterator[object]:
        while True:
            yield boxes[agent].get()
            taken[agent] += 1
            environment.process(carry(receivers[agent][taken[agent] % DEGREE]))

    for agent in range(agents):
        boxes[agent].put(1)
        environment.process(live(agent))
    began_s = time.process_time()
    environment.run(until=KERNEL_EVENTS // agents * (LEAST_NS + JITTER_NS // 2))
    return sum(taken) / (time.process_time() - began_s)


def measure_kernel() -> Figures:
    gc.disable()
    figures = {f"kernel_{agents}_per_s": events_per_s(agents) for agents in (100, 10_000)}
    if importlib.util.find_spec("simpy") is not None:
        for agents in (100, 10_000):
            figures[f"simpy_{agents}_ratio"] = figures[f"kernel_{agents}_per_s"] / simpy_events_per_s(agents)
    return figures


# ---- fleets -----------------------------------------------------------------------------------------------------------


def measure_fleet() -> Figures:
    pattern = PatternPart(name="random", messages=300_000)
    fleet = FleetPart(agents=10_000, hosts=4, pattern=pattern, trigger=TriggerPart(every="1500ms"))
    result = run(Scenario(name="large", fleet=fleet, run=RunPart(until="1ms")), 1)
    assert result.verdict == "pass", f"{result.verdict}: {result.violations} {result.pending} {result.error}"
    assert result.metrics["epochs_complete"] >= 1 and result.probes["channel state not empty"] == 1, result.metrics
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "fleet_cpu_s": result.cpu_s,
        "fleet_mb": peak_mb,
        "fleet_turns_per_s": result.metrics["turns"] / result.cpu_s,
    }


SWARM = Scenario(name="five", swarm=SwarmPart(agents_max=5, hosts_max=3))


def five_agents(seed: int) -> Scenario:
    """What the standard swarm draws, with five agents, 400 messages, and two hosts at the least."""
    drawn = draw(SWARM, seed)
    pattern = msgspec.structs.replace(drawn.fleet.pattern, messages=400)
    fleet = msgspec.structs.replace(drawn.fleet, agents=5, hosts=max(2, drawn.fleet.hosts), pattern=pattern)
    return msgspec.structs.replace(drawn, fleet=fleet)


def one_crash(seed: int) -> Scenario:
    """The usual case alone: epochs of chandy-lamport, each tenth of a second, and a host that dies and comes back."""
    pattern = PatternPart(name="random", messages=400)
    fleet = FleetPart(agents=5, hosts=2, pattern=pattern, trigger=TriggerPart(every="100ms"))
    crash = FaultPart(crash=CrashFault(host="h1", at="100ms", restart_after="200ms"))
    return Scenario(name="one-crash", fleet=fleet, fault=[crash])


def run_seeds(first: int, scenario_of: Callable[[int], Scenario]) -> Figures:
    """Every second seed from `first` on: CPU seconds, how many did not pass, and what they hold, in sums."""
    run(scenario_of(SEEDS), SEEDS)  # the first run imports modules
    gc.collect()
    gc.freeze()
    gc.disable()  # as a sweep's worker does
    began_s, held = time.process_time(), dict.fromkeys(HELD, 0.0)
    for seed in range(first, SEEDS, JOBS):
        result = run(scenario_of(seed), seed)
        held["not_passed"] += result.verdict != "pass"
        held["events"] += result.events
        for name in ("turns", "epochs_complete", "virtual_s"):
            held[name] += result.metrics.get(name, 0)
        if gc.get_count()[0] > CONTAINERS_MAX:
            gc.collect()
    return {"cpu_s": time.process_time() - began_s, **held}


def measure_seeds() -> Figures:
    return swept(five_agents)


def measure_plain() -> Figures:
    return {f"plain_{name}": value for name, value in swept(one_crash).items()}


def swept(scenario_of: Callable[[int], Scenario]) -> Figures:
    """Seeds on all cores."""
    with ProcessPoolExecutor(JOBS) as pool:
        list(pool.map(import_time, range(JOBS)))
        began_s = time.perf_counter()
        results = list(pool.map(run_seeds, range(JOBS), [scenario_of] * JOBS))
        took_s = time.perf_counter() - began_s
    total = {name: sum(each[name] for each in results) for name in ("cpu_s", *HELD)}
    return {
        "seeds_per_s": SEEDS / took_s,
        "seed_cpu_ms": total["cpu_s"] / SEEDS * 1000,
        "event_cpu_us": total["cpu_s"] / total["events"] * 1e6,
        **{f"seed_{name}": total[name] / SEEDS for name in HELD if name != "not_passed"},
        "seeds_not_passed": total["not_passed"],
    }


def import_time(_: int) -> float:
    """Starts a process of the pool."""
    time.sleep(0.2)
    return time.process_time()


def measure_explorer() -> Figures:
    from snapline.sim.explorer.exploration import EXPLORED, explore

    explored = [explore(protocol) for protocol in EXPLORED]
    assert all(each.is_complete and each.violation is None for each in explored)
    states, cpu_s = sum(each.states for each in explored), sum(each.cpu_s for each in explored)
    return {"states_per_s": states / cpu_s, "explorer_cpu_s": cpu_s}


def measure_pace() -> Figures:
    pattern = PatternPart(name="request-reply", messages=6_000, rate_per_s=100)
    fleet = FleetPart(agents=10, hosts=3, pattern=pattern)
    result = run(Scenario(name="pace", fleet=fleet, liveness=LivenessPart(within="120s")), 1)
    assert result.verdict == "pass", f"{result.verdict}: {result.violations} {result.pending} {result.error}"
    return {"pace_ratio": result.virtual_ns / 1e9 / result.cpu_s, "pace_virtual_s": result.virtual_ns / 1e9}


# ---- rounds -----------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Figures]] = {
    "kernel": measure_kernel,
    "fleet": measure_fleet,
    "seeds": measure_seeds,
    "plain": measure_plain,
    "explorer": measure_explorer,
    "pace": measure_pace,
}


def in_process(part: str) -> Figures:
    """One part in a new interpreter."""
    command = [sys.executable, __file__, "--part", part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PART_LIMIT_S, check=False)
    if done.returncode:
        print(f"{part} failed: {done.stderr.strip().splitlines()[-1:]}")
        return {}
    return msgspec.json.decode(done.stdout, type=Figures)


def best(name: str, values: list[float]) -> float:
    return max(values) if name.endswith(("per_s", "ratio")) else min(values)


def print_table(rounds: list[Figures]) -> None:
    print(f"{'':44}{'target':>12}{'best':>12}   all rounds")
    targets = {key: (label, sign, target) for label, key, sign, target in TARGETS}
    for key in [*targets, *(key for key in rounds[0] if key not in targets)]:
        label, sign, target = targets.get(key, (key, "", 0))
        values = [each[key] for each in rounds if key in each]
        digits = 0 if max(values, default=0) >= 1000 else 1
        goal = f"{sign} {target:,.10g}" if sign else ""
        measured = f"{best(key, values):,.{digits}f}" if values else "not measured"
        print(f"{label:44}{goal:>12}{measured:>12}   {'  '.join(f'{value:,.{digits}f}' for value in values)}")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--part"]:
        print(json.dumps(PARTS[arguments[1]]()))
        return
    count = next((int(argument) for argument in arguments if argument.isdigit()), 3)
    parts = [argument for argument in arguments if argument in PARTS] or list(PARTS)
    rounds: list[Figures] = []
    for _ in range(count):
        rounds.append({})
        for part in parts:
            rounds[-1].update(in_process(part))
    print_table(rounds)


if __name__ == "__main__":
    main()
