"""Conformance checks for every launcher: ours, and other people's.

The fleet trusts its launcher in few points: a process that was started runs once, its end is seen and not mistaken for the end of the
next run, and nothing is left when it is closed. The small checks test these; the large one brings up a fleet of five agents on three
hosts, kills a host, lets the remains of another speak, moves the coordinator, and judges every snapshot by the store alone:
no message lost, none handled twice (G1, G2, G3, G9).

In a test suite:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    async def test_my_launcher(check: conformance.Check, tmp_path: Path) -> None:
        await conformance.run(check, MyBench(tmp_path))

A bench provides what a launcher cannot: how a process is frozen, which store all can reach, what remains. `LocalBench`, that
of this machine, shows how one is written.
"""

from snapline.deploy.conformance.bench import Bench, LauncherFaultError, LocalBench, processes_naming
from snapline.deploy.conformance.fleet_check import a_fleet_recovers_exactly_and_leaves_nothing
from snapline.deploy.conformance.process_checks import PROCESS_CHECKS
from snapline.deploy.conformance.process_checks import ProcessCheck as Check

__all__ = [
    "PROCESS_CHECKS",
    "Bench",
    "Check",
    "LauncherFaultError",
    "LocalBench",
    "a_fleet_recovers_exactly_and_leaves_nothing",
    "checks",
    "processes_naming",
    "run",
]


def checks() -> list[Check]:
    """Return all checks, the simple ones first. Each is a coroutine function of an unused bench."""
    return [*PROCESS_CHECKS, a_fleet_recovers_exactly_and_leaves_nothing]


async def run(check: Check, bench: Bench) -> None:
    """Run one check.

    Raises:
        LauncherFaultError: it failed; by name, and what it saw.
    """
    try:
        await check(bench)
    except Exception as error:
        words = str(error) if isinstance(error, LauncherFaultError) else f"{type(error).__name__}: {error}"
        raise LauncherFaultError(f"{getattr(check, '__name__', check)}: {words}") from error
