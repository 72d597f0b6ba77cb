"""The conformance suite passes on this machine's launcher, and fails, by the right check, on launchers with one fault each."""

import os
import signal
from pathlib import Path

import pytest

from snapline.deploy import conformance
from snapline.deploy.conformance import bench as bench_module
from snapline.deploy.conformance import launcher_checks as judge_module
from snapline.deploy.conformance.token_fleet import TOKENS
from snapline.deploy.launching import Handle, Launcher, ProcessSpec
from snapline.deploy.local import LocalLauncher
from snapline.deploy.supervisor import Exit

pytestmark = pytest.mark.timeout(300)

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.mark.parametrize("name", CHECKS)
async def test_this_machine(name: str, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], conformance.LocalBench(tmp_path))


class FaultyBench(conformance.LocalBench):
    """This machine, with a launcher of the given kind."""

    def __init__(self, folder: Path, kind: type[LocalLauncher]) -> None:
        super().__init__(folder)
        self._kind = kind

    def launcher(self) -> Launcher:
        return self._kind(self.folder / "place")


class Deaf(LocalLauncher):
    """Sees an end, but not how it was."""

    async def watch(self, handle: Handle) -> Exit:
        await super().watch(handle)
        return Exit(None, "ended")


class Doubling(LocalLauncher):
    """Starts whatever it is told to."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.older: list[int] = []

    async def start(self, spec: ProcessSpec) -> Handle:
        self._children.pop(spec.name, None)
        handle = await super().start(spec)
        self.older.append(handle.pid)
        return handle

    async def close(self) -> None:
        for pid in self.older:
            os.kill(pid, signal.SIGKILL)
        await super().close()


class Confusing(LocalLauncher):
    """Takes all runs of one name for the same."""

    async def kill(self, handle: Handle) -> None:
        await super().kill(self._children[handle.name][0])


class Rude(LocalLauncher):
    """Asks nobody."""

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        await self.kill(handle)
        return await self.watch(handle)


class Lenient(LocalLauncher):
    """Takes asking for an end."""

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        os.kill(handle.pid, signal.SIGTERM)
        return Exit(-15, "SIGTERM")


class Restless(LocalLauncher):
    """Lets nobody stand still."""

    async def freeze(self, handle: Handle) -> None:
        pass


class Forgetful(LocalLauncher):
    """Leaves standing who stands."""

    async def thaw(self, handle: Handle) -> None:
        pass


class Littering(LocalLauncher):
    """Leaves coordinators running."""

    async def close(self) -> None:
        self.left = self._children.pop("c2", None)
        await super().close()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Deaf, "an_end_is_seen_with_its_code_and_last_words"),
        (Doubling, "a_name_is_one_process"),
        (Confusing, "words_about_an_earlier_run_do_not_end_the_next"),
        (Rude, "stopping_asks_first"),
        (Lenient, "stopping_kills_who_does_not_listen"),
        (Restless, "who_is_frozen_stands_still_until_thawed_or_killed"),
        (Forgetful, "who_is_frozen_stands_still_until_thawed_or_killed"),
        (Littering, "closing_leaves_nothing"),
    ],
)
async def test_a_fault_is_found(
    kind: type[LocalLauncher], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "LIMIT_S", 3.0)
    bench = FaultyBench(tmp_path, kind)
    try:
        with pytest.raises(conformance.LauncherFaultError, match=f"^{name}: "):
            await conformance.run(CHECKS[name], bench)
    finally:
        end_all(bench)


async def test_a_lost_token_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as one that was there too many when the fleet began."""
    monkeypatch.setattr(judge_module, "TOKENS", TOKENS + 1)
    check = CHECKS["a_fleet_recovers_exactly_and_leaves_nothing"]
    with pytest.raises(
        conformance.LauncherFaultError, match=r"snapshot: epoch \d+: \d+ tokens in agents and \d+ in tr"
    ):
        await conformance.run(check, conformance.LocalBench(tmp_path))


def end_all(bench: conformance.LocalBench) -> None:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if str(bench.folder) in command:
                os.kill(int(folder.name), signal.SIGKILL)
