"""The world of `coins` in logged protocols: agents checkpoint on their own or in rounds, and a line becomes an epoch.

The smallest coordinator there can be: it keeps the dependency records of durable checkpoints, finds the line by the
orphan fix-point, puts the cut together from checkpoints and sender logs, and freezes the survivors before a recovery. It
shares no code with the coordinator. Every cut is checked by the oracle of `coins`, which knows coins by their ids alone.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.agent_runtime.coins import CoinWorld, Oracle, Purse, SlowHost, _buried, _coins
from tests.agent_runtime.host_world import Cut, HostWorld, SimHost

import snapline
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.turns import restored
from snapline.protocols.names import is_autonomous
from snapline.storage.checkpoint import AgentCheckpoint, InTransitMessage, decode_checkpoint, encode_checkpoint


class LoggedHost(SlowHost):
    """A host whose checkpoints take a while to become durable."""

    def __init__(self, world: HostWorld, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.core.trace_every = 1
        self.writing: deque[AgentCheckpoint] = deque()
        self.frozen: ev.ReportFrozen | None = None

    def _carry(self, command: ev.Command) -> None:
        match command:
            case ev.TakeCheckpoint():
                busy = [ended.agent for ended in self.running]
                assert command.agent not in busy, f"{command.agent} is captured in the middle of a turn"
                known, version, image = self.turns.capture(command.agent)
                control = command.control
                checkpoint = AgentCheckpoint(
                    agent=command.agent, kind=known.kind, incarnation=control.incarnation, number=control.number, epoch=0,
                    basis=command.basis, round=command.round, is_started=control.is_started,
                    is_leaving=control.is_leaving, state=image.skeleton, state_type=known.state_name, state_version=version,
                    state_fields=known.state_fields, sent=command.sent, received=command.received,
                    protocol_state=control.protocol_state, sender_log=command.log, outbox=control.outbox,
                    spawns=control.spawns, timers=control.timers, dead_letters=control.dead_letters,
                    dead_letter_count=control.dead_letter_count, turns=command.turns,
                )  # fmt: skip
                self.writing.append(decode_checkpoint(encode_checkpoint(checkpoint)))
                if command.basis in ("basic", "forced") and self.core.plan == self.world.plan:
                    self.world.note(  # type: ignore[attr-defined]
                        {"event": "checkpoint", "agent": command.agent, "index": control.number, "kind": command.basis}
                    )
                return
            case ev.Trace():
                # Under an older plan it is undone already by one that is committed.
                if self.core.plan == self.world.plan and command.what != "checkpoint":
                    self.world.note_message(command)  # type: ignore[attr-defined]
                return
            case ev.ReportFrozen():
                self.frozen = command
                return
            case ev.CancelTurns():
                self.writing.clear()
                self.frozen = None
        super()._carry(command)


class LineWorld(CoinWorld):
    """Attributes beside those of `CoinWorld`:

    durable: agent → its durable checkpoints under this plan, by number; before them comes its part of the base.
    base: the newest epoch: line and logs before it are not needed any more.
    freezing: hosts that have not said yet that they are frozen; None while nothing is to be frozen.
    leaving: agents that have stopped, and who asked that they may leave.
    forced, rolled_back, kept: counted.
    """

    def __init__(self, agents: int, hosts: int, seed: int, **options: Any) -> None:
        self.durable: dict[str, dict[int, AgentCheckpoint]] = {}
        self.base: Cut = {}
        self.freezing: dict[str, None] | None = None
        self.failed_agents: dict[str, None] = {}
        self.round: dict[tuple[str, str], ev.CheckpointAnswer] = {}
        self.asked_in_round: dict[tuple[str, str], None] = {}
        self.forced = self.rolled_back = self.kept = self.depth = 0
        self.leaving: dict[str, tuple[SimHost, ev.RetireAgent]] = {}
        self.trace: list[dict[str, object]] = []
        self.ids: dict[tuple[str, str, int], str] = {}
        super().__init__(agents, hosts, seed, **options)
        self.oracle = LineOracle(self, self.oracle.coins)
        self.on_cut = self.oracle if "fleet" not in options else lambda epoch, cut: None

    def _boot(self, name: str) -> None:
        start = self.hosts[name].start + 1 if name in self.hosts else 1
        host = self.hosts[name] = LoggedHost(self, name, start)
        host.feed(ev.Welcomed(start, "sim"))

    # ---- the trace, as `snapline analyze` reads it ------------------------------------------------------------------

    def note(self, line: dict[str, object]) -> None:
        self.trace.append(line)

    def note_message(self, command: ev.Trace) -> None:
        """Message ids hold the plan under which they were sent: numbers are used again after a recovery."""
        if command.what == "send":
            key = (command.agent, command.other, command.number)
            self.ids[key] = f"{command.agent}/{self.plan}>{command.other}:{command.number}"
            self.note({"event": "send", "agent": command.agent, "message": self.ids[key], "to": command.other})
        else:
            key = (command.other, command.agent, command.number)
            self.note({"event": "receive", "agent": command.agent, "message": self.ids[key]})

    @property
    def living(self) -> list[str]:
        """The members that have not left."""
        return [agent for agent, (_, _, _, left) in self.members.items() if left is None]

    @property
    def is_autonomous(self) -> bool:
        return is_autonomous(self.fleet.protocol)

    # ---- records and the line -------------------------------------------------------------------------------------

    def write(self, host: LoggedHost) -> None:
        """The oldest checkpoint of a host is durable now."""
        checkpoint = host.writing.popleft()
        if host.core.plan != self.plan:
            return  # a plan that is committed, and that the host has not heard of yet, has made it void
        self.durable.setdefault(checkpoint.agent, {})[checkpoint.number] = checkpoint
        self.forced += checkpoint.basis == "forced"
        if checkpoint.basis == "tentative":
            self._judge_round()

    def history(self, agent: str) -> list[AgentCheckpoint | None]:
        """Its candidates, oldest first; None stands for "not born"."""
        first = self.base.get(agent)
        number = -1 if first is None else first.number
        if first is None and agent not in self.fleet.agents:
            found: list[AgentCheckpoint | None] = [None]
            number = 0
        else:
            found = [] if first is None else [first]
        while number + 1 in self.durable.get(agent, {}):
            number += 1
            found.append(self.durable[agent][number])
        return found

    def line(self) -> dict[str, AgentCheckpoint | None] | None:
        """The orphan fix-point over all durable checkpoints; None if an initial one is missing."""
        stacks = {agent: self.history(agent) for agent in self.living}
        if not all(stacks.values()):
            return None
        is_moving = True
        while is_moving:
            is_moving = False
            for agent, stack in stacks.items():
                while any(
                    sender in stacks and number > _sent(stacks[sender][-1], agent)
                    for sender, number in _received(stack[-1]).items()
                ):
                    stack.pop()
                    is_moving = True
        return {agent: stack[-1] for agent, stack in stacks.items()}

    def compose(self, line: dict[str, AgentCheckpoint | None], epoch: int) -> Cut:
        """The cut of a line: states, and what was sent inside and not consumed inside."""
        cut: Cut = {}
        for agent, checkpoint in line.items():
            received = _received(checkpoint)
            in_transit: dict[str, list[InTransitMessage]] = {}
            for sender, its in line.items():
                first = self.base.get(agent)
                messages = list(first.in_transit.get(sender, [])) if first is not None else []
                for each in self.history(sender):
                    if each is not None and each is not self.base.get(sender) and each.number <= _number(its):
                        messages += each.sender_log.get(agent, [])
                rest = [message for message in messages if message.number > received.get(sender, 0)]
                expected = list(range(received.get(sender, 0) + 1, _sent(its, agent) + 1))
                assert [message.number for message in rest] == expected, (sender, agent, expected, rest)
                if rest:
                    in_transit[sender] = rest
            if checkpoint is None:
                made = AgentCheckpoint(agent=agent, kind="", epoch=epoch, is_unborn=True, in_transit=in_transit)
            else:
                fields = {name: getattr(checkpoint, name) for name in checkpoint.__struct_fields__}
                made = AgentCheckpoint(**{**fields, "epoch": epoch, "in_transit": in_transit, "sender_log": {}})
            cut[agent] = decode_checkpoint(encode_checkpoint(made))
        return cut

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        if self.freezing is not None or len(self.confirmed) < len(self.names):
            return
        if self.is_autonomous:
            self._materialise()
        elif not self.open:
            everybody = self.living
            self.begin_round(everybody if self.random.random() < 0.3 else [self.random.choice(everybody)])

    def _materialise(self) -> bool:
        line = self.line()
        if line is None:
            return False
        self.begun += 1
        self._adopt(self.compose(line, self.begun))
        return True

    def _adopt(self, cut: Cut) -> None:
        """The line is an epoch: nothing before it is needed."""
        self.on_cut(self.begun, cut)
        self.completed += 1
        self.lines[self.begun] = self.base = cut
        for agent, found in cut.items():
            kept = {number: each for number, each in self.durable.get(agent, {}).items() if number > found.number}
            self.durable[agent] = kept
        self._tell_all(ev.EpochEnded(self.begun, True))
        self._let_go(cut)

    def _let_go(self, cut: Cut) -> None:
        """Agents that have stopped, and all they sent is received: they are members no more."""
        heard = {sender for found in cut.values() for sender, messages in found.in_transit.items() if messages}
        for agent, (host, command) in list(self.leaving.items()):
            found = cut.get(agent)
            if self.hosts[host.name] is not host or command.plan != self.plan:
                del self.leaving[agent]
            elif (
                found is not None and found.is_leaving and not found.outbox and not found.spawns and agent not in heard
            ):
                del self.leaving[agent]
                state = restored(self.fleet, found).state
                assert isinstance(state, Purse)
                self.left[agent] = (self.begun, state, list(found.dead_letters))
                place, incarnation, born, _ = self.members[agent]
                self.members[agent] = (place, incarnation, born, self.begun)
                host.directives.append(ev.AgentRetired(command.request, tuple(self.open), ""))

    def abort_epoch(self) -> None:
        if self.open:
            self.aborted += 1
            self._drop_round()

    def say_again(self) -> None:
        """A new leader repeats how old epochs ended."""
        complete = [epoch for epoch in self.lines if epoch and epoch not in self.open]
        if complete:
            self._tell_all(ev.EpochEnded(self.random.choice(complete), True))

    def _drop_round(self) -> None:
        epoch = self.begun
        self.open.clear()
        self._void_tentative()
        self._tell_all(ev.EpochEnded(epoch, False))

    def _void_tentative(self) -> None:
        for numbers in self.durable.values():
            for number in [number for number, each in numbers.items() if each.basis == "tentative"]:
                del numbers[number]

    # ---- rounds (koo-toueg) ---------------------------------------------------------------------------------------

    def begin_round(self, initiators: list[str]) -> None:
        self.begun += 1
        self.open[self.begun] = {}
        self.round, self.asked_in_round = {}, {}
        self._ask([(agent, "", 0) for agent in initiators])

    def _ask(self, requests: list[tuple[str, str, int]]) -> None:
        for agent, asker, number in requests:
            self.asked_in_round[agent, asker] = None
            host = self.hosts[self.members[agent][0]]
            host.directives.append(ev.CheckpointsRequested(self.begun, self.plan, (agent,), (asker,), (number,)))

    def on_answers(self, command: ev.AnswerRound) -> None:
        if not self.open or command.epoch != self.begun or command.plan != self.plan:
            return
        for answer in command.answers:
            if not answer.is_willing:
                self.abort_epoch()
                return
            self.round[answer.agent, answer.asker] = answer
            self._ask([(to, answer.agent, number) for to, number in answer.requests.items()])
        self._judge_round()

    def _judge_round(self) -> None:
        if not self.open or set(self.asked_in_round) - set(self.round):
            return
        taken = {agent: answer.number for (agent, _), answer in self.round.items() if answer.is_participant}
        tentative = {agent: self.durable.get(agent, {}).get(number) for agent, number in taken.items()}
        if any(found is None or found.round != self.begun for found in tentative.values()):
            return
        if any(agent not in self.base and agent in self.fleet.agents for agent in self.living):
            missing = [agent for agent in self.fleet.agents if not self.history(agent)]
            if missing:
                return
        line = {}
        for agent in self.living:
            past = [each for each in self.history(agent) if each is None or each.basis != "tentative"]
            if agent in self.base or not past:
                past = [self.base[agent], *past] if agent in self.base else past
            line[agent] = tentative.get(agent) or past[-1]
        for receiver, found in line.items():
            for sender, number in _received(found).items():
                assert sender not in line or number <= _sent(line[sender], receiver), (
                    f"round {self.begun}: orphans on {sender} → {receiver}"
                )
        self.open.clear()
        self._adopt(self.compose(line, self.begun))

    # ---- recovery -------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.crashes += 1
        for name in self.random.sample(self.names, self.random.choice([1, 1, 1, len(self.names)])):
            for other in self.names:
                if other != name:
                    self.cut(name, other)
            self._boot(name)
            if self.freezing is not None:
                self.freezing.pop(name, None)
        self._fail()

    def _fail(self) -> None:
        """What coordinated fleets do at once comes here after the survivors have stopped."""
        if self.open:
            self._drop_round()
        if not self.is_autonomous or self.plan == 0:
            self._recover()
            return
        self.freezing = dict.fromkeys(self.names)
        for host in self.hosts.values():
            if isinstance(host, LoggedHost):
                host.frozen = None
        self._tell_all(ev.AgentsFreezeRequested(self.plan, self.plan * 1000 + self.crashes))

    def take_frozen(self, host: LoggedHost) -> None:
        """A host is frozen and all it had is durable."""
        assert host.frozen is not None
        host.frozen = None
        if self.freezing is not None:
            self.freezing.pop(host.name, None)
            if not self.freezing:
                self.freezing = None
                self._go_back()

    def _go_back(self) -> None:
        line = self.line()
        if line is not None:
            for agent, found in line.items():
                newest = self.history(agent)[-1]
                behind = _number(newest) - _number(found)
                self.rolled_back += behind > 0
                self.kept += behind == 0
                self.depth = max(self.depth, behind)
            if any(found is not self.base.get(agent) for agent, found in line.items()):
                self.begun += 1
                self._adopt(self.compose(line, self.begun))
        self._recover()

    def _recover(self) -> None:
        for numbers in self.durable.values():
            numbers.clear()
        self.base = self.lines[max(self.lines)]
        gone = [agent for agent, kept in self.left.items() if kept[0] < max(self.lines)]
        line = {
            agent: self.base[agent].number if agent in self.base else 0 for agent in self.ordinals if agent not in gone
        }
        line |= self._places_of_gone(gone, line)
        if self.plan:
            self.note({"event": "recovery", "line": line})
        super()._recover()

    def _places_of_gone(self, gone: list[str], line: dict[str, int]) -> dict[str, int]:
        """No plan names them: what they consumed as dead letters stays, as long as its sender keeps it. The rest keep all."""
        events: dict[str, list[dict[str, Any]]] = {}
        for item in self.trace:
            noted: Any = item
            if noted["event"] == "recovery":
                for agent, number in noted["line"].items():
                    del events.setdefault(agent, [])[_end_of(events[agent], number) :]
            else:
                events.setdefault(noted["agent"], []).append(noted)
        rest = [
            each
            for agent, number in line.items()
            for each in events.get(agent, [])[_end_of(events.get(agent, []), number) :]
        ]
        undone = {each["message"] for each in rest if each["event"] == "send"}
        found = {}
        for agent in gone:
            own = events.get(agent, [])
            first = next(
                (n for n, each in enumerate(own) if each["event"] == "receive" and each["message"] in undone), None
            )
            if first is not None:
                found[agent] = max([each["index"] for each in own[:first] if each["event"] == "checkpoint"], default=0)
        return found

    def ask_coordinator(self, host: SimHost, command: ev.Command) -> None:
        if isinstance(command, ev.AnswerRound):
            self.on_answers(command)
        elif isinstance(command, ev.RetireAgent):
            if command.plan == self.plan:
                self.leaving[command.agent] = (host, command)
        else:
            super().ask_coordinator(host, command)

    def answer(self) -> None:
        if self.freezing is not None or not self.asked:
            return
        host, command = self.asked[0]
        if isinstance(command, ev.ReportAgentFailed):
            self.asked.popleft()
            if self.hosts[host.name] is host and host.core.plan == self.plan and command.agent in host.core._failed:
                self.failures += 1
                self._fail()
            return
        super().answer()

    # ---- what can happen ------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        found = super().actions()
        for host in self.hosts.values():
            assert isinstance(host, LoggedHost)
            if host.writing:
                found.append(lambda host=host: self.write(host))  # type: ignore[misc]
            elif host.frozen is not None:
                found.append(lambda host=host: self.take_frozen(host))  # type: ignore[misc]
        return found

    def _is_busy(self) -> bool:
        writing = any(isinstance(host, LoggedHost) and host.writing for host in self.hosts.values())
        return writing or self.freezing is not None or super()._is_busy()


class LineOracle(Oracle):
    """As in `coins`; agents that have stopped stay in the cut for a while, and consume what comes without a trace."""

    def _check_channel(
        self, epoch: int, sender: str, receiver: str, cut: Cut, states: Any, letters: Any, gone: Any
    ) -> int:
        found = cut.get(receiver)
        if found is None or not found.is_leaving:
            return super()._check_channel(epoch, sender, receiver, cut, states, letters, gone)
        sent = states[sender].sent.get(receiver, []) if sender in states else []
        lost = _buried(letters.get(sender, []), sender) if sender != receiver else []
        sent = [coin for coin in sent if coin not in lost]
        got = states[receiver].got.get(sender, [])
        held = _coins([message.payload for message in found.in_transit.get(sender, [])])
        parked = self._parked(cut[sender], receiver) if sender in cut else []
        assert [coin for coin in sent if coin in got] == got, (epoch, sender, receiver, sent, got)
        assert sent[len(sent) - len(held) - len(parked) :] == held + parked, (epoch, sender, receiver, sent, held)
        everything = states[sender].sent.get(receiver, []) if sender in states else []
        return len(everything) - len(got)

    def _check_coverage(self, epoch: int, cut: Cut, gone: Any) -> None:
        """The composition has checked the numbers."""


def _end_of(events: list[dict[str, Any]], number: int) -> int:
    """Where the agent's events end that belong to its checkpoint `number`; 0: the initial one."""
    places = [n + 1 for n, each in enumerate(events) if each["event"] == "checkpoint" and each["index"] == number]
    return places[-1] if places else 0


