"""Programs outside a fleet of real processes give its agents inputs, while hosts and coordinators are killed (R1).

Each till lists the serial numbers that it was paid, in order; the ledger lists what the tills told it. What a client had a receipt for
must be in both, once, in the order in which it was given.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from tests.integration.fleets import tills
from tests.integration.fleets.tills import Counts, Notes, Paid
from tests.integration.processes import LIMIT_S
from tests.integration.running import Running, running
from tests.integration.secured import PACED_BANK, running_secured

from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.client.client import Certificates, Client
from snapline.client.sends_and_asks import Receipt
from snapline.errors import UsageError
from snapline.examples.bank import Tokens

pytestmark = pytest.mark.timeout(180)

INPUTS, TILLS = 200, 6


def till_of(serial: int) -> str:
    return f"till-{serial % TILLS}"


async def pay(client: Client, serials: list[int], receipts: dict[int, Receipt], pause_s: float = 0.0) -> None:
    """One after the other, each under its key; now and then twice."""
    for serial in serials:
        receipts[serial] = await client.send(till_of(serial), Paid(serial), f"order-{serial}", timeout_s=LIMIT_S)
        if serial % 17 == 0:
            again = await client.send(till_of(serial), Paid(serial), f"order-{serial}", timeout_s=LIMIT_S)
            assert (again.number, again.is_repeated) == (receipts[serial].number, True)
        await asyncio.sleep(pause_s)


async def end(fleet: Running, stop: Path) -> None:
    """When everything has been consumed and saved."""
    await fleet.until_more_epochs(2)
    stop.touch()
    await fleet.end()


def check(data_dir: Path, serials: range, receipts: dict[int, Receipt]) -> None:
    """The last snapshot has each once, in order, under the number of its receipt; no earlier one has one twice."""
    found: dict[str, Counts | Notes] = {}
    for snapshot in open_store(data_dir / "store", fleet=tills.fleet("")):
        found = {agent: saved.state for agent, saved in snapshot.agents.items()}
        for number in range(TILLS):
            assert (order := order_of(found, number)) == sorted(set(order)), f"epoch {snapshot.epoch}, till {number}"
    ledger = found["ledger"]
    assert isinstance(ledger, Notes)
    for number in range(TILLS):
        wanted = [serial for serial in serials if serial % TILLS == number]
        assert order_of(found, number) == wanted == ledger.seen[f"till-{number}"]
        assert [receipts[serial].number for serial in wanted] == list(range(1, len(wanted) + 1))


def order_of(states: dict[str, Counts | Notes], number: int) -> list[int]:
    """What one till has consumed."""
    state = states[f"till-{number}"]
    assert isinstance(state, Counts)
    return state.order


@pytest.mark.parametrize("protocol", [pytest.param("chandy-lamport", marks=pytest.mark.slow), "hmnr"])
@pytest.mark.promise
async def test_each_input_is_consumed_once_while_a_host_is_killed_and_recovered(data_dir: Path, protocol: str) -> None:
    stop = data_dir.with_name("stop")
    receipts: dict[int, Receipt] = {}
    async with running(data_dir, "tills:fleet", {"stop": str(stop), "protocol": protocol}) as fleet:
        await fleet.until_epochs(1)
        async with await Client.connect(data_dir=data_dir) as client:
            serials = list(range(INPUTS))
            paying = [
                asyncio.create_task(pay(client, [x for x in serials if x % TILLS == number], receipts, 0.05))
                for number in range(TILLS)
            ]
            while len(receipts) < INPUTS // 4:
                await asyncio.sleep(0.01)
            recovery = await fleet.recovered_from("h2")
            await asyncio.gather(*paying)
            assert sorted(receipts) == serials
            print(
                f"{INPUTS} inputs, {sum(x.is_repeated for x in receipts.values())} repeated, recovery {recovery['duration_s']} s"
            )
        await end(fleet, stop)
    check(data_dir, range(INPUTS), receipts)


async def test_a_host_that_freezes_with_inputs_in_its_hands_and_wakes_doubles_none(data_dir: Path) -> None:
    """A zombie may have a batch on its way to the log, and clients that wait for it. Its log has been sealed meanwhile."""
    stop = data_dir.with_name("stop")
    receipts: dict[int, Receipt] = {}
    async with running(data_dir, "tills:fleet", {"stop": str(stop)}, on_failure="move") as fleet:
        await fleet.until_epochs(1)
        pid = fleet.pid("h2")
        async with await Client.connect(data_dir=data_dir) as client:
            paying = [
                asyncio.create_task(pay(client, list(range(number, 2 * INPUTS, TILLS)), receipts, 0.02))
                for number in range(TILLS)
            ]
            await fleet.until_more_epochs()
            os.kill(pid, signal.SIGSTOP)
            await fleet.until_recovered()
            os.kill(pid, signal.SIGCONT)
            await fleet.until(lambda now: [host.state for host in now.hosts] == ["alive"] * 3)
            assert pid == fleet.local.pid("h2")
            await fleet.recovered_from("h1")  # its agents come to h2, which logs under a new plan
            await asyncio.gather(*paying)
        await end(fleet, stop)
    check(data_dir, range(2 * INPUTS), receipts)


@pytest.mark.slow
async def test_many_clients_and_a_host_that_dies_again_and_again(data_dir: Path, first_seed: int) -> None:
    chance = random.Random(first_seed)
    stop = data_dir.with_name("stop")
    receipts: dict[int, Receipt] = {}
    async with running(data_dir, "tills:fleet", {"stop": str(stop)}, on_failure="move", coordinators=3) as fleet:
        await fleet.until_epochs(1)
        clients = [await Client.connect(data_dir=data_dir) for _ in range(TILLS)]
        paying = [
            asyncio.create_task(pay(client, [x for x in range(3 * INPUTS) if x % TILLS == number], receipts, 0.02))
            for number, client in enumerate(clients)
        ]
        for name in ("h1", await fleet.until_led(), "h3"):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            fleet.local.kill(name)
        await asyncio.gather(*paying)
        for client in clients:
            await client.close()
        await end(fleet, stop)
    check(data_dir, range(3 * INPUTS), receipts)


async def test_with_certificates_the_role_client_gives_inputs_and_no_other(data_dir: Path, tmp_path: Path) -> None:
    certificates, arguments = tmp_path / "certificates", {"stop": str(tmp_path / "stop"), "agents": "4"}
    async with running_secured(data_dir, certificates, PACED_BANK, arguments, hosts=2, coordinators=1) as fleet:
        await fleet.until(lambda now: now.phase == "running")

        def files(role: str) -> Certificates:
            leaf = certificates / f"{role}-{role}"
            return Certificates(f"{leaf}.crt", f"{leaf}.key", certificates / "ca.crt")

        async with await Client.connect(fleet.local.address, tls=files("client")) as client:
            places = {place.agent: place.host for place in await client.agents()}
            assert set(places.values()) == {"h1", "h2"}, "each is dialled by its own name"
            receipts = await client.send_many([(agent, Tokens(amount=1)) for agent in places])
            assert [receipt.number for receipt in receipts] == [1] * 4
            with pytest.raises(
                UsageError, match="taking a snapshot needs the role operator or admin, and this one is for client"
            ):
                await client.snapshot()
            with pytest.raises(
                UsageError, match="the recovery line needs the role viewer or approver or operator or admin, and"
            ):
                await client.recovery_line()
            with pytest.raises(
                UsageError,
                match="looking into an agent needs the role viewer or approver or operator or admin, and this one is for client",
            ):
                await client.retry_dead_letters("teller-0")
        async with await Client.connect(fleet.local.address, tls=files("operator")) as operator:
            with pytest.raises(
                UsageError, match="sending an input needs the role client, and this one is for operator operator"
            ):
                await operator.send("teller-0", Tokens(amount=1))
            assert (await operator.snapshot())["is_new"] is True
            assert await operator.drop_dead_letters("teller-0") == []
        with pytest.raises(
            UsageError,
            match="reading where agents run needs the role viewer or approver or operator or admin or client, and this one is for launcher",
        ):
            await Client.connect(fleet.local.address, tls=files("launcher"))
