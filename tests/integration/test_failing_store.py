"""A store that fills up under a fleet of real processes: the agents go on, tools are told why, and all is well afterwards.

The store is a small file system in memory, so that writes really fail with ENOSPC, in the hosts and in the coordinator.
"""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.integration.cuts import check_consistent, store_of
from tests.integration.processes import snapline
from tests.integration.running import Running, running

from snapline.client.client import Client
from snapline.errors import InputRejectedError, InputUnknownError
from snapline.examples.bank import Tokens
from snapline.messages.status import FleetStatus

STORE_BYTES = 1 << 20
STORE_BYTES_LOGGED = 24 << 20
"""Sender logs of an unpaced bank take some megabytes each second until an epoch has made them superfluous."""

TURNS = 200
"""More of them than any fleet here takes by chance: its agents go on."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def small(data_dir: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The store's folder: a tmpfs of its own. Skipped where mounting is not allowed. The parameter is its size in bytes."""
    folder = data_dir / "store"
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        pytest.skip(f"a small file system cannot be mounted: {error}")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, timeout=20, check=False)


def fill(folder: Path) -> Path:
    """Take all space that is left; returns the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return ballast


def turns(status: FleetStatus) -> int:
    return sum(host.turns for host in status.hosts)


async def check_degrades_and_recovers(
    fleet: Running, folder: Path, meanwhile: contextlib.AbstractAsyncContextManager[object] | None = None
) -> int:
    """Returns the newest complete epoch at the end. `meanwhile`: entered when the store is full, left when it is not any more."""
    before = await fleet.until_epochs(2)
    assert before.store.state == "ok" and before.store.location
    ballast = fill(folder)
    degraded = await fleet.until(lambda now: now.store.state == "degraded")
    assert "No space left" in degraded.store.reason and degraded.phase == "running"
    async with meanwhile or contextlib.nullcontext():
        later = await fleet.until(lambda now: turns(now) > turns(degraded) + TURNS)
        assert later.store.state == "degraded" and later.store.since_ns > 0 and later.phase == "running"
        by_hand = await fleet.client.create_snapshot()
        # In an autonomous protocol the line has not moved, so the newest epoch is the answer.
        assert by_hand.reason if not by_hand.is_complete else by_hand.epoch == degraded.last_complete_epoch
        await check_tables(fleet, "degraded for ")
        ballast.unlink()
    well = await fleet.until(lambda now: now.store.state == "ok")
    after = await fleet.until_epochs(well.epochs_completed + 1)
    assert after.plan == before.plan, "nobody had to recover"
    assert (await fleet.recoveries()) == []
    await check_tables(fleet, "ok: ")
    return after.last_complete_epoch


async def check_tables(fleet: Running, expected: str) -> None:
    done = await snapline("status", "--data-dir", fleet.local.data_dir, "-o", "table")
    assert done.code == 0 and expected in done.out, done


async def not_taken(client: Client, agent: str) -> tuple[int, str]:
    """What a client hears while the store is full, and after how many attempts: those before may be on their way."""
    for number in itertools.count():
        try:
            await client.send(agent, Tokens(amount=0), f"full-{number}", timeout_s=0.5)
        except InputUnknownError:
            continue
        except InputRejectedError as error:
            return number, str(error)
    raise AssertionError("unreachable")


class Given:
    """Inputs that two programs give while the store is full: none is taken, one hears why, and nothing is lost."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._attempts = 0

    async def __aenter__(self) -> Self:
        self._clients = [await Client.connect(data_dir=self._data_dir) for _ in range(2)]
        self._first = asyncio.create_task(self._clients[0].send("teller-0", Tokens(amount=0), "while it is full"))
        self._attempts, why = await not_taken(self._clients[1], "teller-0")
        assert "was not taken in time: the host log cannot be written" in why and "No space left" in why
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is room again."""
        first, other = await self._first, self._clients[1]
        keys = [f"full-{number}" for number in range(self._attempts + 1)]
        again = [await other.send("teller-0", Tokens(amount=0), key) for key in keys]
        assert len({first.number, *[each.number for each in again]}) == 1 + len(keys), "each is taken once"
        assert not again[-1].is_repeated, "as it was told"
        for client in self._clients:
            await client.close()


def lines(path: Path, *words: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if all(word in line for word in words)]


@pytest.mark.parametrize("small", [STORE_BYTES], indirect=True)
async def test_agents_go_on_while_the_store_is_full_and_epochs_after(small: Path, data_dir: Path) -> None:
    arguments = {"stop": str(data_dir / "stop"), "period": "0.1"}
    async with running(data_dir, "paced_bank:fleet", arguments, hosts=2) as bank:
        epoch = await check_degrades_and_recovers(bank, small, Given(data_dir))
    newest = store_of(data_dir).epochs()[-1]  # the others may have been forgotten meanwhile
    assert newest >= epoch
    check_consistent(store_of(data_dir), newest)
    log = data_dir / "logs" / "coordinator.log"
    assert len(lines(log, "WARNING", "the store is degraded")) == 1
    assert len(lines(log, "INFO", "the store works again")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("small", [STORE_BYTES_LOGGED], indirect=True)
@pytest.mark.parametrize("protocol", ["bcs", "koo-toueg"])
async def test_the_same_where_agents_checkpoint_by_themselves_or_in_rounds(
    protocol: str, small: Path, data_dir: Path
) -> None:
    arguments = {"protocol": protocol, "agents": "4", "lines": "1", "period": "0.2"}
    async with running(data_dir, "snapline.examples.bank:fleet", arguments, hosts=2) as bank:
        epoch = await check_degrades_and_recovers(bank, small)
    assert store_of(data_dir).epochs()[-1] >= epoch
