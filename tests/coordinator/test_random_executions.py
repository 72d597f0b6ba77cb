"""Thousands of short executions with faults: the coordinator's cores in a seeded world (`world.py`).

Checked by the world itself, all the time: one outcome per epoch (G4), no epoch complete without all reports, incarnations
only grow (G9), a plan is done only when all have applied it, plans start from the newest readable complete epoch, the line
is never deleted (G7). Checked here at the end: liveness once the faults stop (G10), and that the log alone gives the state.
"""

import random

import pytest
from tests.coordinator.world import MS, SECOND, World

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as msg

GOES_BACK = 0.3
"""So often, where a fault strikes."""


def execute(seed: int, *, goes_back: bool = False) -> World:
    """Some seconds of faults, then quiet until a new epoch completes. `goes_back`: now and then somebody takes the fleet back."""
    world = World(seed, hosts=2 + seed % 2, agents=4 + seed % 3, period_ms=150, chaos=1.0)
    rng, operator = world.random, random.Random(f"operator-{seed}")
    end = world.now_ns + rng.randrange(1_000, 4_000) * MS

    def strike() -> None:
        if world.now_ns >= end:
            return
        _fault(world)
        if goes_back and operator.random() < GOES_BACK:
            _go_back(world, operator)
        world.after(rng.randrange(20, 300) * MS, strike)

    world.after(rng.randrange(10, 1200) * MS, strike)
    world.run((end - world.now_ns) / SECOND)
    _heal(world)
    completed = world.completed()
    assert world.run(40, lambda: world.completed() > completed and world.is_running()), (
        f"seed {seed}: nothing completes after the faults, phase {world.state.phase}, notes {world.notes[-5:]}"
    )
    _check_log(world)
    complete = world.state.complete_epochs()
    assert world.run(20, lambda: not world.outputs.owed(complete, world.state.image)), f"seed {seed}: outputs are owed"
    return world


def _fault(world: World) -> None:
    rng = world.random
    name = rng.choice(sorted(world.hosts)) if world.hosts else ""
    host = world.hosts.get(name)
    choice = rng.randrange(10)
    if choice == 0 and world.core is not None:
        world.crash_leader()
    elif choice == 1 and host is not None:
        instance = host.instance
        world.kill_host(name)
        if rng.random() < 0.5:
            world.feed(ev.HostExitReported(name, instance, "killed"))
        if rng.random() < 0.7:
            world.after(rng.randrange(1, 5000) * MS, lambda: _start(world, name))
    elif choice == 2 and host is not None:
        world.disconnect(host.session)
    elif choice == 3 and host is not None and host.agents:
        world.starts += 1
        host.spawn(f"new-{rng.randrange(20)}")
        world.feed(ev.SnapshotRequested(world.asked))
    elif choice == 4 and host is not None and len(host.agents) > 1:
        agent = rng.choice(sorted(host.agents))
        host.ask(lambda request: msg.RetireAgent(request, host.plan, agent))
    elif choice == 5 and host is not None and host.agents:
        agent = rng.choice(sorted(host.agents))
        host.say(msg.AgentFailed(agent, world.incarnations[agent], "bug"))
    elif choice == 6 and host is not None:
        other = rng.choice(sorted(world.hosts))
        host.say(msg.PeerSuspected(other, world.hosts[other].start, "link broke"))
    elif choice == 7:
        world.feed(ev.SnapshotRequested(world.asked))
    elif choice == 8 and host is not None and host.begun:
        host.say(msg.EpochRefused(rng.choice(sorted(host.begun)), "cannot encode"))
    elif choice == 9 and host is not None and rng.random() < 0.3:
        host.say(msg.Leave("drained"))


def _go_back(world: World, operator: random.Random) -> None:
    """To some epoch, perhaps one that cannot be gone back to; some operators ask twice."""
    begun = world.state.image.begun
    epoch = operator.choice(world.state.complete_epochs() or [0]) if operator.random() < 0.9 else operator.randrange(9)
    drops = operator.random() < 0.5
    for request in range(1 + operator.randrange(2)):
        world.feed(ev.RestoreRequested(request, f"operator-{begun}", epoch, "on purpose", drops))


def _start(world: World, name: str) -> None:
    if name not in world.hosts:
        world.start_host(name)


def _heal(world: World) -> None:
    world.chaos = world.outputs.chaos = 0.0
    if world.core is None:
        world.run(2)
    may_stay_dead = world.state.plan_number > 0 and world.random.random() < 0.3
    for n in range(world.options.hosts_expected):
        if not (may_stay_dead and world.hosts):
            _start(world, f"h{n}")


def _check_log(world: World) -> None:
    """The same log gives the same bytes, twice, and from any image in between (G8)."""
    state = FleetState()
    cut = len(world.entries) // 2
    image = b""
    for number, entry in enumerate(world.entries):
        if number == cut:
            image = state.freeze()
        state.apply(op.decode_operation(entry))
    assert state.freeze() == world.state.freeze()
    again = FleetState.restore(image)
    for entry in world.entries[cut:]:
        again.apply(op.decode_operation(entry))
    assert again.freeze() == world.state.freeze()


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 6))])
def test_random_executions_keep_every_rule_and_recover(batch: int) -> None:
    worlds = [execute(seed) for seed in range(batch * 50, batch * 50 + 50)]
    # Against vacuity: the faults did what they should.
    assert sum(world.state.plan_number for world in worlds) > 80
    assert sum(world.state.image.aborted for world in worlds) > 50
    assert sum(world.completed() for world in worlds) > 150
    assert any(world.leaders > 1 for world in worlds)


@pytest.mark.parametrize("batch", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_executions_in_which_the_fleet_is_taken_back_keep_every_rule(batch: int) -> None:
    """Beside all faults: epochs that became void are never a line again, and each word is answered by whoever lives to do so."""
    worlds = [execute(seed, goes_back=True) for seed in range(500 + batch * 20, 520 + batch * 20)]
    assert sum(len(world.voided) for world in worlds) > 6
    assert any(answer.refused for world in worlds for answer in world.restores)
    assert all(world.state.newest_complete() not in world.voided for world in worlds)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(50))
def test_thousands_of_random_executions(batch: int) -> None:
    for seed in range(1000 + batch * 100, 1100 + batch * 100):
        execute(seed)


def test_the_same_seed_gives_the_same_log() -> None:
    assert execute(7).entries == execute(7).entries
