"""Bugs of the product that the simulator found, each with the run that showed it: it failed before the fix, and passes now.

Seeds are pinned, and what a seed does changes with the product: a run that no longer gets into the situation stays green for no
reason. So each row was seen to fail with the code of its day, and names the fix; the situation itself is pinned by the unit
or conformance test that came with the fix.

To add one: the scenario as drawn (`config.toml` of the run's folder), or as shrunk, its seed, and what it was.
"""

import msgspec
import pytest

from snapline.coordinator.leader.core import LeaderCore
from snapline.coordinator.leader.events import Command, Event, TimerFired
from snapline.coordinator.leader.hosts.host_sessions import HostSession
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.leader.modes.recovery_line import RecoveryLines
from snapline.coordinator.leader.recovery_plans import Plans
from snapline.messages.host_messages import AgentFailed
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario
from snapline.sim.workloads import make_workload


class FoundBug(msgspec.Struct, frozen=True):
    """One bug, and a run in which it showed. `log_bytes_max` is the fleet's, where it is not the default."""

    name: str
    seed: int
    what: str
    toml: str
    log_bytes_max: int = 0


LEFT_AFTER_BEGIN = """
name = "orders"
[fleet]
agents = 7
hosts = 1
coordinators = 3
protocol = "hmnr"
pattern = { name = "orders", messages = 400, rate_per_s = 242.0 }
trigger = { kind = "period", every = "140ms", jitter = 0.0 }
log_bytes_max = 500
[network]
delay = { least = "9ms", jitter = "24ms" }
paths = { "h1>c2" = { least = "100us", jitter = "5ms" } }
[store]
delay = { least = "320us", jitter = "20ms" }
[[fault]]
partition = { at = "3390ms", for = "1968ms", shape = "pair", direction = "one-way" }
[[fault]]
capture = { at = "670ms", hit = 11, times = 3 }
[[fault]]
capture = { at = "250ms", hit = 7, times = 3 }
[liveness]
within = "56400ms"
[run]
until = "6600ms"
keep_epochs = 10
snapshots_every = "100ms"
turns_in_a_row = 1
"""

GONE_FROM_A_LINE = (
    "an agent that had finished was removed after an epoch had begun and before its line was put together: the epoch did not hold "
    "it, its record said that it was a member, and every plan from the epoch wanted to restart it: the fleet ended as failed"
)

KOO_TOUEG_SPAWNING = """
name = "koo-toueg-spawning"
[fleet]
agents = 5
hosts = 3
protocol = "koo-toueg"
pattern = { name = "spawning", messages = 400 }
trigger = { kind = "period", every = "50ms" }
[[fault]]
crash = { host = "h1", at = "560ms", restart_after = "300ms" }
"""

CREATED_IN_A_ROUND = (
    "a participant's checkpoint held the creation of an agent as sent, and the line of the round did not know the agent, "
    "which was created after the round had begun: after a recovery its first messages were lost"
)

STALE_LEADER = """
name = "coordinator"
[fleet]
agents = 8
hosts = 1
coordinators = 3
protocol = "nras"
pattern = { name = "all-to-all", messages = 400, payload_bytes = 16, rate_per_s = 190.0 }
trigger = { kind = "period", every = "580ms", jitter = 0.0, messages = 50 }
[network]
delay = { least = "2500us", jitter = "1450us" }
[store]
delay = { least = "720us", jitter = "5800us" }
[[fault]]
coordinator = { at = "2100ms", kind = "depose", for = "212ms", per_mille = 100 }
[[fault]]
coordinator = { at = "525ms", kind = "unknown-outcome", for = "3s", per_mille = 100 }
[[fault]]
partition = { at = "2100ms", for = "168ms", shape = "minority-third" }
[[fault]]
partition = { at = "2880ms", for = "300ms", shape = "one" }
[liveness]
within = "30s"
[run]
faults_from = "start"
until = "4200ms"
keep_epochs = 2
rejoin_grace = "3s"
turns_in_a_row = 64
"""

