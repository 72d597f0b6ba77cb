"""Conformance checks for every launcher, built-in or third-party.

A fleet relies on three properties of its launcher:

1. A started process runs once.
2. Its exit is reported, and never mistaken for the exit of the next run.
3. Closing the launcher leaves nothing behind.

The small checks test these points. The large check starts a fleet of five agents on three hosts, kills a host, lets a replaced host send
messages, and moves the coordinator's leadership. It checks every snapshot in the store: no message is lost or handled twice (G1, G2, G3, G9).

In a test suite:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    async def test_my_launcher(check: conformance.Check, tmp_path: Path) -> None:
        await conformance.run(check, MyBench(tmp_path))

A bench provides what a launcher does not: a store that all processes can reach, command lines, and the list of what remains after closing.
`LocalBench`, the bench of this machine, is an example.
"""

from snapline.deploy.conformance.bench import Bench, LauncherFaultError, LocalBench, processes_naming
from snapline.deploy.conformance.launcher_checks import PROCESS_CHECKS, a_fleet_recovers_exactly_and_leaves_nothing
from snapline.deploy.conformance.launcher_checks import ProcessCheck as Check

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
    """Return all checks, the simple ones first. Each check is a coroutine function that takes an unused bench."""
    return [*PROCESS_CHECKS, a_fleet_recovers_exactly_and_leaves_nothing]


async def run(check: Check, bench: Bench) -> None:
    """Run one check.

    Raises:
        LauncherFaultError: the check failed; the message names the check and says what it observed.
    """
    try:
        await check(bench)
    except Exception as error:
        message = str(error) if isinstance(error, LauncherFaultError) else f"{type(error).__name__}: {error}"
        raise LauncherFaultError(f"{getattr(check, '__name__', check)}: {message}") from error
