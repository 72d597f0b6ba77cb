"""The state of a host core, shared by its parts, and what the lower parts call in the higher ones.

The parts build on each other: `host/links.py`, `host/epochs.py`, `host/checkpoints.py`, `host/agents.py`, `host/plans.py`, `host/core.py`.
"""

from collections.abc import Iterable

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.local_agent import AgentInlet, AgentOutlet, Entry, HostEpoch, LocalAgent, Mark, Peer
from snapline.protocols.policy import Policy


class HostState:
    """What a host knows. Only the parts of `HostCore` change it, inside `handle`.

    Attributes:
        host: id of this host.
        start: number of this run of the host, from the coordinator; 0 before the first Welcome.
        cluster: id of this fleet's run.
        plan: number of the plan applied, or being applied; 0 before the first.
        plan_hosts: the hosts of that plan.
        begun_epoch: the latest epoch known to have begun.
        is_loaded: the plan's agents are here.
        agents: the agents here, by id.
        routes: agent → (host, incarnation), as far as known.
        roster: living hosts, by id.
        peers: the other hosts of the plan that have a link, by id.
        local: stands for this host's own channels.
        epochs: open epochs by number, ascending.
        protocol, policy: of the fleet's definition; `is_logged` unless the protocol is chandy-lamport, `is_autonomous` if agents
            then checkpoint on their own.
        ordinals: agent → its place in the protocol's vectors, for all that messages went to.
        checkpoints, forced: taken by agents of a logged protocol since the start.
        piggybacked, piggyback_bytes: messages that left in a logged protocol since the start, and what was added to them.
        departed: agents that have left, and the latest epoch begun then, until one begun after that is complete.
        dead_letters, turns: counted since the start.
    """

    host: str
    start: int
    cluster: str
    plan: int
    plan_hosts: tuple[str, ...]
    begun_epoch: int
    is_loaded: bool
    agents: dict[str, LocalAgent]
    routes: dict[str, tuple[str, int]]
    roster: dict[str, ev.RosterEntry]
    peers: dict[str, Peer]
    local: Peer
    epochs: dict[int, HostEpoch]
    departed: dict[str, tuple[int, LocalAgent]]
    protocol: str
    policy: Policy
    is_logged: bool
    is_autonomous: bool
    ordinals: dict[str, int]
    checkpoints: int
    forced: int
    trace_every: int
    piggybacked: int
    piggyback_bytes: int
    dead_letters: int
    turns: int
    _now: int
    _out: list[ev.Command]
    _requests: int
    _reservations: dict[int, tuple[str, tuple[tuple[str, str], ...]]]
    _retirements: dict[int, str]
    _locating: dict[int, tuple[str, ...]]
    _early: dict[str, list[tuple[AgentInlet, Mark, bytes | None]]]  # for agents being created; None: a channel opened

    _ending: dict[tuple[str, str], AgentInlet]  # by sender that is gone, and receiver: not all consumed yet
    _timers: list[tuple[int, int, str, str]]
    _retries: list[tuple[int, str, int]]
    _poison: dict[tuple[str, str, bytes], tuple[int, int]]
    _failed: dict[str, str]
    _freeze: int
    _plans_applied: int
    _first_plan_ns: int
    _load_failure: ev.LoadFailed | None
    _loading: ev.LoadAgents | None
    _load_tries: int
    _load_again_ns: int  # 0: nothing waits for it

    def _emit_turn(self, agent: LocalAgent, entry: Entry) -> None:
        raise NotImplementedError

    def _next_turn(self, agent: LocalAgent) -> None:
        raise NotImplementedError

    def _arrive(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        raise NotImplementedError

    def _unpark(self, outlet: AgentOutlet) -> None:
        raise NotImplementedError

    def _is_reserving(self, name: str) -> bool:
        raise NotImplementedError

    def _leave(self, agent: LocalAgent, receiver: str, payload: bytes) -> None:
        raise NotImplementedError

    def _leave_all(self, agent: LocalAgent, sends: list[tuple[str, bytes]]) -> None:
        raise NotImplementedError

    def _consume(self, entry: Entry) -> None:
        raise NotImplementedError

    def _on_round_ended(self, event: ev.EpochEnded) -> None:
        raise NotImplementedError

    def _outbox_shrank(self, owner: LocalAgent) -> None:
        raise NotImplementedError

    def _set_timer(self, agent: LocalAgent, name: str, delay_ns: int, payload: bytes) -> None:
        raise NotImplementedError

    def _bury_letter(
        self, agent: LocalAgent, sender: str, payload: bytes, error: str, attempts: int, time_ns: int
    ) -> None:
        raise NotImplementedError

    def _settle(self, agent: LocalAgent, outlet: AgentOutlet, *, is_found: bool) -> None:
        raise NotImplementedError

    def _remove_if_done(self, agent: LocalAgent) -> None:
        raise NotImplementedError

    def _on_marker(self, peer: Peer, epoch: int, channels: list[int], last_numbers: list[int], is_last: bool) -> None:
        raise NotImplementedError

    def _flush(self, peer: Peer) -> None:
        raise NotImplementedError

    def _carry_link(self, peer: Peer, commands: Iterable[object]) -> None:
        raise NotImplementedError

    def _note(self, level: str, text: str) -> None:
        self._out.append(ev.Note(level, text))
