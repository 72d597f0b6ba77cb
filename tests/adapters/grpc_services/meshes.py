"""Processes of a mesh of plain gRPC services under a test's hands, and what their cuts hold."""

import contextlib
import socket
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import msgspec
from tests.adapters.grpc_services.bank_fleets import PROTO, TILLS
from tests.integration.running import is_at, until_status
from tests.kit.fork_server import ForkedCommand

from snapline import open_store
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security

BANK = "tests.adapters.grpc_services.token_bank"
MIXED = "tests.adapters.grpc_services.bank_fleets:mixed"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class KilledMesh:
    """A coordinator and services, each a process; those that are killed are started again."""

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        hosts: tuple[str, ...] = (),
        *,
        service: str = BANK,
        fleet: str = MIXED,
    ) -> None:
        """Services run the module `service`, hosts have `fleet`."""
        self.store, self.stop, self._logs = folder / "store", folder / "stop", folder / "logs"
        self._logs.mkdir()
        first, *ports = free_ports(len(names) + 1)
        self.coordinator = f"127.0.0.1:{first}"
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        self._data, self._hosts = folder / "coordinator", hosts
        self._service, self._fleet = service, fleet
        self._processes: dict[str, ForkedCommand] = {}

    async def __aenter__(self) -> Self:
        for name in ["coordinator", *self.addresses, *self._hosts]:
            await self.start(name)
        self.client = CoordinatorClient(self.coordinator, Security.loopback())
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self.client.close()

    async def start(self, name: str) -> None:
        where = [
            "--keep-epochs",
            "1000",
            "--rejoin-grace",
            "120",
            "--data-dir",
            str(self._data),
            "--store",
            str(self.store),
            "--hosts",
            str(len(self.addresses) + len(self._hosts)),
        ]
        arguments = ["coordinator", "run", "--listen", self.coordinator, *where]
        if name in self._hosts:
            where = [
                "--id",
                name,
                "--fleet",
                self._fleet,
                "--store",
                str(self.store),
            ]
            arguments = ["host", "run", "--coordinator", self.coordinator, *where]
        elif name != "coordinator":
            places = [f"{each}={address}" for each, address in self.addresses.items()]
            arguments = ["-m", self._service, name, self.coordinator, str(self.store), str(self.stop), *places]
        with (self._logs / f"{name}.log").open("ab") as log:
            started = ForkedCommand.start_logged(log, *arguments)
        assert started is not None
        self._processes[name] = started

    async def kill(self, *names: str) -> None:
        """SIGKILL, and start again."""
        for name in names:
            try:
                self._processes[name].kill()
            except ProcessLookupError:
                raise AssertionError(f"{name} had ended by itself: {self.logs()}") from None
        for name in names:
            await self._processes[name].wait()
            await self.start(name)

    async def until(self, epochs: int, plan: int = 0) -> FleetStatus:
        """Wait until so many epochs are complete, and the fleet runs under this plan, or a later one."""
        return await until_status(self.client, is_at(epochs, plan), self.logs)

    def logs(self) -> str:
        return "".join(f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self._logs.iterdir()))


class CutOfBanks:
    """What one cut holds, counted from the store alone: knows how the four methods hand tokens on, and nothing of ledgers."""

    def __init__(
        self, states: Mapping[str, Any], names: Mapping[str, str], kept: Mapping[str, int], told: Sequence[int] = ()
    ) -> None:
        self.calls = {name: state["calls"] for name, state in states.items()}
        self.kept = dict(kept)
        self.told = sum(told)
        self._names = names
        self._tokens: Any = grpc.protos(PROTO).Tokens

    def total(self) -> int:
        return (
            self.told
            + sum(self.kept.values())
            + sum(
                self._under_way(
                    call["id"],
                    self._names[call["target"]],
                    call["method"],
                    self._amount(call["request"], call["asks_stream"]),
                    call["asks_stream"] or call["answers_stream"],
                )
                for calls in self.calls.values()
                for call in calls["pending"]
            )
        )

    def is_quiet(self) -> bool:
        return not self.told and not any(calls["pending"] or calls["journals"] for calls in self.calls.values())

    def _under_way(self, call: str, receiver: str, method: str, amount: int, is_stream: bool) -> int:
        """Tokens of this call that nobody has: neither its caller nor a bank that it has reached."""
        answers, journals = self.calls[receiver]["answers"], self.calls[receiver]["journals"]
        if call in answers:
            answer = answers[call]
            return 0 if answer["code"] else int(self._amount(answer["response"], is_stream))
        if method.endswith("/Carry") and call in journals:
            [made] = journals[call]
            inner = self._under_way(f"{call}/1", self._names[made["target"]], method, amount - 1, False)
            return 1 + inner
        return amount

    def _amount(self, payload: bytes, is_stream: bool) -> int:
        messages = msgspec.msgpack.decode(payload, type=list[bytes]) if is_stream else [payload]
        return sum(int(self._tokens.FromString(message).amount) for message in messages)


def cuts_of(store: Path, addresses: Mapping[str, str], seen: Container[int] = ()) -> dict[int, CutOfBanks]:
    """All snapshots that the store has, but for those seen."""
    names = {address: name for name, address in addresses.items()}
    cuts: dict[int, CutOfBanks] = {}
    saved = open_store(store)
    for snapshot in [saved.snapshot(epoch) for epoch in saved.epochs if epoch not in seen]:
        states = {name: snapshot.agents[name].state for name in addresses}
        kept = {
            name: 100 if state["service"] is None else msgspec.msgpack.decode(state["service"])["tokens"]
            for name, state in states.items()
        }
        kept |= {till: snapshot.agents[till].state["tokens"] for till in TILLS if till in snapshot.agents}
        told = [msgspec.convert(message.message, dict[str, int])["amount"] for message in snapshot.in_transit]
        cuts[snapshot.epoch] = CutOfBanks(states, names, kept, told)
    return cuts