def _number(checkpoint: AgentCheckpoint | None) -> int:
    return 0 if checkpoint is None else checkpoint.number


def _sent(checkpoint: AgentCheckpoint | None, receiver: str) -> int:
    return 0 if checkpoint is None else checkpoint.sent.get(receiver, 0)


def _received(checkpoint: AgentCheckpoint | None) -> dict[str, int]:
    return {} if checkpoint is None else checkpoint.received


def play_logged(seed: int, protocol: str, *, steps: int = 2000, faults: bool = True) -> LineWorld:
    """One run, as `coins.play`. Raises AssertionError or ProtocolError if it is wrong."""
    period = 0.05 + 0.01 * (seed % 7)
    triggers = (
        [snapline.Every(period)] if seed % 3 or protocol == "koo-toueg" else [snapline.EveryMessages(4 + seed % 9)]
    )
    world = LineWorld(3 + seed % 5, 2 + seed % 3, seed, protocol=protocol, triggers=triggers)
    chance = world.random.random
    for step in range(steps):
        world.step()
        if chance() < 0.012:
            world.begin_epoch()
        if faults and chance() < 0.002:
            first, second = world.random.sample(world.names, 2)
            world.cut(first, second)
        if faults and chance() < 0.001:
            world.abort_epoch()
        if faults and chance() < 0.0008:
            world.crash()
        if faults and chance() < 0.01 and world.begun:
            world.say_again()
        if step % 4 == 0:
            validate(world)
    assert world.settle(), "did not come to rest"
    validate(world)
    if world.is_autonomous:
        world._fail()  # the way to a cut of live states
    else:
        world.begin_round(world.living)
    assert world.settle(), "the last epoch did not end"
    validate(world)
    check_rest(world)
    assert world.settle(), "agents that may leave do not"
    check_gone(world)
    return world


