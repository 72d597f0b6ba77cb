"""The paced bank under SIGKILL: shared by the tests that kill at chosen and at random moments."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.integration.cuts import check_paced_bank, checkpoints_of, store_of
from tests.integration.fleets import paced_bank
from tests.integration.running import Running, running

from snapline.deploy.local import OnFailure

TOKENS = 450
HOSTS = 3


@contextlib.asynccontextmanager
async def bank_to_be_hurt(
    data_dir: Path,
    *,
    on_failure: OnFailure = "restart",
    nap_s: float = 0.0,
    period_s: float = 0.2,
    coordinators: int = 1,
) -> AsyncIterator[Running]:
    """A bank that works until the block ends. It must then come to its end by itself, with every token."""
    stop = data_dir.with_name("stop")
    arguments = {"stop": str(stop), "nap": f"{nap_s}", "period": f"{period_s}"}
    async with running(
        data_dir, "paced_bank:fleet", arguments, hosts=HOSTS, on_failure=on_failure, coordinators=coordinators
    ) as bank:
        yield bank
        while not _has_caught_a_message(data_dir):  # else `check_paced_bank` would leave that to chance
            await bank.until_more_epochs()
        stop.touch()
        await bank.end()
    check_paced_bank(data_dir, paced_bank.fleet(**arguments), tokens=TOKENS)


def _has_caught_a_message(data_dir: Path) -> bool:
    """Whether any cut holds a message on its way."""
    store = store_of(data_dir)
    return any(found.in_transit for epoch in store.epochs() for found in checkpoints_of(store, epoch).values())