UNREADABLE_FOR_A_WHILE = """
name = "swarm"
[fleet]
agents = 3
hosts = 2
coordinators = 1
protocol = "chandy-lamport"
pattern = { name = "skewed", messages = 200, payload_bytes = 16, rate_per_s = 129.0 }
trigger = { kind = "period", every = "21ms", jitter = 0.5, messages = 50 }
[network]
delay = { least = "4ms", jitter = "1150us" }
[store]
delay = { least = "16ms", jitter = "850us" }
[[fault]]
reset = { at = "420ms", times = 5, every = "340ms" }
[[fault]]
disk = { at = "1240ms", for = "1600ms", mode = "eio", restart_after = "675ms" }
[[fault]]
membership = { at = "1140ms", back_after = "1960ms" }
[[fault]]
pause = { at = "980ms", for = "2120ms" }
[liveness]
within = "30s"
[run]
until = "3100ms"
keep_epochs = 10
rejoin_grace = "100ms"
turns_in_a_row = 4
"""

CONDEMNED_WHOLE = (
    "the coordinator's disk failed for a moment, each read of an epoch was taken for damage, and one good epoch after the other was "
    "condemned: the fleet began anew"
)

FULL_WHILE_NOBODY_LEADS = """
name = "swarm"
[fleet]
agents = 6
hosts = 5
coordinators = 1
protocol = "chandy-lamport"
pattern = { name = "failing", messages = 400, payload_bytes = 16, rate_per_s = 0.0 }
trigger = { kind = "period", every = "130ms", jitter = 0.1, messages = 50 }
[network]
delay = { least = "5500us", jitter = "2200us" }
[store]
delay = { least = "4200us", jitter = "280us" }
[[fault]]
swizzle = { at = "1800ms", for = "150ms" }
[[fault]]
disk = { at = "620ms", for = "1781ms", mode = "full", restart_after = "1050ms" }
[[fault]]
crash = { restart_after = "1600ms", failpoint = "store.pack.directory" }
[[fault]]
crash = { restart_after = "262ms", failpoint = "store.probe.linked", hit = 4 }
[[fault]]
crash = { restart_after = "775ms", failpoint = "store.pack.synced", hit = 3 }
[[fault]]
crash = { restart_after = "775ms", failpoint = "store.ref.synced", hit = 3 }
[[fault]]
crash = { restart_after = "600ms", failpoint = "store.delete.ref", hit = 4 }
[[fault]]
crash = { restart_after = "750ms", failpoint = "coordinator.epoch.checked" }
[liveness]
within = "36160ms"
[run]
until = "3800ms"
keep_epochs = 10
rejoin_grace = "100ms"
turns_in_a_row = 1
"""

REFUSAL_LOST = (
    "a host whose disk was full refused an epoch while there was no coordinator, and did not say so again: the epoch stayed open "
    "until its time-out"
)

ONE_HOST_CANNOT_READ = """
name = "swarm"
[fleet]
agents = 2
hosts = 5
coordinators = 3
protocol = "uncoordinated"
pattern = { name = "spawning", messages = 400, payload_bytes = 16, rate_per_s = 0.0 }
trigger = { kind = "period", every = "20ms", jitter = 0.1, messages = 50 }
[network]
delay = { least = "40ms", jitter = "310us" }
[store]
delay = { least = "12ms", jitter = "7200us" }
[[fault]]
disk = { at = "800ms", for = "2343ms", mode = "eio", restart_after = "" }
[[fault]]
swizzle = { at = "1790ms", for = "131ms" }
[[fault]]
crash = { at = "800ms", restart_after = "" }
[liveness]
within = "62248ms"
[run]
until = "3600ms"
keep_epochs = 2
rejoin_grace = "100ms"
turns_in_a_row = 4
"""

GAVE_UP_AT_ONCE = "a host whose disk could not be read for two seconds refused three plans, and the coordinator ended the fleet as failed"

ACKNOWLEDGED_BY_A_STALE_LEADER = (
    "a leader that did not know that it was deposed acknowledged checkpoints; their host did not say them again, the new leader "
    "had looked into the store before they were written, and its line was older than need be"
)

