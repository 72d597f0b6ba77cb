"""The host adapter, as far as it can be seen without a network; processes are in `tests/integration`."""

import asyncio

import pytest

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.process import Host, HostOptions
from snapline.agent_runtime.message_encoding import encode_message
from snapline.security.transport import Security


class Wait(snapline.Message):
    fails: bool


class Waiter(snapline.Agent):
    @snapline.handler
    async def on_wait(self, message: Wait, ctx: snapline.Context) -> None:
        await asyncio.sleep(0)
        if message.fails:
            raise ValueError("no")


def make_host() -> Host:
    fleet = snapline.Fleet("f", agents={"a": Waiter()})
    return Host(
        HostOptions(
            host="h1",
            instance="i",
            fleet=fleet,
            coordinator="127.0.0.1:1",
            store="unused",
            security=Security.loopback(),
        )
    )


@pytest.mark.parametrize("fails", [False, True])
async def test_an_agent_counts_as_busy_while_its_turn_runs_and_no_longer(fails: bool) -> None:
    """Heartbeats name agents whose turns are long, to explain why an epoch waits."""
    host = make_host()
    driver = host._driver
    driver.turns.add("a", Waiter())
    driver.queue.append(ev.StartTurn("a", 1, "message", "b", encode_message(Wait(fails))))
    driver.run_turns()
    assert list(driver.started) == ["a"]
    await asyncio.sleep(0.01)
    assert not driver.started
