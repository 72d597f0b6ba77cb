"""The patterns by name."""

from collections.abc import Callable

from snapline.agent_runtime.fleet import load_fleet
from snapline.errors import MisuseError
from snapline.sim.scenario import FleetPart, duration_ns
from snapline.sim.workloads.astray import make_astray
from snapline.sim.workloads.calls import make_calls
from snapline.sim.workloads.domino import make_domino
from snapline.sim.workloads.examples import make_bank_example, make_pagerank
from snapline.sim.workloads.failing import make_failing
from snapline.sim.workloads.memory import make_memory
from snapline.sim.workloads.orders import make_orders
from snapline.sim.workloads.paying import make_paying
from snapline.sim.workloads.planning import make_planning
from snapline.sim.workloads.returning import make_returning
from snapline.sim.workloads.rounds import make_all_to_all, make_grid
from snapline.sim.workloads.sources import make_bursts, make_lanes, make_skewed
from snapline.sim.workloads.spawning import make_spawning
from snapline.sim.workloads.stepping import make_stepping
from snapline.sim.workloads.walks import make_bank, make_walk
from snapline.sim.workloads.workload import SECOND_NS, RestingWorkload, Workload, varied

_PATTERNS: dict[str, tuple[Callable[[FleetPart], Workload], str]] = {
    "ring": (make_walk, "tokens go round"),
    "pipeline": (make_lanes, "items pass through lanes of stages, from a source to a sink"),
    "star": (make_walk, "a hub answers its leaves in turn"),
    "tree": (make_walk, "tokens go up and down a binary tree"),
    "random": (make_walk, "tokens go to any neighbour in a graph of degree 4, which is complete up to 9 agents"),
    "clusters": (make_walk, "tokens that mostly stay in their cluster of 4"),
    "all-to-all": (make_all_to_all, "rounds: everybody sends to all others, then waits for all of them"),
    "grid": (make_grid, "rounds: everybody exchanges borders with up to 4 neighbours"),
    "request-reply": (make_calls, "calls through a chain of two servers, and back"),
    "skewed": (make_skewed, "producers with shares like 1, 1/2, 1/3 …, most of it for the first agents"),
    "cyclic": (make_lanes, "a dataflow with a loop that every item goes round three times"),
    "bursts": (make_bursts, "everybody sends 8 messages at once, then pauses"),
    "bank": (make_bank, "tokens that carry money, whose sum never changes"),
    "domino": (make_domino, "agents that checkpoint after each receive: without forced checkpoints all are useless"),
    "failing": (make_failing, "timers send to all in turn, and every tenth message of a channel cannot be handled"),
    "spawning": (make_spawning, "agents that spawn others, which stop after a few messages"),
    "crashing": (make_failing, "the same, and one message in all crashes each receiver: the fleet goes back for it"),
    "astray": (make_astray, "messages for nobody, and agents that all others want to create: dead letters of senders"),
    "stepping": (make_stepping, "tokens, among agents whose turns wait for steps"),
    "planning": (make_planning, "plans of many steps, calls and waits, one after another: durable turns"),
    "paying": (make_paying, "orders that are paid outside, in effects and sagas; what is paid is what the states say"),
    "returning": (make_returning, "tokens, among agents that have the whole fleet go back now and then"),
    "memory": (make_memory, "tokens, among agents with a history and an array each: states with parts"),
    "orders": (make_orders, "the example: steps, failures, dead letters, agents that stop; money is conserved"),
    "pagerank": (make_pagerank, "the example: PageRank of a small graph; mass is conserved"),
    "bank-example": (make_bank_example, "the example: tokens change hands; their sum is conserved"),
}

PATTERNS: dict[str, str] = {name: description for name, (_, description) in _PATTERNS.items()}
"""Name → what it is."""


def make_workload(fleet: FleetPart) -> Workload:
    """The workload of a scenario: one of the patterns, or the user's own fleet, as it is, of which nothing is known.

    `rate_per_s` is that of the whole fleet, about, and at most. `messages` too: patterns send exactly so many, or as many as
    come closest in whole items, calls or rounds.

    Raises:
        MisuseError: there is no such pattern, or the agents are too few, or too many for it.
        FleetDefinitionError: the trigger does not fit the protocol, or the user's fleet cannot be loaded.
    """
    if fleet.module:
        own = load_fleet(fleet.module, fleet.arguments)
        return RestingWorkload(varied(own, fleet)) if fleet.is_varied else Workload(own)
    if fleet.pattern.name not in _PATTERNS:
        raise MisuseError(f"fleet.pattern.name is {fleet.pattern.name!r}: use one of {', '.join(PATTERNS)}")
    make, _ = _PATTERNS[fleet.pattern.name]
    made = make(fleet)
    made.fleet.log_bytes_max = fleet.log_bytes_max or made.fleet.log_bytes_max
    if fleet.epoch_timeout:
        made.fleet.epoch_timeout_s = duration_ns(fleet.epoch_timeout) / SECOND_NS
    return made
