"""Explores every possible run of a small fleet under one protocol (`explore`).

The models (`epoch_model`, `chandy_lamport`, `round_model`, `logged_model`) define a fleet's steps, and `state_search` contains the search.
Within the bounds, the search covers every order of sends, deliveries, recorded states, decisions and crashes, and uses the production
cores. Each model documents which actions it combines into one step, and why this does not exclude any behaviour.

The models do not cover lost, duplicated or outdated frames on links (G9), stores (G11), effects (G12), agents that join or leave, or
interrupted recoveries.
"""

import time
from collections.abc import Callable

import msgspec

from snapline.errors import UsageError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS
from snapline.protocols.rules import RULES
from snapline.sim.explorer.chandy_lamport import PlainModel
from snapline.sim.explorer.epoch_model import StampedModel
from snapline.sim.explorer.logged_model import InducedModel
from snapline.sim.explorer.round_model import RoundModel
from snapline.sim.explorer.state_search import Bounds, Fault, Model, Search, SearchResult
from snapline.sim.result import Violation

__all__ = ["EXPLORED", "PLAIN_CHANDY_LAMPORT", "Bounds", "Exploration", "explore"]

PLAIN_CHANDY_LAMPORT = "chandy-lamport-plain"
"""Name of the Chandy-Lamport algorithm as published. No real fleet uses this protocol."""

EXPLORED = (PLAIN_CHANDY_LAMPORT, *PROTOCOLS)
"""Protocols that `explore` supports."""

ModelFactory = Callable[[Bounds], Model]

_MODELS: dict[str, ModelFactory] = {
    PLAIN_CHANDY_LAMPORT: PlainModel,
    CHANDY_LAMPORT: StampedModel,
    KOO_TOUEG: RoundModel,
}
"""Models of the protocols that do not have a checkpointing rule."""


class Exploration(msgspec.Struct):
    """Outcome of an exploration.

    Attributes:
        states: number of distinct states that were reached.
        depth: largest number of steps from the initial state to another state, by the shortest path.
        is_complete: whether all states that are possible within the bounds were reached.
        violation: the violation that was found, or None. The field `t_ns` of a violation contains the number of steps that lead to it.
        path: shortest sequence of steps that leads to the violation.
        uses_digests: whether states were compared only by their digests, so that two different states may have counted as equal. Currently
            always False.
    """

    protocol: str
    bounds: Bounds
    states: int
    transitions: int
    depth: int
    is_complete: bool
    violation: Violation | None
    path: list[str]
    cpu_s: float
    uses_digests: bool = False


def explore(protocol: str, bounds: Bounds | None = None, *, model: ModelFactory | None = None) -> Exploration:
    """Explore every possible run within `bounds` until a run violates a guarantee or all runs have been explored.

    Args:
        protocol: name of a protocol in `EXPLORED`.
        bounds: limits on the size of the fleet and its runs. By default, three agents send one message each, and there is one crash.
        model: factory for a model that replaces the protocol's own model. Used for mutants.

    Raises:
        UsageError: If the protocol is unknown.
    """
    limits = Bounds() if bounds is None else bounds
    began_s = time.process_time()
    outcome = Search((model or model_of(protocol))(limits), limits.states_max).run()
    return Exploration(
        protocol,
        limits,
        outcome.states,
        outcome.transitions,
        outcome.depth,
        outcome.is_complete,
        _violation_of(outcome),
        outcome.path,
        time.process_time() - began_s,
    )


def model_of(protocol: str) -> ModelFactory:
    """Return a factory for the protocol's model.

    Raises:
        UsageError: If the protocol is unknown.
    """
    if protocol in _MODELS:
        return _MODELS[protocol]
    if protocol not in RULES:
        raise UsageError(f"protocol {protocol!r} cannot be explored: use one of {', '.join(EXPLORED)}")
    return lambda bounds: InducedModel(bounds, RULES[protocol])


def _violation_of(found: SearchResult) -> Violation | None:
    fault: Fault | None = found.fault
    if fault is None:
        return None
    return Violation(fault.oracle, fault.guarantee, len(found.path), fault.text)
