"""A gRPC service of the cycle: `python -m tests.adapters.one_cut.passing_bank NAME COORDINATOR STORE STOP NAME=ADDRESS …`.

It is the bank of the mesh. The first one hands tokens to the second in all the ways that a stub has, and the second tells the native agent behind it.
"""

import asyncio
import sys

from tests.adapters.grpc_services.token_bank import Bank, serve
from tests.adapters.one_cut.native_cycle import next_agent
from tests.adapters.one_cut.one_fleet import BANKS, fleet


async def main(name: str, coordinator: str, store: str, stop: str, *places: str) -> int:
    addresses = dict(place.split("=") for place in places)
    tills = [] if next_agent(name) in BANKS else [next_agent(name)]
    return await serve(Bank(name, stop, tills, told=1.0), fleet(), coordinator, store, addresses)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