SPAWN_PENDING = """
name = "spawn-lost"
[fleet]
agents = 3
hosts = 2
coordinators = 1
protocol = "chandy-lamport"
pattern = { name = "spawning", messages = 400, payload_bytes = 16, rate_per_s = 300.0 }
trigger = { kind = "period", every = "100ms", jitter = 0.1, messages = 50 }
[network]
delay = { least = "500us", jitter = "1ms" }
[store]
delay = { least = "1ms", jitter = "2ms" }
[[fault]]
delay = { at = "0s", for = "6s", between = ["c1", "h1"], least = "60ms", jitter = "0ms" }
[[fault]]
crash = { at = "1462ms", restart_after = "200ms" }
[[fault]]
crash = { at = "2681ms", restart_after = "50ms" }
[[fault]]
crash = { at = "2685ms", restart_after = "50ms" }
[liveness]
within = "30s"
[run]
until = "8s"
keep_epochs = 3
rejoin_grace = "1s"
turns_in_a_row = 64
"""

SPAWN_REFUSED = (
    "an agent was a member of an epoch in which its parent's spawn was still pending, and no recovery knew that it was unborn "
    "there: the repeated spawn was refused, since its id was taken"
)

LEADER_DIES_IN_A_LOG_EPOCH = """
name = "frozen"
[fleet]
agents = AGENTS
hosts = 2
coordinators = 3
protocol = "PROTOCOL"
pattern = { name = "PATTERN", messages = 2000, rate_per_s = 500.0 }
trigger = { every = "300ms" }
[[fault]]
crash = { failpoint = "coordinator.epoch.completed", restart_after = "500ms" }
[run]
until = "4s"
"""

FROZEN_FOR_EVER = (
    "the leader died after it had frozen the fleet for the sake of its sender logs, and the next one thawed only hosts that said again that "
    "they were frozen, which they say once: the fleet stood still for ever"
)

ASKED_ALL_THE_TIME = """
name = "asked"
[fleet]
agents = 2
hosts = 5
protocol = "cas"
pattern = { name = "cyclic", messages = 200 }
trigger = { every = "110ms", jitter = 0.1 }
log_bytes_max = 500
[network]
delay = { least = "40ms", jitter = "5400us" }
[store]
delay = { least = "1250us", jitter = "20ms" }
[[fault]]
coordinator = { at = "22ms", kind = "unknown-outcome", for = "2437ms", per_mille = 1000 }
[run]
until = "6400ms"
snapshots_every = "100ms"
"""

NEVER_PROPOSED_AGAIN = (
    "what had an unknown outcome was proposed again when a timer fired only, and each event puts off the timer: a coordinator that heard something "
    "every 100 ms completed no epoch any more, and thawed nobody"
)

CRASHES_TWICE = """
name = "poison"
[fleet]
agents = 7
hosts = 2
protocol = "hmnr"
pattern = { name = "crashing", messages = 400, rate_per_s = 250.0 }
trigger = { every = "50ms" }
[network]
delay = { least = "9ms", jitter = "3ms" }
[run]
until = "5s"
rejoin_grace = "100ms"
"""

BURIED_INSIDE = (
    "a message forced a checkpoint and was buried without a turn, both in one step of its host: the books held the burial for a part "
    "of the image, which is taken when the step is over"
)

LEAVES_WHILE_TRIED = """
name = "tried"
[fleet]
agents = 4
hosts = 2
protocol = "fdas"
pattern = { name = "failing", messages = 200 }
trigger = { kind = "messages", messages = 96 }
[network]
delay = { least = "5ms", jitter = "5ms" }
[limits]
channel_credit = 2
[run]
until = "3s"
"""

SHOWN_BY_NOBODY = (
    "a message left its sender while another one was tried there, for a turn that came to lie in the next interval: the oracle of "
    "tracking forgot what the interval had consumed before, and found a path that no vector showed"
)

SEVEN_CRASH = """
name = "crashing"
[fleet]
agents = 8
hosts = 5
coordinators = 3
protocol = "fdas"
pattern = { name = "crashing", messages = 200, rate_per_s = 58.0 }
trigger = { kind = "adaptive", every = "260ms", jitter = 0.1 }
log_bytes_max = 2000
[network]
delay = { least = "3120us", jitter = "1500us" }
[store]
delay = { least = "400us", jitter = "120us" }
[[fault]]
loss = { at = "2650ms", for = "4125ms", between = ["h3", "c3"], per_mille = 10 }
[run]
until = "6800ms"
keep_epochs = 10
turns_in_a_row = 1
"""

FAILED_FOR_ALL = (
    "seven agents got a message that crashed each of them three times, until it was a dead letter: the recoveries of all were counted together, "
    "and the fleet was given up"
)


