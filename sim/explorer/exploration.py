"""Exploration of every run of a small fleet, for one protocol at a time, by `explore`.

The steps that a fleet can make are in `stamped`, `plain`, `rounds` and `induced`; how they are searched, in `search`. In all
of them nothing is left to chance and nothing is left out within the bounds: each order of sends, deliveries, records,
decisions and crashes is met, over the production cores. What the models join into one step, and why nothing is lost by
that, each says for itself. Not modelled: links (loss, duplicates, older incarnations; G9), stores (G11), effects (G12),
agents that join or leave, and recoveries that are themselves interrupted.
"""

import time
from collections.abc import Callable

import msgspec

from snapline.errors import UsageError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS
from snapline.protocols.rules import RULES
from snapline.sim.explorer.bounds import Bounds
from snapline.sim.explorer.induced import InducedModel
from snapline.sim.explorer.plain import PlainModel
from snapline.sim.explorer.rounds import RoundModel
from snapline.sim.explorer.search import Fault, Found, Model, Search
from snapline.sim.explorer.stamped import StampedModel
from snapline.sim.result import Violation

__all__ = ["EXPLORED", "PLAIN_CHANDY_LAMPORT", "Bounds", "Exploration", "explore"]

PLAIN_CHANDY_LAMPORT = "chandy-lamport-plain"
"""The algorithm as published; no fleet runs it."""

EXPLORED = (PLAIN_CHANDY_LAMPORT, *PROTOCOLS)
"""Protocols that `explore` knows."""

ModelFactory = Callable[[Bounds], Model]

_MODELS: dict[str, ModelFactory] = {
    PLAIN_CHANDY_LAMPORT: PlainModel,
    CHANDY_LAMPORT: StampedModel,
    KOO_TOUEG: RoundModel,
}
"""Models of the protocols that are not rules."""


class Exploration(msgspec.Struct):
    """The outcome of one exploration.

    Attributes:
        states: different ones met. transitions: steps between them. depth: steps of the longest shortest way to a state.
        is_complete: all there are within the bounds were met.
        violation: the first; its `t_ns` is the number of steps to it.
        path: these steps, and there is no shorter way to any violation.
        uses_digests: states were compared by digests, so two might have been taken for one. Never so at present.
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
        bounds: how much the fleet may do; three agents, one send each, one crash if left out.
        model: makes the fleet, instead of the protocol's own: for mutants.

    Raises:
        UsageError: no such protocol.
    """
    limits = Bounds() if bounds is None else bounds
    began_s = time.process_time()
    found = Search((model or model_of(protocol))(limits), limits.states_max).run()
    return Exploration(
        protocol,
        limits,
        found.states,
        found.transitions,
        found.depth,
        found.is_complete,
        _violation_of(found),
        found.path,
        time.process_time() - began_s,
    )


def model_of(protocol: str) -> ModelFactory:
    """Return the factory of a protocol's model.

    Raises:
        UsageError: no such protocol.
    """
    if protocol in _MODELS:
        return _MODELS[protocol]
    if protocol not in RULES:
        raise UsageError(f"protocol {protocol!r} cannot be explored: use one of {', '.join(EXPLORED)}")
    return lambda bounds: InducedModel(bounds, RULES[protocol])


def _violation_of(found: Found) -> Violation | None:
    fault: Fault | None = found.fault
    if fault is None:
        return None
    return Violation(fault.oracle, fault.guarantee, len(found.path), fault.text)
