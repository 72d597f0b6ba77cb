"""Actors under a test's hands: made by Ray, kicked, killed with SIGKILL; and what their cuts hold, counted from the store alone."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import ray
from tests.adapters.grpc_services.meshes import free_ports
from tests.integration.processes import LIMIT_S
from tests.integration.running import is_at, until_status

import snapline
from snapline import open_store
from snapline.adapters.grpc.ledger import nested_id
from snapline.adapters.ray import actor_fleet, in_fleet
from snapline.deploy.conformance.local_ray import Raylets
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security

PERIOD_S = 0.25


@contextlib.contextmanager
def connected(cluster: Raylets, namespace: str) -> Iterator[None]:
    """This process as a driver."""
    ray.init(address=cluster.address, namespace=namespace, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


class ActorEconomy:
    """A coordinator, and a fleet of actors of these names."""

    def __init__(self, folder: Path, names: str, period_s: float = PERIOD_S) -> None:
        self.store, self._folder, self.names = folder / "store", folder, names
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        fleet = actor_fleet("economy", names, triggers=[snapline.Every(seconds=period_s)])
        self.join = in_fleet(fleet, coordinator=self.address, store=str(self.store))
        self.actors: dict[str, Any] = {}
        self._coordinator: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        where = ("--listen", self.address, "--data-dir", self._folder / "coordinator", "--store", self.store)
        kept = ("--hosts", str(len(self.names)), "--rejoin-grace", "120", "--keep-epochs", "1000")
        with (self._folder / "coordinator.log").open("ab") as log:
            self._coordinator = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "snapline", "coordinator", "run", *map(str, (*where, *kept))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.client = CoordinatorClient(self.address, Security.loopback())
        return self

    async def __aexit__(self, *_: object) -> None:
        for actor in self.actors.values():
            ray.kill(actor)
        self._coordinator.kill()
        await self._coordinator.wait()
        await self.client.close()

    def make(self, kind: type, name: str, *arguments: object) -> Any:
        """An actor of a class of the user's, as Ray makes it, with our one line."""
        made: Any = ray.remote(max_restarts=-1, num_cpus=0)(self.join(kind))
        self.actors[name] = made.options(name=name).remote(*arguments)
        return self.actors[name]

    async def make_anew(self, kinds: Mapping[str, type]) -> None:
        """End actors for good, as when their driver ends, and make others in their place."""
        for name in kinds:
            ray.kill(self.actors.pop(name))
        async with asyncio.timeout(LIMIT_S):
            while missing := [name for name in kinds if name not in self.actors]:
                for name in missing:
                    with contextlib.suppress(ValueError):  # Ray has not given its name back
                        self.make(kinds[name], name)
                await asyncio.sleep(0.1)

    async def kill(self, name: str) -> None:
        """SIGKILL to the process that the actor is in."""
        os.kill(await self.asked(name, "pid"), signal.SIGKILL)

    async def asked(self, name: str, method: str, *arguments: object) -> Any:
        """Call a method as a driver does, again while Ray says that the actor cannot be reached or the fleet goes back."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            try:
                return await asyncio.to_thread(
                    ray.get, getattr(self.actors[name], method).remote(*arguments), timeout=LIMIT_S
                )
            except (ray.exceptions.RayActorError, SnaplineError):
                assert time.monotonic() < deadline_s, self.log()
                await asyncio.sleep(0.1)

    async def until(self, epochs: int, plan: int = 0) -> FleetStatus:
        """Wait until so many epochs are complete, and the fleet runs under this plan, or a later one."""
        return await until_status(self.client, is_at(epochs, plan), self.log)

    def log(self) -> str:
        return (self._folder / "coordinator.log").read_text()[-3000:]


class CutOfActors:
    """One cut: knows what the methods of `banks.py` do with tokens, and nothing of ledgers but where calls stand."""

    def __init__(self, states: Mapping[str, Any]) -> None:
        self.actors = {name: json.loads(state["service"]) for name, state in states.items() if state["service"]}
        self.calls = {name: state["calls"] for name, state in states.items()}

    def total(self) -> int:
        balances = sum(actor["balance"] for actor in self.actors.values())
        return balances + sum(amount for *_, amount in self.under_way()) + sum(map(self._owed, self.calls.values()))

    def under_way(self) -> Iterator[tuple[str, str, int]]:
        """Who gives whom how much, by calls that the receiver has not had."""
        for giver, calls in self.calls.items():
            for call in calls["pending"]:
                if call["method"] in ("tok", "take") and call["id"] not in self.calls[call["target"]]["answers"]:
                    [amount, *said], _ = json.loads(call["request"])
                    assert said in ([giver], [])
                    yield giver, call["target"], amount

    def is_exact(self, names: str) -> bool:
        """On each channel of banks: what one has given the other has taken, or it is on its way. No more was taken than given (G1)."""
        sums: dict[tuple[str, str], int] = {}
        for giver, taker, amount in self.under_way():
            sums[giver, taker] = sums.get((giver, taker), 0) + amount
        return all(
            self.actors[giver]["given"][taker] - self.actors[taker]["taken"][giver] == sums.get((giver, taker), 0)
            for giver in names
            for taker in names
            if giver != taker
        )

    def is_busy(self) -> bool:
        return any(calls["pending"] or calls["journals"] for calls in self.calls.values())

    def _owed(self, calls: Any) -> int:
        """By methods that are run again: of what others have answered them, their actor's balance knows nothing yet."""
        owed = 0
        for call, made in calls["journals"].items():
            for ordinal, nested in enumerate(made, 1):
                answer = self.calls[nested["target"]]["answers"].get(nested_id(call, ordinal))
                if answer is not None:
                    is_well, value = json.loads(answer["response"])
                    assert is_well
                    owed += 0 if value is None else value.get("back", 0) - value.get("kept", 0)
        return owed


def cuts_of(store: Path, seen: Container[int] = ()) -> dict[int, CutOfActors]:
    """All snapshots that the store has, but for those seen and the one that begins the fleet."""
    saved = open_store(store)
    found = {epoch: saved.snapshot(epoch) for epoch in saved.epochs if epoch not in seen}
    states = {epoch: {name: agent.state for name, agent in cut.agents.items()} for epoch, cut in found.items()}
    return {epoch: CutOfActors(each) for epoch, each in states.items() if all(s["service"] for s in each.values())}