TAKEN_BACK_TWICE = """
name = "taken back behind what is forgotten"
[fleet]
agents = 8
hosts = 4
coordinators = 3
pattern = { name = "memory", messages = 400, rate_per_s = 571.0 }
trigger = { kind = "period", every = "120ms" }
[network]
delay = { least = "26ms", jitter = "5600us" }
[store]
delay = { least = "1300us", jitter = "1350us" }
[outputs]
one_in = 1
is_watched = true
[restores]
times = 2
drops_one_in = 1
[run]
until = "2800ms"
keep_epochs = 3
[limits]
chunk_tables = 1
packs_per_epoch = 3
deleted_at_once = 1
"""

NO_BASE_ANY_MORE = (
    "taken back twice to the same epoch, the fleet completed no other one: the void epochs above it had been deleted first, and all below "
    "what was deleted counted as deleted, so no pack could be written over it"
)


MOVED_ALONE = """
name = "agents are to move, and need not any more"
[fleet]
agents = 3
hosts = 3
protocol = "uncoordinated"
pattern = { name = "planning", messages = 200, rate_per_s = 65.0 }
trigger = { kind = "period", every = "190ms" }
log_bytes_max = 8000
[network]
delay = { least = "3870us", jitter = "150us" }
paths = { "h1>c1" = { least = "60ms", jitter = "60ms" }, "h2>h3" = { least = "20ms", jitter = "20ms" }, "h2>c1" = { least = "150ms", jitter = "5ms" } }
[[fault]]
hang = { at = "3850ms", for = "2250ms" }
[[fault]]
slow = { at = "90ms", for = "1500ms", percent = 50 }
[liveness]
within = "92s"
[run]
until = "6100ms"
keep_epochs = 2
moves = 1
[limits]
freeze_ms = 200
spare_ms = 1
"""

FROZEN_FOR_A_MOVE = (
    "an operator wanted agents elsewhere, the fleet was frozen for the plan, and before it was committed nobody had to move any more: "
    "no plan came, and the fleet stood for ever"
)


FORGOTTEN_TWICE = (
    "an epoch that was void, as the fleet had been taken back, and old as well was named twice in the entry that forgets: every replica "
    "ended when it applied that, and again whenever it was started"
)

TAKEN_BACK_WHILE_SEALS_FAIL = """
name = "swarm"
[fleet]
agents = 7
hosts = 3
coordinators = 1
pattern = { name = "all-to-all", messages = 200, payload_bytes = 600 }
trigger = { kind = "period", every = "33ms", jitter = 0.0 }
[network]
delay = { least = "40ms", jitter = "2600us" }
paths = { "c1>h2" = { least = "100us", jitter = "5ms" }, "h1>h2" = { least = "100us", jitter = "0s" } }
[store]
delay = { least = "1900us", jitter = "100us" }
[clients]
count = 3
inputs = 20
pause = "5ms"
asks = true
is_settling = true
[restores]
times = 1
[[fault]]
capture = { at = "10ms", hit = 4, times = 3 }
[[fault]]
delay = { at = "12ms", for = "71ms", least = "50ms", jitter = "300ms" }
[[fault]]
disk = { mode = "eio", failpoint = "store.log.seal.directory", hit = 6 }
[[fault]]
disk = { mode = "eio", failpoint = "store.log.batch.opened", hit = 3 }
[[fault]]
disk = { mode = "eio", failpoint = "store.log.batch.linked", hit = 6 }
[[fault]]
disk = { mode = "eio", failpoint = "store.log.mark.written", hit = 6 }
[liveness]
within = "144080ms"
[run]
until = "6400ms"
keep_epochs = 2
retention = "last=3,hourly=0,daily=1"
[limits]
part_bytes = 256
frame_items = 1
frames_unacked = 2
tell_delay_ms = 200
parked_messages = 16
pack_bytes = 2000
waiting_checkpoints = 8
chunk_pack_bytes = 100000
chunk_tables = 1
agent_log_bytes = 200
host_freeze_ms = 200
log_freeze_pause_ms = 2000
line_period_ms = 50
report_gap_ms = 500
forget_at_once = 1
publish_retry_ms = 50
cut_ms = 1000
dead_bytes = 1
compact_bytes = 5000
journal_run = 3
run_chunks = 2
deleted_at_once = 2
"""


