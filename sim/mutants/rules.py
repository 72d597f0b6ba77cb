"""Seeded bugs of autonomous protocols."""

from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.agent_runtime.host.modes.logged import LoggedMode
from snapline.protocols.bcs import BcsRule
from snapline.protocols.dependency_vector import FdasRule
from snapline.protocols.hmnr import HmnrRule
from snapline.sim.world.product_patches import Patch


def _never(*_: object) -> bool:
    return False


def bcs_never_forces() -> list[Patch]:
    return [(BcsRule, "forces", _never)]


def hmnr_without_clocks() -> list[Patch]:
    return [(HmnrRule, "_lets_a_clock_fall", _never)]


def hmnr_without_cycles() -> list[Patch]:
    return [(HmnrRule, "_closes_a_cycle", _never)]


def fdas_never_forces() -> list[Patch]:
    return [(FdasRule, "forces", _never)]


def log_starts_late() -> list[Patch]:
    original = LoggedAgent.keep

    def keep(self: LoggedAgent, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        if self.log:
            original(self, receiver, number, payload, piggyback)
        else:
            self.log[receiver] = []
            self.has_moved = True

    return [(LoggedAgent, "keep", keep), (LoggedMode, "validate", lambda *_: None)]
