"""The fleet of a scenario, as real processes load it: a pattern of the simulator, or the user's own, that ends on request."""

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
    """Return the fleet. `scenario`: a file that holds it, as drawn. Once there is a file `stop`, the fleet ends when its own predicate holds, or
    all its work is done."""
    return workload_of(Path(scenario), Path(stop)).fleet


def workload_of(scenario: Path, stop: Path) -> Workload:
    """The same with its invariants."""
    found = parse_scenario(scenario.read_text(), source=str(scenario))
    made = make_workload(found.fleet)
    own, is_reported = made.fleet.stop_when, str(stop)
    ends = made.ends and own is None

    def stop_when(cut: snapline.Cut) -> bool:
        if own is not None:
            return own(cut)
        return os.path.exists(is_reported) and (cut.is_quiet or not ends)

    made.fleet.stop_when = stop_when
    return made


def load_invariant(target: str) -> Callable[[snapline.Cut], object]:
    """MODULE:FUNCTION.

    Raises:
        UsageError: there is none.
    """
    module, _, name = target.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{target!r} names no function: {error}; write MODULE:FUNCTION, of this folder or PYTHONPATH"
        ) from error
    if not callable(found):
        raise UsageError(f"{target} is a {type(found).__qualname__}: name a function of a cut")
    return cast(Callable[[snapline.Cut], object], found)  # what it takes shows when it is asked