def frozen(agents: int, protocol: str, pattern: str) -> str:
    toml = LEADER_DIES_IN_A_LOG_EPOCH.replace("AGENTS", str(agents)).replace("PROTOCOL", protocol)
    return toml.replace("PATTERN", pattern)


SPAWNED_BEFORE_ITS_COMMIT = "an agent was restored with a request for a creation, and asked for the next one when a commit with the first was durable"

SPAWNS_AFTER_A_RECOVERY = """
name = "spawned before its commit"
[fleet]
agents = 4
hosts = 3
recovery = "local"
pattern = { name = "orders", messages = 200 }
trigger = { kind = "period", every = "190ms", jitter = 0.1 }
[network]
delay = { least = "30ms", jitter = "40ms" }
[store]
delay = { least = "550us", jitter = "1250us" }
[[fault]]
crash = { at = "500ms", restart_after = "200ms" }
[[fault]]
crash = { at = "900ms", restart_after = "200ms" }
[[fault]]
crash = { at = "1.3s", restart_after = "200ms" }
[[fault]]
delay = { at = "0s", for = "4s", between = ["c1", "h1"], least = "60ms", jitter = "0s" }
[liveness]
within = "40s"
[run]
until = "7s"
keep_epochs = 2
rejoin_grace = "1s"
"""

CONSUMED_TWICE = "an agent consumed a message again that its departed sender had sent: a later commit no longer said that it was consumed"

SENDER_DEPARTED = """
name = "consumed twice"
[fleet]
agents = 3
hosts = 3
recovery = "local"
pattern = { name = "spawning", messages = 100 }
trigger = { kind = "period", every = "260ms", jitter = 0.0 }
[network]
delay = { least = "7500us", jitter = "18ms" }
[store]
delay = { least = "10ms", jitter = "650us" }
[[fault]]
crash = { at = "500ms", restart_after = "200ms" }
[[fault]]
crash = { at = "900ms", restart_after = "200ms" }
[[fault]]
crash = { at = "1.3s", restart_after = "200ms" }
[[fault]]
delay = { at = "0s", for = "4s", between = ["c1", "h1"], least = "60ms", jitter = "0s" }
[liveness]
within = "40s"
[run]
until = "4s"
keep_epochs = 3
"""

MARKED_BEFORE_THE_HOLD = (
    "an effect whose mark was logged before the fleet's end was decided was never called, and the fleet did not end"
)

HELD_BY_ITS_END = """
name = "marked before the hold"
[fleet]
agents = 2
hosts = 1
recovery = "local"
pattern = { name = "booking-until", messages = 60 }
trigger = { kind = "period", every = "250ms", jitter = 0.1 }
[network]
delay = { least = "2620us", jitter = "2100us" }
[store]
delay = { least = "1550us", jitter = "650us" }
[clients]
count = 2
inputs = 8
pause = "100ms"
is_settling = true
[steps]
late_per_mille = 100
[[fault]]
crash = { at = "800ms", restart_after = "200ms" }
[[fault]]
crash = { at = "1.4s", restart_after = "200ms" }
[[fault]]
crash = { at = "2s", restart_after = "200ms" }
[liveness]
within = "100s"
[run]
until = "4s"
keep_epochs = 4
"""

