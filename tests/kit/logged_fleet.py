"""The coordinator of logged protocols: agents checkpoint on their own or in rounds, and a line becomes an epoch.

The smallest one there can be: it keeps the dependency records of durable checkpoints, finds the line by the orphan fix-point,
puts the cut together from checkpoints and sender logs, and freezes the survivors before a recovery. It shares no code with
the coordinator.
"""

from typing import Any

from tests.kit.fleet import Cut, FleetWorld
from tests.kit.host import Host
from tests.kit.streams import Action

from snapline.agent_runtime.fleet import restored
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.modes.logged import CheckpointAnswer
from snapline.messages import host_messages as msg
from snapline.protocols.names import is_autonomous
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, decode_checkpoint, encode_checkpoint

History = list[AgentCheckpoint | None]
"""An agent's candidates for a line, oldest first; None stands for "not born"."""


def rows_of(said: msg.CheckpointsAnswered) -> list[CheckpointAnswer]:
    """The columns, one answer each."""
    requests: list[dict[str, int]] = [{} for _ in said.agents]
    for of, to, number in zip(said.request_of, said.request_to, said.request_number, strict=True):
        requests[of][to] = number
    columns = (said.agents, said.askers, said.willing, said.participants, said.numbers, requests)
    return [CheckpointAnswer(*row) for row in zip(*columns, strict=True)]


