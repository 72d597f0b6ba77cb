"""Logged protocols in the seeded world: thousands of short executions with faults.

Checked by the world, all the time: each epoch's line is the greatest consistent cut of what the leader has been told, made
from exactly the packs that hold it, none of which has been deleted (G1, G5, G7); a plan starts from the greatest consistent
cut with the survivors' live states (G3); what holds for every fleet (G4, G9). Here, at the end: liveness (G10).
"""

import collections
import functools

import pytest
from tests.coordinator.logged_world import NOTHING, LoggedHost, LoggedWorld
from tests.coordinator.test_random_executions import _check_log, _start
from tests.coordinator.world import MS, SECOND

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.modes.checkpoint_ledger import ADDED, Ledger
from snapline.coordinator.service.fleet_answers import autonomous_line, autonomous_lines, single_failures
from snapline.messages import host_messages as msg
from snapline.messages.answers import document_of

PROTOCOLS = ("uncoordinated", "bcs", "koo-toueg")


def execute(seed: int, protocol: str) -> LoggedWorld:
    """Some seconds of faults, then quiet until a snapshot can be taken."""
    world = LoggedWorld(
        seed,
        protocol,
        hosts=2 + seed % 2,
        agents=4 + seed % 3,
        period_ms=150,
        chaos=1.0,
        log_bytes_max=(0, 4000)[seed // 2 % 2],
        checkpoint_rate=(0.1, 0.3, 0.8)[seed // 4 % 3],
    )
    rng = world.random
    end = world.now_ns + rng.randrange(1_000, 6_000) * MS

    def strike() -> None:
        if world.now_ns < end:
            _fault(world)
            world.after(rng.randrange(20, 600) * MS, strike)

    world.after(rng.randrange(10, 1500) * MS, strike)
    world.run((end - world.now_ns) / SECOND)
    world.chaos = 0.0
    for n in range(world.options.hosts_expected):
        if f"h{n}" not in world.hosts:
            world.start_host(f"h{n}")
    _can_snapshot(world, seed)
    assert world.run(8, lambda: not world.frozen_hosts()), f"seed {seed}: {world.frozen_hosts()} are frozen for ever"
    _check_log(world)
    return world


def _can_snapshot(world: LoggedWorld, seed: int) -> None:
    """Within a minute the fleet runs, and a snapshot that is asked for completes."""
    end_ns = world.now_ns + 60 * SECOND
    while world.now_ns < end_ns:
        world.run(1)
        if world.core is not None and world.is_running():
            world.feed(ev.SnapshotRequested(1_000_000))
            if world.run(8, lambda: any(x.request == 1_000_000 and x.is_complete for x in world.answers)):
                return
    pytest.fail(f"seed {seed}: no snapshot after the faults, phase {world.state.phase}, notes {world.notes[-6:]}")


def _fault(world: LoggedWorld) -> None:
    rng = world.random
    name = rng.choice(sorted(world.hosts)) if world.hosts else ""
    host = world.hosts.get(name)
    choice = rng.randrange(8)
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
        host.spawn(f"new-{rng.randrange(6)}")
    elif choice == 4 and host is not None and host.living:
        agent = rng.choice(sorted(host.living))
        host.living[agent].is_failed = True
        host.say(msg.AgentFailed(agent, world.incarnations[agent], "bug"))
    elif choice == 5 and host is not None:
        other = rng.choice(sorted(world.hosts))
        host.say(msg.PeerSuspected(other, world.hosts[other].start, "link broke"))
    elif choice == 6:
        world.feed(ev.SnapshotRequested(world.asked))
    elif choice == 7 and host is not None and rng.random() < 0.3:
        host.say(msg.Leave("drained"))


@pytest.mark.parametrize("protocol", [*PROTOCOLS[:2], pytest.param(PROTOCOLS[2], marks=pytest.mark.slow)])
def test_random_executions_keep_every_rule_and_recover(protocol: str) -> None:
    worlds = [execute(seed, protocol) for seed in (*range(15), 121)]
    assert sum(world.state.plan_number for world in worlds) > 30
    assert sum(world.completed() for world in worlds) > 30
    assert any(world.leaders > 1 for world in worlds)
    if protocol != "koo-toueg":
        assert sum(world.kept for world in worlds) > 12, "no survivor ever kept its live state"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batch", range(20))
def test_thousands_of_random_executions(protocol: str, batch: int) -> None:
    for seed in range(1000 + batch * 50, 1050 + batch * 50):
        execute(seed, protocol)


# ---- single rules, without faults -----------------------------------------------------------------------------------------


def running(protocol: str = "uncoordinated", *, seed: int = 1, **options: int) -> LoggedWorld:
    world = LoggedWorld(seed, protocol, **{"period_ms": 0, **options})
    assert world.run(5, world.is_running)
    return world


def snapshot(world: LoggedWorld, request: int) -> ev.AnswerSnapshot:
    world.feed(ev.SnapshotRequested(request))
    assert world.run(5, lambda: any(x.request == request for x in world.answers))
    return next(x for x in world.answers if x.request == request)


def stop_turns(world: LoggedWorld) -> None:
    for host in world.hosts.values():
        host.step = lambda: None  # type: ignore[method-assign]
    world.run(1)


def freeze_unheard(world: LoggedWorld) -> None:
    """The hosts are frozen, their answers are lost with their streams, and so is what was to end the freeze."""
    for host in world.hosts.values():
        world.disconnect(host.session)
        host.hear(msg.FreezeAgents(1, 77))
    world.run(0.2)
    assert world.frozen_hosts() == sorted(world.hosts) and not world.sessions


def test_a_snapshot_waits_for_the_initial_checkpoints() -> None:
    world = LoggedWorld(3, "uncoordinated", period_ms=0)
    held = world.hosts["h1"].held = []
    for host in world.hosts.values():
        host.step = lambda: None  # type: ignore[method-assign]
    assert world.run(5, world.is_running)
    world.feed(ev.SnapshotRequested(1))
    world.run(3)
    assert not world.answers and len(held) == 1
    world.hosts["h1"].held = None
    held[0]()
    assert world.run(2, lambda: bool(world.answers)) and world.answers[0].is_complete


def test_a_line_that_has_not_moved_is_answered_with_its_epoch() -> None:
    world = running()
    stop_turns(world)
    first = snapshot(world, 1)
    second = snapshot(world, 2)
    assert first.is_complete and (second.epoch, second.root, second.is_complete) == (first.epoch, first.root, True)
    assert world.completed() == 1
    assert not first.reason, "it is new"
    assert second.reason == f"no agent has taken a checkpoint since epoch {first.epoch}: they do as their policy says"


def test_a_line_that_is_held_back_says_by_whose_checkpoints() -> None:
    """What `a` has received was sent after the last checkpoint of `b`."""
    pack = msg.ReportedPack("packs/x", 1, b"")
    base = [ev.StoredCheckpoint(agent, 3, "basic", 7, pack, {}, {}) for agent in "ab"]
    ledger = Ledger(2, 7, base, (), {})
    assert ledger.add(ev.StoredCheckpoint("a", 4, "basic", 0, pack, {}, {"b": 1})) == ADDED
    assert not ledger.has_advanced
    assert (
        "since epoch 7: 1 of 2 agents have newer checkpoints (a), and none of these fits" in ledger.why_not_advanced()
    )


def test_periodic_epochs_begin_only_when_the_line_has_advanced() -> None:
    world = running("bcs", period_ms=100, checkpoint_rate=1)
    world.run(3)
    assert world.completed() > 5
    stop_turns(world)
    before = world.completed()
    world.run(5)
    assert world.completed() <= before + 1


def test_files_at_or_below_the_base_are_deleted_and_others_stay() -> None:
    world = running(agents=6, checkpoint_rate=1)
    world.run(3)
    before = len(world.packs)
    answer = snapshot(world, 1)
    stop_turns(world)
    base = world.content[answer.epoch]
    assert answer.is_complete and len(world.packs) < before
    for _, stored in world.packs.values():
        assert any(x.number > base.get(x.agent, NOTHING).number for x in stored)


def test_a_sweep_spares_an_epoch_whose_beginning_is_still_on_its_way() -> None:
    """It has begun for the log, and this leader does not know yet that it is its own."""
    world = running()
    world.feed(ev.SnapshotRequested(1))
    assert world.run(1, lambda: bool(world.state.open_epochs())) and world.core is not None
    assert not list(world.core.parts.open_epochs)
    world.core.parts.retention._sweep_ns = 0
    world.feed(ev.TimerFired())
    assert world.run(2, lambda: bool(world.answers)) and world.answers[0].is_complete
    world.run(1)
    assert 1 in world.manifests and 1 in world.refs


@pytest.mark.parametrize("protocol", ["uncoordinated", "fdas"])
def test_survivors_keep_their_live_states(protocol: str) -> None:
    """Nobody sends: each agent is alone, so only those of the lost host go back."""
    world = running(protocol, hosts=3, agents=6)
    world.wire = collections.defaultdict(int)
    for host in world.hosts.values():
        host.peers = {}
    world.run(2)
    snapshot(world, 1)
    for host in world.hosts.values():
        host.peers = {}
    world.run(1)
    numbers = {name: x.number + x.has_moved for host in world.hosts.values() for name, x in host.living.items()}
    lost = dict(world.hosts["h1"].living)
    world.kill_host("h1")
    assert world.run(10, lambda: world.state.plan_number == 2)
    plan = world.state.plan
    assert plan is not None and world.state.image.epochs[plan.line_epoch].trigger == "recovery"
    assert plan.rolled_back == len(lost) == 2
    line = world.content[plan.line_epoch]
    assert all(line[agent].number >= numbers[agent] for agent in numbers if agent not in lost)


def test_a_second_loss_meanwhile_begins_anew_and_ends_well() -> None:
    for seed in range(10):
        world = running(seed=seed, hosts=3, agents=6)
        world.run(1)
        world.kill_host("h1")
        world.run(1 + seed * 0.25)
        world.kill_host("h2")
        world.after(SECOND, functools.partial(_start, world, "h2"))
        assert world.run(20, lambda w=world: w.is_running() and w.state.plan_number > 1), f"seed {seed}"  # type: ignore[misc]


def test_logs_that_outgrow_their_limit_freeze_the_fleet_once_and_thaw_it() -> None:
    """Two agents in a staircase: the line never advances by itself."""
    world = LoggedWorld(1, "uncoordinated", hosts=2, agents=2, period_ms=0, log_bytes_max=3000)
    numbers: dict[str, int] = {}

    def ping(host: LoggedHost) -> None:
        """Checkpoint after each receive and send after that (V3 of protocols.md)."""
        for agent in host.living.values():
            if not host.frozen and host.is_loaded and (host._consume(agent) or (agent.name == "a0" and not agent.sent)):
                agent.has_moved = True
                host.take(agent, "basic")
                agent.has_moved = True
                for peer in ("a0", "a1"):
                    if peer != agent.name:
                        agent.sent[peer] = numbers[agent.name] = agent.sent.get(peer, 0) + 1
                        world.wire[host.plan, agent.name, peer] = agent.sent[peer]

    for host in world.hosts.values():
        host.step = functools.partial(ping, host)  # type: ignore[method-assign]
    world.run(60)
    triggers = [x.trigger for x in world.state.image.epochs.values()]
    assert "log" in triggers and any("does not advance" in note for note in world.notes)
    assert all(not host.frozen for host in world.hosts.values())
    assert world.core is not None and world.core.standing().stored_log_bytes < 6000
    moved = dict(numbers)
    world.run(2)
    assert numbers["a0"] > moved["a0"], "the fleet goes on"


def test_a_new_leader_thaws_hosts_that_the_old_one_froze() -> None:
    world = running()
    freeze_unheard(world)
    world.crash_leader()
    world.run(5)
    assert not world.frozen_hosts()


def test_a_leader_thaws_hosts_whose_streams_were_broken_when_the_freeze_ended() -> None:
    world = running()
    freeze_unheard(world)
    world.run(2)
    assert world.leaders == 1 and not world.frozen_hosts()


def test_a_host_that_comes_back_while_a_plan_is_needed_stays_frozen() -> None:
    """What stands still is in the store; what would be done meanwhile would be lost."""
    world = running(hosts=3, agents=6)
    world.kill_host("h1")
    assert world.run(10, lambda: world.frozen_hosts() == ["h0", "h2"])
    assert world.state.image.need is not None
    world.crash_leader()
    stood_still = True

    def planned() -> bool:
        nonlocal stood_still
        stood_still = stood_still and world.frozen_hosts() == ["h0", "h2"]
        return world.state.image.need is None

    assert world.run(20, planned) and stood_still
    assert world.run(5, lambda: not world.frozen_hosts())


def test_a_host_that_was_thawed_behind_the_leaders_back_is_waited_for_again() -> None:
    """A leader that does not know that it was deposed may do so: what the host's agents did since survives all the same."""
    world = running()
    stop_turns(world)
    host, other = world.hosts["h0"], world.hosts["h1"]
    agent, failed = list(host.living.values())[:2]
    host.peers, failed.is_failed, other.is_deaf = {}, True, True
    assert world.core is not None
    has_checkpointed_live_state = world.core.parts.freezing.has_checkpointed_live_state
    host.say(msg.AgentFailed(failed.name, 1, "bug"))
    assert world.run(5, lambda: has_checkpointed_live_state("h0", agent.name))
    freeze = msg.FreezeAgents(1, host.frozen)
    world.run(0.1)
    world.disconnect(host.session)
    host.hear(msg.ThawAgents(1, 0))
    agent.has_moved, number = True, agent.number + 1
    held = host.held = []
    assert world.run(2, lambda: bool(held))
    other.is_deaf = False
    other.hear(freeze)
    world.run(2)
    assert has_checkpointed_live_state("h1", next(iter(other.living))) and world.state.plan_number == 1
    held[0]()
    assert world.run(2, lambda: world.state.plan_number == 2)
    plan = world.state.plan
    assert plan is not None and world.content[plan.line_epoch][agent.name].number == number


def test_an_agent_that_fails_goes_back_alone_and_twenty_times_are_enough() -> None:
    world = running(hosts=2, agents=2)
    for host in world.hosts.values():
        host.peers = {}
    world.run(1)
    for _ in range(25):
        if world.state.image.outcome:
            break
        world.run(10, world.is_running)
        host = next(x for x in world.hosts.values() if "a0" in x.living)
        host.living["a0"].is_failed = True
        host.say(msg.AgentFailed("a0", world.state.plan_number, "bug"))
        number = world.state.plan_number
        world.run(10, lambda n=number: world.state.plan_number > n or bool(world.state.image.outcome))  # type: ignore[misc]
    assert world.state.image.outcome == "failed" and "did not help" in world.state.image.ending


def test_many_agents_that_fail_a_few_times_each_do_not_end_the_fleet() -> None:
    """One message to all may crash them all, each until its retries are over: that is no bug that strikes for ever."""
    world = running(hosts=2, agents=8)
    for host in world.hosts.values():
        host.peers = {}
    world.run(1)
    begun = world.state.plan_number
    for agent in sorted(f"a{n}" for n in range(8)) * 3:
        assert world.run(10, world.is_running), world.state.image.ending
        host = next(x for x in world.hosts.values() if agent in x.living)
        host.living[agent].is_failed = True
        number = world.state.plan_number
        host.say(msg.AgentFailed(agent, world.state.image.agents[agent].incarnation, "poison"))
        world.run(10, lambda n=number: world.state.plan_number > n or bool(world.state.image.outcome))  # type: ignore[misc]
        assert not world.state.image.outcome, world.state.image.ending
    assert world.run(10, world.is_running) and world.state.plan_number == begun + 24


def test_the_line_for_a_failure_is_computed_with_live_states() -> None:
    """Frozen in the test's sense: nobody moves, so the answer is exact, and compared with the orphan fix-point."""
    for seed in range(20):
        world = running(seed=seed, hosts=2, agents=5)
        world.run(2)
        stop_turns(world)
        assert world.core is not None
        names = sorted(agent for agent, _ in world.state.living_agents())
        failures = (*((x,) for x in names), tuple(names[:2]), tuple(names))
        for number, failed in enumerate(failures):
            world.feed(ev.LineRequested(number, (failed,)))
        world.feed(ev.LineRequested(99, failures))
        world.run(2)
        together = world.lines_found[99]
        assert not together.silent
        for number, failed in enumerate(failures):
            answer = world.lines_found[number]
            assert answer.lines[0].line == live_oracle(world, failed) == together.lines[number].line
            assert set(answer.lines[0].costs) == {x for x, n in answer.lines[0].line.items() if n is not None}


def test_the_documents_of_lines_say_who_goes_back_and_what_it_costs() -> None:
    world = running(hosts=2, agents=4, checkpoint_rate=1)
    world.run(2)
    stop_turns(world)
    assert world.core is not None
    failures = single_failures(world.state)
    assert [name for name, _ in failures] == ["a0", "a1", "a2", "a3", "host:h0", "host:h1"]
    world.feed(ev.LineRequested(1, (failures[0][1],)))
    world.feed(ev.LineRequested(2, tuple(agents for _, agents in failures)))
    world.run(2)
    one, each = world.lines_found[1], world.lines_found[2]
    document = document_of(autonomous_line(world.state, one))
    line, rollback = document["recovery_line"], document["rollback"]
    assert isinstance(line, dict) and isinstance(rollback, dict)
    assert document["rolled_back"] == [agent for agent, number in line.items() if number is not None] == list(rollback)
    assert all(rollback[agent]["to"] == line[agent] for agent in rollback)
    rows = document_of(autonomous_lines([name for name, _ in failures], each))["lines"]
    assert isinstance(rows, list) and rows[0]["rollback"] == rollback and len(rows) == 6


def live_oracle(world: LoggedWorld, failed: tuple[str, ...]) -> dict[str, int | None]:
    base = world.content[world.base()]
    agents = {name: x for host in world.hosts.values() for name, x in host.living.items()}
    lists: dict[str, list[tuple[int | None, dict[str, int], dict[str, int] | None]]] = {}
    for name, agent in agents.items():
        known = {base.get(name, NOTHING).number: base.get(name, NOTHING)} | world.known.get(name, {})
        lists[name] = [(n, x.received, x.sent) for n, x in sorted(known.items())]
        if name not in failed:
            lists[name].append((None, agent.received, None))
    while True:
        for name, places in lists.items():
            senders = places[-1][1]
            tables = {x: lists[x][-1][2] for x in senders}
            if any(table is not None and n > table.get(name, 0) for x, n in senders.items() for table in [tables[x]]):
                places.pop()
                break
        else:
            return {name: places[-1][0] for name, places in lists.items()}


def test_koo_toueg_rounds_take_the_agents_that_must_and_no_others() -> None:
    world = running("koo-toueg", period_ms=200, agents=6)
    world.run(5)
    sizes = []
    before: dict[str, int] = {}
    for epoch in sorted(world.content):
        numbers = {agent: x.number for agent, x in world.content[epoch].items()}
        sizes.append(sum(number > before.get(agent, 0) for agent, number in numbers.items()))
        assert all(number - before.get(agent, 0) in (0, 1) for agent, number in numbers.items())
        before = numbers
    assert len(sizes) > 10 and any(0 < size < 6 for size in sizes), sizes
    by_hand = snapshot(world, 1)
    last = {agent: x.number for agent, x in world.content[by_hand.epoch].items()}
    assert by_hand.is_complete and last.keys() == before.keys()