def validate(world: LineWorld) -> None:
    for host in world.hosts.values():
        host.core.validate()


def check_gone(world: LineWorld) -> None:
    """Of agents that have left no host knows anything more: neither numbers nor channels."""
    for host in world.hosts.values():
        core = host.core
        assert not core._ending and not core.agents.keys() & world.left.keys()
        for agent in core.agents.values():
            # Channels that were not used since they were restored go with the next plan.
            used = {outlet.receiver for outlet in agent.outlets.values() if outlet.peer is not None}
            assert not used & world.left.keys(), (agent.id, "sends to", world.left.keys())
            used = {inlet.sender for inlet in agent.inlets.values() if inlet.channel}
            assert not used & world.left.keys(), (agent.id, "receives from", world.left.keys())
        for peer in core.peers.values():
            ends = {(end.sender, end.receiver) for end in peer.inlets.values()}
            ends |= {(end.sender, end.receiver) for end in peer.outlets.values()}
            assert not {agent for channel in ends for agent in channel} & world.left.keys(), (host.name, peer.host)


def check_rest(world: LineWorld) -> None:
    """At rest, the last cut holds everything, and nobody still waits for a timer."""
    for agent, found in world.base.items():
        if not found.is_unborn:
            state = restored(world.fleet, found).state
            assert isinstance(state, Purse)
            assert not found.outbox and not found.spawns, agent
            assert found.is_leaving or not state.is_ticking or found.timers, f"a timer of {agent} was lost"
