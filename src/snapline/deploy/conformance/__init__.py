"""Conformance checks for every launcher, built-in or third-party.

A fleet relies on three properties of its launcher:

1. A start runs exactly one process.
2. The launcher reports the exit of each process, and never attributes it to a later run of the same process.
3. Closing the launcher leaves no processes or files behind.

The small checks test these properties without a fleet. The large check starts a fleet of five agents on three hosts. The check kills a
host, lets a replaced host send messages, and transfers the coordinator's leadership. Then it checks in every snapshot in the store that no
message was lost or handled twice (G1, G2, G3, G9).

Run the checks in a test suite like this:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    async def test_my_launcher(check: conformance.Check, tmp_path: Path) -> None: await conformance.run(check, MyBench(tmp_path))

In addition to the launcher, a bench supplies a store that all processes can reach, command lines, and a list of the processes and files
that remain after closing. `LocalBench`, the bench for this machine, is an example.
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
    """Return all checks, ordered from simple to complex. Each check is a coroutine function that takes an unused bench."""
    return [*PROCESS_CHECKS, a_fleet_recovers_exactly_and_leaves_nothing]


async def run(check: Check, bench: Bench) -> None:
    """Run one check.

    Raises:
        LauncherFaultError: If the check failed. The message contains the name of the check and what the check observed.
    """
    try:
        await check(bench)
    except Exception as error:
        message = str(error) if isinstance(error, LauncherFaultError) else f"{type(error).__name__}: {error}"
        raise LauncherFaultError(f"{getattr(check, '__name__', check)}: {message}") from error