class LoggedFleet(FleetWorld):
    """Attributes beside those of `FleetWorld`:

    durable: agent → its durable checkpoints under this plan, by number; before them comes its part of the base.
    base: the newest epoch: line and logs before it are not needed any more.
    freezing: hosts that have not said yet that they are frozen; None while nothing is to be frozen.
    leaving: agents that have stopped, and who asked that they may leave.
    forced, rolled_back, kept: counted. depth: by how many checkpoints an agent went back, at most.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.durable: dict[str, dict[int, AgentCheckpoint]] = {}
        self.base: Cut = {}
        self.freezing: dict[str, None] | None = None
        self.round: dict[tuple[str, str], CheckpointAnswer] = {}
        self.asked_in_round: dict[tuple[str, str], None] = {}
        self.forced = self.rolled_back = self.kept = self.depth = 0
        self.leaving: dict[str, tuple[Host, msg.RetireAgent]] = {}
        super().__init__(*arguments, **named)

    @property
    def living(self) -> list[str]:
        """The members that have not left."""
        return [agent for agent, member in self.members.items() if member.left is None]

    @property
    def is_autonomous(self) -> bool:
        return is_autonomous(self.fleet.protocol)

    # ---- records and the line -------------------------------------------------------------------------------------

    def write(self, host: Host) -> None:
        """The oldest checkpoint of a host is durable now."""
        checkpoint = host.writing.popleft()
        if host.core.plan != self.plan:
            return  # a plan that is committed, and that the host has not heard of yet, has made it void
        self.durable.setdefault(checkpoint.agent, {})[checkpoint.number] = checkpoint
        self.forced += checkpoint.basis == "forced"
        if checkpoint.basis == "tentative":
            self._judge_round()

    def history(self, agent: str) -> History:
        first = self.base.get(agent)
        number = -1 if first is None else first.number
        if first is None and agent not in self.fleet.agents:
            found: History = [None]
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
                rest = [x for x in self._logged(sender, its, agent) if x.number > received.get(sender, 0)]
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

    def _logged(self, sender: str, until: AgentCheckpoint | None, agent: str) -> list[InTransitMessage]:
        """What the base and the sender's logs hold of a channel, up to one of the sender's checkpoints."""
        first = self.base.get(agent)
        messages = list(first.in_transit.get(sender, [])) if first is not None else []
        for each in self.history(sender):
            if each is not None and each is not self.base.get(sender) and each.number <= _number(until):
                messages += each.sender_log.get(agent, [])
        return messages

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        if self.freezing is not None or len(self.confirmed) < len(self.names):
            return
        if self.is_autonomous:
            line = self.line()
            if line is not None:
                self.begun += 1
                self._adopt(self.compose(line, self.begun))
        elif not self.open:
            everybody = self.living
            self.begin_round(everybody if self.random.random() < 0.3 else [self.random.choice(everybody)])

    def _adopt(self, cut: Cut) -> None:
        """The line is an epoch: nothing before it is needed. A round's checkpoints are permanent now, whoever hears of it."""
        if not self.is_autonomous:
            for agent, found in cut.items():
                if not found.is_unborn and found.number > _number(self.base.get(agent)):
                    self.note_checkpoint(agent, found.number)
        self.on_cut(self.begun, cut)
        self.completed += 1
        self.lines[self.begun] = self.base = cut
        for agent, found in cut.items():
            kept = {number: each for number, each in self.durable.get(agent, {}).items() if number > found.number}
            self.durable[agent] = kept
        self._tell_all(msg.EndEpoch(self.begun, True))
        self._let_go_of_stopped(cut)

    def _let_go_of_stopped(self, cut: Cut) -> None:
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
                self._let_go(host, command, restored(self.fleet, found).state, list(found.dead_letters))

    def abort_epoch(self) -> None:
        if self.open:
            self.aborted += 1
            self._drop_round()

    def say_again(self) -> None:
        """A new leader repeats how old epochs ended."""
        complete = [epoch for epoch in self.lines if epoch and epoch not in self.open]
        if complete:
            self._tell_all(msg.EndEpoch(self.random.choice(complete), True))

    def _drop_round(self) -> None:
        epoch = self.begun
        self.open.clear()
        for numbers in self.durable.values():
            for number in [number for number, each in numbers.items() if each.basis == "tentative"]:
                del numbers[number]
        self._tell_all(msg.EndEpoch(epoch, False))

    # ---- rounds (koo-toueg) ---------------------------------------------------------------------------------------

    def begin_round(self, initiators: list[str]) -> None:
        self.begun += 1
        self.open[self.begun] = {}
        self.round, self.asked_in_round = {}, {}
        self._ask([(agent, "", 0) for agent in initiators])

    def _ask(self, requests: list[tuple[str, str, int]]) -> None:
        for agent, asker, number in requests:
            self.asked_in_round[agent, asker] = None
            host = self.hosts[self.members[agent].host]
            host.directives.append(msg.RequestCheckpoints(self.begun, self.plan, (agent,), (asker,), (number,)))

    def _on_answers(self, command: msg.CheckpointsAnswered) -> None:
        if not self.open or command.epoch != self.begun or command.plan != self.plan:
            return
        for answer in rows_of(command):
            if not answer.is_willing:
                self.abort_epoch()
                return
            taking = {agent for (agent, _), known in self.round.items() if known.is_participant}
            is_new = answer.is_participant and answer.agent not in taking
            self.round[answer.agent, answer.asker] = answer
            if is_new:  # as in `KooTouegRound`: else agents that ask each other would be asked for ever
                self._ask([(to, answer.agent, number) for to, number in answer.requests.items() if to not in taking])
        self._judge_round()

    def _judge_round(self) -> None:
        if not self.open or set(self.asked_in_round) - set(self.round):
            return
        taken = {agent: answer.number for (agent, _), answer in self.round.items() if answer.is_participant}
        tentative = {agent: self.durable.get(agent, {}).get(number) for agent, number in taken.items()}
        if any(found is None or found.round != self.begun for found in tentative.values()):
            return
        if any(agent not in self.base and agent in self.fleet.agents for agent in self.living) and not all(
            self.history(agent) for agent in self.fleet.agents
        ):
            return
        line = {agent: tentative.get(agent) or self._permanent(agent) for agent in self.living}
        for receiver, found in line.items():
            for sender, number in _received(found).items():
                assert sender not in line or number <= _sent(line[sender], receiver), (
                    f"round {self.begun}: orphans on {sender} → {receiver}"
                )
        self.open.clear()
        self._adopt(self.compose(line, self.begun))

    def _permanent(self, agent: str) -> AgentCheckpoint | None:
        """The newest checkpoint that is not tentative, or whose round has become the base."""
        base = self.base.get(agent)
        return [x for x in self.history(agent) if x is None or x is base or x.basis != "tentative"][-1]

    # ---- recovery -------------------------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        super().boot(name)
        if self.freezing is not None:
            self.freezing.pop(name, None)

    def fail(self) -> None:
        """What coordinated fleets do at once comes here after the survivors have stopped."""
        if self.open:
            self._drop_round()
        if not self.is_autonomous or self.plan == 0:
            self._recover()
            return
        self.freezing = dict.fromkeys(self.names)
        for host in self.hosts.values():
            host.frozen = None
        self._tell_all(msg.FreezeAgents(self.plan, self.plan * 1000 + self.crashes))

    def take_frozen(self, host: Host) -> None:
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
                behind = _number(self.history(agent)[-1]) - _number(found)
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
        super()._recover()

    def _note_recovery(self) -> None:
        epoch = max(self.lines)
        gone = [agent for agent, kept in self.left.items() if kept.epoch < epoch]
        line = {
            agent: self.base[agent].number if agent in self.base else 0 for agent in self.ordinals if agent not in gone
        }
        self.trace.append({"event": "recovery", "line": line | self._places_of_gone(gone, line)})

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

    # ---- questions, and what can happen -----------------------------------------------------------------------------

    def ask_coordinator(self, host: Host, command: ev.HostOutput) -> None:
        match command:
            case msg.CheckpointsAnswered():
                self._on_answers(command)
            case msg.RetireAgent():
                if command.plan == self.plan:
                    self.leaving[command.agent] = (host, command)
            case _:
                super().ask_coordinator(host, command)

    def answer(self) -> None:
        if self.freezing is None:
            super().answer()

    def actions(self) -> list[Action]:
        found = super().actions()
        for host in self.hosts.values():
            if host.writing:
                found.append(lambda host=host: self.write(host))  # type: ignore[misc]
            elif host.frozen is not None:
                found.append(lambda host=host: self.take_frozen(host))  # type: ignore[misc]
        return found

    def is_busy(self) -> bool:
        return self.freezing is not None or super().is_busy()


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
