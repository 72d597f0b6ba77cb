"""A fleet of any size that nobody runs: the documents that `snapline.Client` would give, and a way to change them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import AgentMissingError, NotFoundError, SnaplineError, UsageError
from snapline.messages.answers import (
    Consumer,
    LocatedAgent,
    ReadConsumersReply,
    ReadOutputsReply,
    ReleasedOutput,
    ReleasedOutputs,
)
from snapline.messages.client_requests import AgentState, RecentTrace
from snapline.messages.status import AskedReplica, FleetStatus, ReplicaStatus, Standing
from snapline.storage.outputs.output_record import Cursor, parse_cursor


class SimulatedFleet:
    """`hosts` and `agents`: how many. `error`: what every call raises, if it is set."""

    def __init__(self, hosts: int = 3, agents: int = 6) -> None:
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self.states = dict.fromkeys(self.names, "alive")
        self.figures: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        self.owners = {f"teller-{number}": self.names[number % hosts] for number in range(agents)}
        self.more: dict[str, Any] = {}
        self.turns = 0
        self.note = "as usual"
        self.error: SnaplineError | None = None
        self.state_errors: dict[bool, SnaplineError] = {}
        self.describe_error: SnaplineError | None = None
        self.held: dict[str, Any] = {}
        self.line_epoch = 6
        self.asked: list[str] = []
        self.waiting_agents: list[dict[str, Any]] = []
        self.standing: list[dict[str, Any]] = []
        self.approvals: list[dict[str, Any]] = []
        self.outputs: list[tuple[int, str, Any]] = []
        self.page = 2
        self.history: dict[str, Any] | None = {
            "kind": "EpochHistory",
            "protocol": "chandy-lamport",
            "epochs": [],
            "stored": [6, 7],
        }

    async def status(self) -> FleetStatus:
        self._answer("status")
        fields = {
            "fleet": "bank",
            "phase": "running",
            "protocol": "chandy-lamport",
            "mode": "coordinated",
            "plan": 1,
            "agents": len(self.owners),
            "hosts_expected": len(self.names),
            "leader": "c1",
            "term": 4,
            "replicas": ["c1", "c2", "c3"],
            "last_complete_epoch": 7,
            "hosts": [self._host(name) for name in self.names],
            **self.more,
        }
        return msgspec.convert(fields, FleetStatus)

    def _host(self, name: str) -> dict[str, object]:
        agents = sum([owner == name for owner in self.owners.values()])
        about = {"host": name, "address": "127.0.0.1:4000", "host_start": 1, "state": self.states[name]}
        return {**about, "agents": agents, "turns": self.turns, **self.figures[name]}

    async def agents(self) -> list[LocatedAgent]:
        self._answer("agents")
        return [LocatedAgent(agent, self.states[host], host, "", 1) for agent, host in sorted(self.owners.items())]

    async def describe(self, agent: str, timeout_s: float = 1.0) -> dict[str, object]:
        self._answer("describe")
        if self.describe_error is not None:
            raise self.describe_error
        if agent not in self.owners:
            raise AgentMissingError(f"agent {agent!r} is not in this fleet")
        about = {"agent": agent, "agent_kind": "bank:Teller", "host": self.owners[agent], "incarnation": 1}
        return {"apiVersion": "snapline/v1", "kind": "Agent", **about, "life": "running", **self.more}

    async def state(self, agent: str, *, live: bool = False, timeout_s: float = 1.0) -> AgentState:
        """Live it has changed since epoch 7; `state_errors`: what is raised instead, for each of the two."""
        self._answer("state")
        if live in self.state_errors:
            raise self.state_errors[live]
        held = {"balance": 90 if live else 70, "note": self.note, **self.held}
        epoch, time = (None, "2026-01-01T00:00:09.000Z") if live else (7, "2026-01-01T00:00:00.000Z")
        return AgentState(agent, "bank:Teller", self.owners[agent], 1, epoch, time, live, False, "", held)

    async def snapshot_at(self, snapshot: str) -> dict[str, object]:
        """Two epochs that are alike but for a balance and what is in transit: 6 and 7, which is also "latest"."""
        self._answer(f"snapshot {snapshot}")
        if snapshot not in ("6", "7", "latest"):
            raise NotFoundError(f"there is no snapshot {snapshot!r}: `snapshot list` lists them")
        epoch = 6 if snapshot == "6" else 7
        agents: list[dict[str, Any]] = [
            {"agent": agent, "kind": "bank:Teller", "host": host, "state": {"balance": 100}}
            for agent, host in sorted(self.owners.items())
        ]
        agents[0]["state"] = {"balance": 10 * epoch, "note": self.note}
        turn = {"message": {"type": "Plan", "fields": {}}, "sender": "teller-1", "entries": 3, "waits_for": "step look"}
        agents[1] |= {"durable_turn": turn, "timers": [{"name": "due", "remaining_s": 1.5, "message": self.note}]}
        moved = {
            "number": epoch,
            "stamp": 0,
            "message": {"type": "Tokens", "fields": {"amount": epoch, "note": self.note}},
        }
        channels = [
            {"sender": "teller-0", "receiver": "teller-1", "in_transit": [moved]},
            {"sender": "teller-1", "receiver": "teller-0", "in_transit": []},
        ]
        about = {
            "epoch": epoch,
            "root": "ab" * 32,
            "created": "2026-01-01T00:00:00.000Z",
            "trigger": "period",
            "plan": 1,
        }
        sizes = {"agent_count": len(agents), "state_bytes": 60, "channel_state_messages": 1, "channel_state_bytes": 8}
        return {
            "apiVersion": "snapline/v1",
            "kind": "Snapshot",
            **about,
            **sizes,
            "hosts": self.names,
            "agents": agents,
            "channels": channels,
        }

    async def line_of(self, failed: Sequence[str]) -> dict[str, object]:
        """Of a fleet whose agents checkpoint on their own: who fails goes back, and teller-1 with them."""
        self._answer(f"line {','.join(failed)}")
        back = {
            agent for agent in self.owners if not failed or agent in failed or f"host:{self.owners[agent]}" in failed
        }
        back |= {"teller-1"}
        costs = {agent: {"to": 3, "checkpoints": 1, "turns": 10 + len(agent)} for agent in sorted(back)}
        line = {agent: 3 if agent in back else None for agent in self.owners}
        about = {"failed": list(failed), "epoch": 7, "root": "ab" * 32, "in_transit": 4, "silent_hosts": []}
        return {**about, "recovery_line": line, "rolled_back": sorted(back), "rollback": costs, **self.more}

    async def lines_of_each(self) -> dict[str, object]:
        self._answer("each line")
        lines = []
        for failed in [*self.owners, *[f"host:{name}" for name in self.names]]:
            found = await self.line_of([failed])
            lines.append(
                {
                    "failed": failed,
                    "rolled_back": found["rolled_back"],
                    "checkpoints": 1,
                    "turns": 20,
                    "rollback": found["rollback"],
                }
            )
        return {"epoch": 7, "lines": lines, "silent_hosts": []}

    async def recoveries(self) -> dict[str, object]:
        self._answer("recoveries")
        about = {
            "plan": 2,
            "line_epoch": self.line_epoch,
            "reason": f"h1 is lost: {self.note}",
            "lost_hosts": ["h1"],
            "rolled_back": 3,
        }
        times = {
            "suspected": "2026-01-01T00:00:00Z",
            "committed": "2026-01-01T00:00:01Z",
            "done": None,
            "duration_s": 0.4,
        }
        return {"recoveries": [{**about, **times, "messages_delivered_again": 5}], "condemned_epochs": []}

    async def epoch_history(self) -> dict[str, object] | None:
        """None, once it is of an older release."""
        self._answer("history")
        return self.history

    async def replicas(self) -> list[AskedReplica]:
        """c1 leads, c2 follows, and c3 does not answer."""
        self._answer("replicas")

        def status(node: str) -> ReplicaStatus:
            others = tuple(sorted({"c1", "c2"} - {node}))
            standing, log = Standing(4, "c1", node == "c1"), {"commit_index": 90, "applied": 88, "journal_bytes": 2048}
            return ReplicaStatus(
                node=node,
                standing=standing,
                is_learner=False,
                has_quorum=True,
                connected=others,
                first_index=1,
                last_index=91,
                **log,
            )

        rows = [AskedReplica(f"c{n}", f"10.0.0.{n}:4000", status(f"c{n}")) for n in (1, 2)]
        return [*rows, AskedReplica("c3", "10.0.0.3:4000", problem="nobody answers there")]

    async def waiting(self) -> dict[str, object]:
        self._answer("waiting")
        return {
            "kind": "WaitingAgents",
            "agents": self.waiting_agents,
            "more": 0,
            "silent_hosts": [],
            "effects": self.standing,
            "approvals": self.approvals,
        }

    async def outputs_page(self, after: str, topic: str = "") -> ReadOutputsReply:
        """`outputs`: (epoch, topic, message), each of teller-0."""
        self._answer(f"outputs {topic} after {after}")
        place = parse_cursor(after)
        if after and place.epoch > max([epoch for epoch, _, _ in self.outputs], default=0):
            raise UsageError("it is another's cursor")
        releases = []
        for number, (epoch, named, message) in enumerate(self.outputs, 1):
            cursor = Cursor(epoch, number)
            if cursor > place and (named == topic if topic else not named.startswith("@")):
                one = ReleasedOutput("teller-0", number, named, encode_message(message), number, str(cursor))
                releases.append(ReleasedOutputs(epoch, None, (one,)))
        return ReadOutputsReply(
            tuple(releases[: self.page]), releases[: self.page][-1].outputs[-1].cursor if releases else after
        )

    async def consumers(self) -> ReadConsumersReply:
        self._answer("consumers")
        return ReadConsumersReply((Consumer("books", "6.1", 1),))

    def _answer(self, call: str) -> None:
        self.asked.append(call)
        if self.error is not None:
            raise self.error

    async def recent_traces(
        self, after: Mapping[str, str], *, every: int, most: int
    ) -> Mapping[str, RecentTrace | None]:
        self._answer("recent_traces")
        return dict.fromkeys(self.names)
