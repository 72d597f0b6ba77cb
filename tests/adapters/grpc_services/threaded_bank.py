"""A bank of the mesh with a threaded server and stubs that wait: `python -m tests.adapters.grpc_services.threaded_bank NAME COORDINATOR STORE STOP NAME=ADDRESS …`.

The first one is the bank of grpc.aio all the same, so that both hand tokens to each other.
"""

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
from tests.adapters.grpc_services import token_bank
from tests.adapters.grpc_services.bank_fleets import BESIDE_TILLS, PROTO, TILLS, Coins, Kept, mesh, mixed

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member_call import unpack
from snapline.adapters.grpc.threaded_member import ThreadedMember

GIVING, SERVING = 3, 16
"""Threads that hand tokens on by themselves, and of the server."""


class ThreadedBank:
    """As `token_bank.Bank`. Its lock is of one sum, and nobody holds it across a call; between two calls each thread leaves the books as they should be."""

    def __init__(self, name: str, stop: str, tills: list[str], told: float = 0.4, dawdle_s: float = 0.0) -> None:
        """`dawdle_s`: within each piece, at most."""
        self.name, self.stop, self.tills, self.told = name, stop, tills, told
        self.kept = Kept()
        self.protos: Any = grpc.protos(PROTO)
        self.stubs: list[Any] = []
        self.member: ThreadedMember
        self._lock, self._dawdle_s = threading.Lock(), dawdle_s

    # ---- what a service owes ----------------------------------------------------------------------------------------

    def capture(self) -> bytes:
        return msgspec.msgpack.encode(self.kept)

    def restore(self, state: bytes) -> None:
        self.kept = msgspec.msgpack.decode(state, type=Kept)
        for _ in range(GIVING):
            self.member.start(self.give)

    def on_cut(self, epoch: int) -> None:
        pass

    def ready(self) -> bool:
        """As the other bank's."""
        return time.monotonic() % 0.0437 > 0.009

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        if not answer.code:
            backs = unpack(answer.response) if call.answers_stream else [answer.response]
            self.earn(sum(self.protos.Tokens.FromString(back).amount for back in backs))

    def earn(self, amount: int) -> None:
        """Tokens from whoever it may be; or to them."""
        if self._dawdle_s:
            time.sleep(random.random() * self._dawdle_s)
        with self._lock:
            self.kept.tokens += amount
        if self._dawdle_s:
            time.sleep(random.random() * self._dawdle_s)

    def spend(self, amount: int) -> bool:
        """If it has more than that."""
        with self._lock:
            has = self.kept.tokens >= 5
            self.kept.tokens -= amount if has else 0
        if self._dawdle_s:
            time.sleep(random.random() * self._dawdle_s)
        return has

    # ---- what it does -----------------------------------------------------------------------------------------------

    def give(self) -> None:
        while not os.path.exists(self.stop):
            self.member.sleep(random.expovariate(200))
            amount = random.randint(2, 5)
            if not self.spend(amount):
                continue
            if self.tills and random.random() < self.told:
                self.member.tell(random.choice(self.tills), Coins(amount))
            else:
                random.choice([self.give_at_once, self.give_at_once, self.give_side_by_side, self.give_in_streams])(
                    random.choice(self.stubs), amount
                )

    def give_at_once(self, stub: Any, amount: int) -> None:
        if random.random() < 0.3:
            random.choice([stub.Take, stub.Relay]).send(self.protos.Tokens(amount=amount))
            return
        back = random.choice([stub.Swap, stub.Carry, stub.Relay])(self.protos.Tokens(amount=amount))
        self.earn(back.amount)

    def give_side_by_side(self, stub: Any, amount: int) -> None:
        calls = [stub.Swap.future(self.protos.Tokens(amount=each)) for each in (1, amount - 1)]
        for call in calls:
            self.earn(call.result().amount)

    def give_in_streams(self, stub: Any, amount: int) -> None:
        one = self.protos.Tokens(amount=1)
        way = random.choice(["Spread", "Collect", "Trade"])
        if way == "Collect":
            self.earn(stub.Collect(iter([one] * amount)).amount)
            return
        asked = [self.protos.Tokens(amount=2), self.protos.Tokens(amount=amount - 2)]
        call = stub.Spread(self.protos.Tokens(amount=amount)) if way == "Spread" else stub.Trade(iter(asked))
        for back in call:
            self.earn(back.amount)

    def Take(self, request: Any, context: Any) -> Any:
        self.earn(request.amount)
        return self.protos.Tokens(amount=0)

    def Swap(self, request: Any, context: Any) -> Any:
        self.earn(request.amount - 1)
        return self.protos.Tokens(amount=1)

    def Spread(self, request: Any, context: Any) -> Iterator[Any]:
        yield self.protos.Tokens(amount=1)
        self.earn(request.amount - 2)
        yield self.protos.Tokens(amount=1)

    def Collect(self, requests: Any, context: Any) -> Any:
        self.earn(sum(each.amount for each in requests))
        return self.protos.Tokens(amount=0)

    def Trade(self, requests: Any, context: Any) -> Iterator[Any]:
        for each in requests:
            self.earn(each.amount - 1)
            yield self.protos.Tokens(amount=1)

    def Carry(self, request: Any, context: Any) -> Any:
        if request.amount == 1:
            return self.Swap(request, context)
        back = self.stubs[0].Carry(self.protos.Tokens(amount=request.amount - 1))
        self.earn(1)
        return back

    def Relay(self, request: Any, context: Any) -> Any:
        self.member.changed(self.protos.Tokens(amount=0))
        self.earn(1)
        back = self.stubs[0].Swap(self.protos.Tokens(amount=request.amount - 1))
        self.earn(back.amount)
        return self.protos.Tokens(amount=0)


def server_of(bank: ThreadedBank, address: str) -> grpc.Server:
    """It serves this bank, as soon as it is started."""
    server = grpc.server(
        ThreadPoolExecutor(SERVING), interceptors=[bank.member.interceptor], options=[("grpc.so_reuseport", 0)]
    )
    services: Any = grpc.services(PROTO)
    services.add_BankServicer_to_server(bank, server)
    server.add_insecure_port(address)
    return server


def main(name: str, coordinator: str, store: str, stop: str, *places: str) -> int:
    addresses = dict(place.split("=") for place in places)
    if name == next(iter(addresses)):
        return asyncio.run(token_bank.main(name, coordinator, store, stop, *places))
    fleet = mixed() if tuple(addresses) == BESIDE_TILLS else mesh(*addresses)
    bank = ThreadedBank(name, stop, [agent for agent in fleet.agents if agent in TILLS])
    bank.member = member = ThreadedMember(bank, agent=name, fleet=fleet, coordinator=coordinator, store=store)
    services: Any = grpc.services(PROTO)
    others = [each for each in addresses if each > name] + [each for each in addresses if each < name]
    bank.stubs = [services.BankStub(member.channel(addresses[each])) for each in others]
    server = server_of(bank, addresses[name])
    server.start()
    try:
        return member.run()
    finally:
        server.stop(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