FOUND = [
    FoundBug("left-after-begin", 22, GONE_FROM_A_LINE, LEFT_AFTER_BEGIN),
    FoundBug("koo-toueg-created-in-a-round-2", 2, CREATED_IN_A_ROUND, KOO_TOUEG_SPAWNING),
    FoundBug("koo-toueg-created-in-a-round-67", 67, CREATED_IN_A_ROUND, KOO_TOUEG_SPAWNING),
    FoundBug("acknowledged-by-a-stale-leader", 20001, ACKNOWLEDGED_BY_A_STALE_LEADER, STALE_LEADER),
    FoundBug("condemned-whole-epochs", 1404, CONDEMNED_WHOLE, UNREADABLE_FOR_A_WHILE),
    FoundBug("lost-refusal", 2938, REFUSAL_LOST, FULL_WHILE_NOBODY_LEADS),
    FoundBug("spawn-refused-after-a-recovery", 2, SPAWN_REFUSED, SPAWN_PENDING),
    FoundBug("frozen-for-ever", 2, FROZEN_FOR_EVER, frozen(4, "uncoordinated", "random"), log_bytes_max=2000),
    FoundBug("frozen-for-ever-hmnr", 2, FROZEN_FOR_EVER, frozen(4, "hmnr", "bank"), log_bytes_max=2000),
    FoundBug("never-proposed-again", 3799, NEVER_PROPOSED_AGAIN, ASKED_ALL_THE_TIME),
    FoundBug("buried-in-the-step-of-an-image", 0, BURIED_INSIDE, CRASHES_TWICE),
    FoundBug("left-while-another-was-tried", 0, SHOWN_BY_NOBODY, LEAVES_WHILE_TRIED),
    FoundBug("failed-for-all", 3584, FAILED_FOR_ALL, SEVEN_CRASH),
    FoundBug("gave-up-at-once", 8625, GAVE_UP_AT_ONCE, ONE_HOST_CANNOT_READ),
    FoundBug("no-base-any-more", 30825, NO_BASE_ANY_MORE, TAKEN_BACK_TWICE),
    FoundBug("forgotten-twice", 503333, FORGOTTEN_TWICE, TAKEN_BACK_WHILE_SEALS_FAIL),
    FoundBug("frozen-for-a-move", 100294, FROZEN_FOR_A_MOVE, MOVED_ALONE),
    FoundBug("spawned-before-its-commit", 58, SPAWNED_BEFORE_ITS_COMMIT, SPAWNS_AFTER_A_RECOVERY),
    FoundBug("consumed-twice", 48, CONSUMED_TWICE, SENDER_DEPARTED),
    FoundBug("marked-before-the-hold", 14, MARKED_BEFORE_THE_HOLD, HELD_BY_ITS_END),
]


@pytest.mark.parametrize("bug", FOUND, ids=[bug.name for bug in FOUND])
def test_a_bug_that_was_found_does_not_come_back(bug: FoundBug) -> None:
    scenario = parse_scenario(bug.toml, source=bug.name)
    workload = make_workload(scenario.fleet)
    if bug.log_bytes_max:
        workload.fleet.log_bytes_max = bug.log_bytes_max
    result = run(scenario, bug.seed, workload=workload)
    assert result.verdict == "pass", (bug.what, result.violations or result.pending or result.error)


def test_a_line_without_who_left_since_it_began_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mend put back: the epoch consists of those who live when its line is put together."""
    materialise = RecoveryLines.materialise
    monkeypatch.setattr(
        RecoveryLines,
        "materialise",
        lambda self, epoch, line, members: materialise(
            self, epoch, line, [each for each in members if each[1].left_plan is None]
        ),
    )
    result = run(parse_scenario(LEFT_AFTER_BEGIN, source="here"), 22)
    assert result.verdict == "undecided" and "could not apply plan" in result.pending[0]


def test_proposing_again_at_timers_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mend put back: only an event that is a timer looks for what is due."""
    handle, propose_again, at_timer = LeaderCore.handle, LeaderState.propose_again, [False]

    def told(self: LeaderCore, now_ns: int, event: Event) -> list[Command]:
        at_timer[0] = isinstance(event, TimerFired)
        return handle(self, now_ns, event)

    monkeypatch.setattr(LeaderCore, "handle", told)
    monkeypatch.setattr(LeaderState, "propose_again", lambda self: propose_again(self) if at_timer[0] else None)
    result = run(parse_scenario(ASKED_ALL_THE_TIME, source="here"), 3799)
    assert result.verdict == "undecided" and "epochs" in str(result.pending)


def test_counting_the_failures_of_all_agents_together_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mend put back: whoever fails, all have."""
    on_agent_failed = Plans.on_agent_failed

    def mutant(self: Plans, session: HostSession, message: AgentFailed) -> None:
        on_agent_failed(self, session, message)
        line, failures = self._agent_failures
        self._agent_failures = line, dict.fromkeys(self._shared.state.image.agents, max(failures.values(), default=0))

    monkeypatch.setattr(Plans, "on_agent_failed", mutant)
    result = run(parse_scenario(SEVEN_CRASH, source="here"), 3584)
    assert result.verdict == "undecided" and "did not help" in str(result.pending)
