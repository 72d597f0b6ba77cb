"""Exploration of every possible run of a small fleet, for one protocol at a time (`explore`).

The models (`epoch_model`, `chandy_lamport`, `round_model`, `logged_model`) define the steps of a fleet; `state_search` defines the
search. Within the bounds, the search covers every order of sends, deliveries, records, decisions and crashes, over the production
cores. Each model documents which actions it combines into one step, and why that loses no behaviour.

Not modelled: links (loss, duplicates, older incarnations; G9), stores (G11), effects (G12), agents that join or leave, and
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
"""Name of the algorithm as published; no fleet uses this protocol."""

EXPLORED = (PLAIN_CHANDY_LAMPORT, *PROTOCOLS)
"""Protocols that `explore` supports."""

ModelFactory = Callable[[Bounds], Model]

_MODELS: dict[str, ModelFactory] = {
    PLAIN_CHANDY_LAMPORT: PlainModel,
    CHANDY_LAMPORT: StampedModel,
    KOO_TOUEG: RoundModel,
}
"""Models of the protocols that have no checkpointing rule."""


class Exploration(msgspec.Struct):
    """Outcome of one exploration.

    Attributes:
        states: number of distinct states reached.
        transitions: number of steps between them.
        depth: largest distance of a state from the start, in steps.
        is_complete: whether all states within the bounds were reached.
        violation: the first violation; its `t_ns` is the number of steps that lead to it.
        path: a shortest sequence of steps that leads to a violation.
        uses_digests: whether states were compared by digests, so that two states may have been confused. Currently always False.
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
    """Explore every run within `bounds`, until one violates a guarantee.

    Args:
        protocol: one of `EXPLORED`.
        bounds: limits of the fleet; by default three agents, one send each, one crash.
        model: factory of the model that replaces the protocol's own model; for mutants.

    Raises:
        UsageError: the protocol is unknown.
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
    """Return the factory that creates a protocol's model.

    Raises:
        UsageError: the protocol is unknown.
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
