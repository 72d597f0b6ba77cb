"""Builds a scenario's fleet for real processes. The fleet is either one of the simulator's workload patterns or the user's own fleet. The
fleet ends on request."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.sim.scenario import parse_scenario
from snapline.sim.workloads import Workload, make_workload

FLEET = f"{__name__}:fleet"


def fleet(scenario: str, stop: str) -> Fleet:
    """Return the fleet.

    `scenario` is the path of the scenario that the seed has drawn. Once the file `stop` exists, the fleet ends when its work is done. A
    fleet with its own stop condition ends when that condition holds.
    """
    return workload_of(Path(scenario), Path(stop)).fleet


def workload_of(scenario: Path, stop: Path) -> Workload:
    """Return the fleet's workload together with its invariants."""
    parsed = parse_scenario(scenario.read_text(), source=str(scenario))
    workload = make_workload(parsed.fleet)
    user_predicate, is_reported = workload.fleet.stop_when, str(stop)
    ends = workload.ends and user_predicate is None

    def stop_when(cut: snapline.Cut) -> bool:
        if user_predicate is not None:
            return user_predicate(cut)
        return os.path.exists(is_reported) and (cut.is_quiet or not ends)

    workload.fleet.stop_when = stop_when
    return workload


def load_invariant(target: str) -> Callable[[snapline.Cut], object]:
    """Load the function that MODULE:FUNCTION names.

    Raises:
        UsageError: If the function does not exist.
    """
    module, _, name = target.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{target!r} names no function: {error}; write MODULE:FUNCTION, of this folder or PYTHONPATH"
        ) from error
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__qualname__}: name a function of a cut")
    return cast(Callable[[snapline.Cut], object], function)  # a wrong signature causes an error at the call
