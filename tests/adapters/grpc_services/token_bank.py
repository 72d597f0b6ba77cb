"""A plain gRPC service of the mesh that tests kill: `python -m tests.adapters.grpc_services.token_bank NAME COORDINATOR STORE STOP NAME=ADDRESS …`.

It hands tokens to the others in all ways until the file STOP is there; where there are two of them, also to native agents of the same fleet.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
import msgspec
from tests.adapters.grpc_services.bank_fleets import BESIDE_TILLS, PROTO, TILLS, Coins, Kept, mesh, mixed

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member import Member
from snapline.adapters.grpc.member_call import unpack
from snapline.agent_runtime.fleet import Fleet


class Bank:
    """The servicer, and what the member asks of it. Of all that it hands on a share of `told` goes to agents, if there are `tills`."""

    def __init__(self, name: str, stop: str, tills: list[str], told: float = 0.4) -> None:
        self.name, self.stop, self.tills, self.told = name, stop, tills, told
        self.kept = Kept()
        self.protos: Any = grpc.protos(PROTO)
        self.stubs: list[Any] = []
        self.member: Member

    # ---- what a service owes ----------------------------------------------------------------------------------------

    def capture(self) -> bytes:
        return msgspec.msgpack.encode(self.kept)

    def restore(self, state: bytes) -> None:
        self.kept = msgspec.msgpack.decode(state, type=Kept)
        for _ in range(3):
            self.member.start(self.give())

    def on_cut(self, epoch: int) -> None:
        pass

    def ready(self) -> bool:
        """Not for a while now and then; at no part of a trigger's period, or all epochs might fall into these."""
        return time.monotonic() % 0.0437 > 0.009

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        if not answer.code:
            backs = unpack(answer.response) if call.answers_stream else [answer.response]
            self.earn(sum(self.protos.Tokens.FromString(back).amount for back in backs))

    def earn(self, amount: int) -> None:
        self.kept.tokens += amount

    # ---- what it does -----------------------------------------------------------------------------------------------

    async def give(self) -> None:
        while not os.path.exists(self.stop):
            await asyncio.sleep(random.expovariate(200))
            stub = random.choice(self.stubs)
            if self.kept.tokens < 5:
                continue
            amount = random.randint(2, 5)
            self.kept.tokens -= amount
            if self.tills and random.random() < self.told:
                self.member.tell(random.choice(self.tills), Coins(amount))
                continue
            if random.random() < 0.3:
                random.choice([stub.Take, stub.Relay]).send(self.protos.Tokens(amount=amount))
                continue
            if random.random() < 0.3:
                await self.give_in_streams(stub, amount)
                continue
            back = await random.choice([stub.Swap, stub.Carry, stub.Relay])(self.protos.Tokens(amount=amount))
            self.kept.tokens += back.amount

    async def give_in_streams(self, stub: Any, amount: int) -> None:
        one = self.protos.Tokens(amount=1)
        way = random.choice(["Spread", "Collect", "Trade"])
        if way == "Collect":
            back = await stub.Collect([one] * amount)
            self.kept.tokens += back.amount
            return
        asked = [self.protos.Tokens(amount=2), self.protos.Tokens(amount=amount - 2)]
        call = stub.Spread(self.protos.Tokens(amount=amount)) if way == "Spread" else stub.Trade(iter(asked))
        async for back in call:
            self.kept.tokens += back.amount

    async def Take(self, request: Any, context: Any) -> Any:
        self.kept.tokens += request.amount
        return self.protos.Tokens(amount=0)

    async def Swap(self, request: Any, context: Any) -> Any:
        self.kept.tokens += request.amount - 1
        return self.protos.Tokens(amount=1)

    async def Spread(self, request: Any, context: Any) -> Any:
        yield self.protos.Tokens(amount=1)
        self.kept.tokens += request.amount - 2
        yield self.protos.Tokens(amount=1)

    async def Collect(self, requests: Any, context: Any) -> Any:
        amount = sum([each.amount async for each in requests])
        self.kept.tokens += amount
        return self.protos.Tokens(amount=0)

    async def Trade(self, requests: Any, context: Any) -> Any:
        async for each in requests:
            self.kept.tokens += each.amount - 1
            yield self.protos.Tokens(amount=1)

    async def Carry(self, request: Any, context: Any) -> Any:
        if request.amount == 1:
            return await self.Swap(request, context)
        back = await self.stubs[0].Carry(self.protos.Tokens(amount=request.amount - 1))
        self.kept.tokens += 1
        return back

    async def Relay(self, request: Any, context: Any) -> Any:
        self.member.changed(self.protos.Tokens(amount=0))
        self.kept.tokens += 1
        back = await self.stubs[0].Swap(self.protos.Tokens(amount=request.amount - 1))
        self.kept.tokens += back.amount
        return self.protos.Tokens(amount=0)


async def main(name: str, coordinator: str, store: str, stop: str, *places: str) -> int:
    addresses = dict(place.split("=") for place in places)
    fleet = mixed() if tuple(addresses) == BESIDE_TILLS else mesh(*addresses)
    bank = Bank(name, stop, [agent for agent in fleet.agents if agent in TILLS])
    return await serve(bank, fleet, coordinator, store, addresses)


async def serve(bank: Bank, fleet: Fleet, coordinator: str, store: str, addresses: Mapping[str, str]) -> int:
    """Be this bank until the fleet ends. `addresses`: of all banks."""
    name = bank.name
    bank.member = member = Member(bank, agent=name, fleet=fleet, coordinator=coordinator, store=store)
    services: Any = grpc.services(PROTO)
    others = [each for each in addresses if each > name] + [each for each in addresses if each < name]
    bank.stubs = [services.BankStub(member.channel(addresses[each])) for each in others]
    server = grpc.aio.server(interceptors=[member.interceptor], options=[("grpc.so_reuseport", 0)])
    services.add_BankServicer_to_server(bank, server)
    server.add_insecure_port(addresses[name])
    await server.start()
    try:
        return await member.run()
    finally:
        await server.stop(0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
