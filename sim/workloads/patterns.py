"""Catalogue of the traffic patterns."""

import importlib
from collections.abc import Callable
from functools import cache

from snapline.agent_runtime.fleet import load_fleet
from snapline.errors import UsageError
from snapline.sim.scenario import FleetPart, PatternPart, duration_ns
from snapline.sim.workloads.workload import UserWorkload, Workload, checked, user_workload, with_protocol
from snapline.sim.world.kernel import SECOND_NS

_PATTERNS: dict[str, tuple[str, str]] = {
    "ring": ("walks:make_walk", "tokens go round"),
    "pipeline": ("traffic:make_lanes", "items pass through lanes of stages, from a source to a sink"),
    "star": ("walks:make_walk", "a hub answers its leaves in turn"),
    "tree": ("walks:make_walk", "tokens go up and down a binary tree"),
    "random": (
        "walks:make_walk",
        "tokens go to any neighbour in a graph of degree 4, which is complete up to 9 agents",
    ),
    "clusters": ("walks:make_walk", "tokens that mostly stay in their cluster of 4"),
    "all-to-all": ("traffic:make_all_to_all", "rounds: everybody sends to all others, then waits for all of them"),
    "grid": ("traffic:make_grid", "rounds: everybody exchanges borders with up to 4 neighbours"),
    "request-reply": ("traffic:make_calls", "calls through a chain of two servers, and back"),
    "skewed": ("traffic:make_skewed", "producers with shares like 1, 1/2, 1/3 …, most of it for the first agents"),
    "cyclic": ("traffic:make_lanes", "a dataflow with a loop that every item goes round three times"),
    "bursts": ("traffic:make_bursts", "everybody sends 8 messages at once, then pauses"),
    "bank": ("walks:make_bank", "tokens that carry money, whose sum never changes"),
    "domino": (
        "example_fleets:make_domino",
        "agents that checkpoint after each receive: without forced checkpoints all are useless",
    ),
    "failing": (
        "dead_letter_patterns:make_failing",
        "timers send to all in turn, and every tenth message of a channel cannot be handled",
    ),
    "spawning": ("spawning:make_spawning", "agents that spawn others, which stop after a few messages"),
    "crashing": (
        "dead_letter_patterns:make_failing",
        "the same, and one message in all crashes each receiver: the fleet goes back for it",
    ),
    "killing": (
        "dead_letter_patterns:make_failing",
        "the same, and it kills the process of each receiver",
    ),
    "astray": (
        "dead_letter_patterns:make_astray",
        "messages for nobody, and agents that all others want to create: dead letters of senders",
    ),
    "stepping": ("walks:make_stepping", "tokens, among agents whose turns wait for steps"),
    "planning": ("planning:make_planning", "plans of many steps, calls and waits, one after another: durable turns"),
    "paying": (
        "paying:make_paying",
        "orders that are paid outside, in effects and sagas; what is paid is what the states say",
    ),
    "booking": (
        "booking:make_booking",
        "requests whose durable turns are drawn: steps, effects of all kinds, calls, waits, sagas",
    ),
    "booking-until": (
        "booking:make_booking",
        "the same, and the fleet ends by stop_when while clients still send inputs",
    ),
    "returning": ("walks:make_returning", "tokens, among agents that have the whole fleet go back now and then"),
    "memory": ("walks:make_memory", "tokens, among agents with a history and an array each: states with parts"),
    "orders": (
        "example_fleets:make_orders",
        "the example: steps, failures, dead letters, agents that stop; money is conserved",
    ),
    "pagerank": ("example_fleets:make_pagerank", "the example: PageRank of a small graph; mass is conserved"),
    "bank-example": ("example_fleets:make_bank_example", "the example: tokens change hands; their sum is conserved"),
}
"""Maps each pattern's name to the "module:function" that creates the workload, and to the pattern's description. A
module is imported only when it is used, because some modules load NumPy."""

PATTERNS: dict[str, str] = {name: description for name, (_, description) in _PATTERNS.items()}
"""Each pattern's description, by the pattern's name."""


def make_workload(fleet: FleetPart) -> Workload:
    """Return the workload of a scenario: either one of the patterns or the user's own fleet.

    `rate_per_s` is the approximate maximum message rate of the whole fleet, in messages per second. `messages` is the number of messages
    that the whole fleet sends. A pattern sends exactly this number of messages, or the closest number that completes all items, calls or
    rounds.

    Raises:
        UsageError: If the pattern does not exist, or if it does not support the scenario's number of agents.
        FleetDefinitionError: If the checkpoint trigger is not valid for the protocol, or if the user's fleet cannot be loaded.
    """
    if fleet.module:
        own = load_fleet(fleet.module, fleet.arguments)
        return checked(UserWorkload(with_protocol(own, fleet)) if fleet.is_varied else user_workload(own), fleet)
    if fleet.pattern.name not in _PATTERNS:
        raise UsageError(f"fleet.pattern.name is {fleet.pattern.name!r}: use one of {', '.join(PATTERNS)}")
    workload = _maker_of(fleet.pattern.name)(fleet)
    workload.fleet.recovery = fleet.recovery
    workload.fleet.log_bytes_max = fleet.log_bytes_max or workload.fleet.log_bytes_max
    if fleet.epoch_timeout:
        workload.fleet.epoch_timeout_s = duration_ns(fleet.epoch_timeout) / SECOND_NS
    return workload


@cache
def takes_inputs(pattern: str) -> bool:
    """Return whether a pattern's agents accept inputs from clients."""
    return make_workload(FleetPart(pattern=PatternPart(name=pattern))).takes_inputs


def _maker_of(pattern: str) -> Callable[[FleetPart], Workload]:
    module, _, name = _PATTERNS[pattern][0].partition(":")
    maker: Callable[[FleetPart], Workload] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return maker
