"""Model of fleets with uncoordinated or communication-induced checkpoints, over the real rules.

At any moment an agent may take a basic checkpoint or send, both a bounded number of times. It may also consume the first
message of any channel; before that, its rule may force a checkpoint. Any agent may crash in any state; `logged` defines the
recovery.

Checks in every state, in addition to those of `logged`: no checkpoint is useless if the protocol is communication-induced, and
every dependency is tracked if it promises RDT (G6). This holds after a crash too. (A forced checkpoint survives the undone
message that forced it. So after a crash, rules may be in a state that no run without a crash reaches; their promises must
still hold.)
"""

from collections.abc import Iterator

from snapline.protocols.names import CIC_PROTOCOLS
from snapline.protocols.rule import CheckpointRule
from snapline.sim.explorer.cuts import Judgement, empty_ledger, replaced, with_consumed, with_sent
from snapline.sim.explorer.logged_model import LoggedMessage, LoggedModel, LoggedNode, SavedState
from snapline.sim.explorer.state_search import Bounds, CoreMemo, Fault, Memo, Outputs, ProposedMove, State

RDT_PROTOCOLS = ("fdas", "fdi", "bhmr", "nras", "cbr", "cas")


class InducedModel(LoggedModel):
    """Model of a fleet under one rule. The coordinator's node is the number of crashes so far."""

    def __init__(self, bounds: Bounds, rule_type: type[CheckpointRule]) -> None:
        super().__init__(bounds)
        self.rule_type = rule_type
        self.promises_no_useless = rule_type.name in CIC_PROTOCOLS
        self.promises_tracking = rule_type.name in RDT_PROTOCOLS
        self.cores = [self._cores_of(agent) for agent in self.agents]
        self._columns = [self._columns_memo(agent) for agent in self.agents]

    def _cores_of(self, agent: int) -> CoreMemo[CheckpointRule]:
        return CoreMemo(lambda rule: rule.freeze(), lambda image: self.rule_type.restore(agent, image))

    def _columns_memo(self, agent: int) -> Memo[int, int]:
        return Memo(lambda number: self._column(self.nodes[agent].values[number]))

    def _column(self, node: LoggedNode) -> int:
        return self.cuts.columns.of((*(past.books for past in node.checkpoints), node.now.books))

    def start(self) -> State:
        return (*(self._first_node(agent) for agent in self.agents), 0)

    def _first_node(self, agent: int) -> int:
        count = len(self.agents)
        books = empty_ledger(count, agent, has_vector=self.promises_tracking)
        core = self.cores[agent].enter(self.rule_type(agent, count))
        past = SavedState(core, books, ((),) * count)
        return self.nodes[agent].of(LoggedNode(past, (past,), ((),) * count))

    # -- steps ----------------------------------------------------------------------------------------------------------

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        if actor == len(self.agents):
            return
        name, agent_node = self.names[actor], self.nodes[actor].values[node]
        if agent_node.now.mark < self.bounds.checkpoints:
            yield ProposedMove(f"{name} takes a basic checkpoint", "checkpoint")
        if sum(agent_node.now.books.sent) < self.bounds.sends:
            for to in self.agents:
                if to != actor:
                    yield ProposedMove(f"{name} sends to {self.names[to]}", "send", to)
        for sender, messages in enumerate(agent_node.channels):
            if messages:
                yield ProposedMove(f"{name} receives {messages[0].number} from {self.names[sender]}", "receive", sender)

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        agent_node = self.nodes[actor].values[node]
        match proposal.kind:
            case "checkpoint":
                return self.nodes[actor].of(self.checkpoint(actor, agent_node, None)), ()
            case "send":
                return self._send(actor, agent_node, proposal.detail)
            case _:
                return self.nodes[actor].of(self.receive(actor, agent_node, proposal.detail)), ()

    def checkpoint(self, agent: int, node: LoggedNode, cause: bytes | None, *, is_basic: bool = True) -> LoggedNode:
        """Perform the rule's checkpoint action, then take the checkpoint: its image includes the action."""
        core, _ = self.cores[agent].run(node.now.core, ("checkpoint", cause), lambda rule: rule.checkpoint(cause))
        saved = node.now._replace(core=core, mark=node.now.mark + is_basic)
        checkpoints = (*node.checkpoints, saved)
        return node._replace(now=self.restart(agent, saved, len(checkpoints) - 1), checkpoints=checkpoints)

    def _send(self, agent: int, node: LoggedNode, to: int) -> tuple[int, Outputs]:
        now = node.now
        core, piggyback = self.cores[agent].run(now.core, ("send", to), lambda rule: rule.send(to))
        sent = LoggedMessage(now.books.sent[to] + 1, piggyback, now.books.vector)
        log = replaced(now.log, to, (*now.log[to], sent))
        after = node._replace(now=now._replace(core=core, books=with_sent(now.books, to), log=log))
        if self.rule_type.checkpoints_after_sends:
            after = self.checkpoint(agent, after, None, is_basic=False)
        return self.nodes[agent].of(after), ((to, self.items.of((agent, sent))),)

    def receive(self, agent: int, node: LoggedNode, sender: int) -> LoggedNode:
        """Receive a message: test, checkpoint, merge, turn (the rule's duties 1 and 2)."""
        message = node.channels[sender][0]
        node = node._replace(channels=replaced(node.channels, sender, node.channels[sender][1:]))
        cores, piggyback = self.cores[agent], message.piggyback
        _, is_forced = cores.run(
            node.now.core, ("forces", sender, piggyback), lambda rule: rule.forces(sender, piggyback)
        )
        if is_forced:
            node = self.checkpoint(agent, node, piggyback, is_basic=False)
        core, _ = cores.run(node.now.core, ("receive", sender, piggyback), lambda rule: rule.receive(sender, piggyback))
        books = with_consumed(node.now.books, sender, message.number)
        books = books._replace(vector=tuple(map(max, books.vector, message.vector)))
        return node._replace(now=node.now._replace(core=core, books=books))

    # -- recoveries -----------------------------------------------------------------------------------------------------

    def crashes(self, state: State) -> list[tuple[int, State]]:
        if not self.can_crash(state):
            return []
        count = len(self.agents)
        lines = self.recoveries.lines[self.columns_of(state)]
        return [
            (self.labels.of(f"{name} crashes"), (*self.recovered(state, lines[agent]), state[count] + 1))
            for agent, name in enumerate(self.names)
        ]

    def can_crash(self, state: State) -> bool:
        return state[-1] < self.bounds.crashes

    def restart(self, agent: int, past: SavedState, place: int, begun: int = 0) -> SavedState:
        if not past.books.vector:
            return past
        return past._replace(books=past.books._replace(vector=replaced(past.books.vector, agent, place)))

    # -- oracles --------------------------------------------------------------------------------------------------------

    def columns_of(self, state: State) -> tuple[int, ...]:
        return tuple([memo[node] for memo, node in zip(self._columns, state, strict=False)])

    def check_promises(self, judgement: Judgement) -> None:
        if self.promises_no_useless and judgement.useless:
            agent, number = judgement.useless[0]
            raise Fault(
                "useless checkpoints", "G6", f"no consistent cut contains checkpoint {number} of {self.names[agent]}"
            )
        if self.promises_tracking and judgement.untracked:
            i, x, j, y = judgement.untracked[0]
            text = f"no causal path joins {x} of {self.names[i]} and {y} of {self.names[j]}, and no consistent cut holds both"
            raise Fault("untracked dependencies", "G6", text)

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.agents):
            return ""
        agent_node = self.nodes[actor].values[node]
        return f"{self.names[actor]} has messages waiting" if any(agent_node.channels) else ""
