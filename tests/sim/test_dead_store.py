"""A store that takes nothing for long: agents stand still before the memory is full, visibly, and go on when it takes again."""

from collections.abc import Callable

import pytest

from snapline.agent_runtime.host import checkpoint_writer, logged_agent
from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.agent_runtime.host.modes import logged as logged_mode
from snapline.agent_runtime.host.modes.logged_checkpoints import AgentPause
from snapline.coordinator.leader.modes import koo_toueg_epochs
from snapline.protocols.names import PROTOCOLS, is_logged
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario

LOGS_MAX, CHECKPOINTS_MAX = 4_000, 40
SLACK = 5_000
"""What one turn of each agent may add when the limit is passed."""

DEAD = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "{protocol}"
pattern = {{ name = "random", messages = 2000, payload_bytes = 64, rate_per_s = 1000 }}
trigger = {{ kind = "period", every = "100ms" }}
[[fault]]
disk = {{ host = "h1", mode = "full", at = "300ms", for = "4s" }}
[[fault]]
disk = {{ host = "h2", mode = "full", at = "300ms", for = "4s" }}
"""


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small limits; filled with the most bytes of logs that a host had, and how often agents stood still."""
    monkeypatch.setattr(logged_agent, "LOGS_BYTES_MAX", LOGS_MAX)
    monkeypatch.setattr(logged_mode, "LOGS_BYTES_MAX", LOGS_MAX)
    monkeypatch.setattr(checkpoint_writer, "WAITING_CHECKPOINTS_MAX", CHECKPOINTS_MAX)
    found = [0, 0]
    keep, stand = LoggedAgent.keep, AgentPause._pause_agents

    def kept(self: LoggedAgent, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        keep(self, receiver, number, payload, piggyback)
        found[0] = max(found[0], self.backlog.log_bytes)

    def stood(self: AgentPause) -> None:
        stand(self)
        found[1] += 1

    monkeypatch.setattr(LoggedAgent, "keep", kept)
    monkeypatch.setattr(AgentPause, "_pause_agents", stood)
    return found


def dead(protocol: str) -> Result:
    return run(parse_scenario(DEAD.format(protocol=protocol), source="here"), 1)


OFTEN = ("koo-toueg", "uncoordinated")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in PROTOCOLS if is_logged(name) and name not in OFTEN]


@pytest.mark.parametrize("protocol", [*OFTEN, *SLOW])
def test_agents_stand_still_and_go_on(protocol: str, most: list[int]) -> None:
    result = dead(protocol)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert most[1] > 0 and most[0] < LOGS_MAX + SLACK, most


@pytest.mark.slow
def test_large_logs_begin_a_round(monkeypatch: pytest.MonkeyPatch, most: list[int]) -> None:
    """Koo-Toueg: the logs of agents that no round has asked for long were bounded by nothing."""
    monkeypatch.setattr(koo_toueg_epochs, "ROUND_LOG_BYTES", LOGS_MAX // 4)
    scenario = DEAD.format(protocol="koo-toueg").replace('every = "100ms"', 'every = "1h"').partition("[[fault]]")[0]
    # Logs that are left at the end are small: somebody asks for a snapshot now and then, so that the run may come to its end.
    result = run(parse_scenario(f'{scenario}[run]\nsnapshots_every = "20s"\n', source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.metrics["epochs_complete"] > 50


def nobody_stands(patch: pytest.MonkeyPatch) -> None:
    """The memory fills."""
    patch.setattr(AgentPause, "_pause_agents", lambda self: None)


def nobody_goes_on(patch: pytest.MonkeyPatch) -> None:
    """G10: the store works again, and nothing else does."""
    patch.setattr(AgentPause, "_go_on", lambda self: None)


@pytest.mark.parametrize("mutant", [nobody_stands, nobody_goes_on], ids=lambda mutant: mutant.__name__)
def test_the_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], most: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert dead("uncoordinated").verdict != "pass" or most[0] > LOGS_MAX + SLACK
