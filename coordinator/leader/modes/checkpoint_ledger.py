"""The ledger, which lists the stored checkpoints of a fleet with sender logs, and computes the recovery line from them.

Each recovery plan has its own ledger. A ledger starts from the *base*, which is the newest complete epoch, and adds the later checkpoints
that hosts report. Base 0 stands for the initial states, which are stored as checkpoint 0 of each agent in a separate pack.
`recovery/dependency_history.py` computes the line. The ledger tracks which pack contains which checkpoint, and which packs no recovery
line can need anymore.

`FleetHistory` numbers each agent's checkpoints from 0, but an agent's checkpoint in the base epoch may have any number. In the history,
the base checkpoint therefore has number 1, after an implicit checkpoint 0. `_shift` converts ledger numbers to history numbers.

Because the base is a consistent cut, the recovery line never falls below it during a plan. Checkpoints up to and including the base are
dropped and their files deleted, because every plan starts from the base or from later checkpoints.
"""

from collections.abc import Iterable, Mapping

from snapline.coordinator.leader.events import LineAgent, StoredCheckpoint
from snapline.coordinator.state.fleet_records import AgentRecord
from snapline.errors import ProtocolError
from snapline.messages.host_messages import ReportedPack
from snapline.recovery.dependency_history import FleetHistory, Line

UNBORN = "unborn"

AGENTS_NAMED_MAX = 5
"""Largest number of agents that one message names."""

ADDED, KNOWN, GAP, VOID = "added", "known", "gap", "void"


class Ledger:
    """The stored checkpoints of a fleet with sender logs, under one plan.

    Attributes:
        plan, base_epoch: numbers of the plan and of the base epoch.
        base: for each agent, the number of its checkpoint in the base epoch. Agents that are unborn in the base epoch have no entry.
        newest: for each agent, the number of its newest checkpoint, which is 0 if it has only its initial checkpoint.
        packs: all packs that contain checkpoints, by path.
        log_bytes: total size, in bytes, of the sender logs in the packs.
        problems: descriptions of contradictory reports, for the process's log.
        left: agents that have left since the base epoch. Agents that have left stay in the history, because an epoch that began before
            they left contains them in the same state as the base.
    """

    def __init__(
        self,
        plan: int,
        base_epoch: int,
        base: Iterable[StoredCheckpoint],
        initial: Iterable[str],
        damaged: Mapping[str, int],
    ) -> None:
        """Create a ledger that contains only the base epoch's checkpoints.

        Args:
            base_epoch: number of the base epoch, or 0 for the initial states.
            initial: agents whose checkpoint 0 must be in a pack because there is no base epoch.
            damaged: for each agent, the number of its first unreadable checkpoint. An unreadable checkpoint and all later checkpoints of
                its agent are ignored.
        """
        self.plan = plan
        self.base_epoch = base_epoch
        self.base: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.packs: dict[str, ReportedPack] = {}
        self.log_bytes = 0
        self.problems: list[str] = []
        self.left: dict[str, None] = {}
        self.history = FleetHistory()
        self._damaged = dict(damaged)
        self._initial = dict.fromkeys(initial)
        self._missing = {} if base_epoch else dict(self._initial)
        self._shift: dict[str, int] = {}
        self._paths: dict[str, dict[int, str]] = {}
        self._held: dict[str, dict[str, int]] = {}
        """Path → agent → highest number of that agent's checkpoints in the pack."""
        self._pack_log_bytes: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._line: dict[str, int] | None = None
        for checkpoint in base:
            self._begin_with(checkpoint)
        for agent in self._initial:
            self.join(agent)

    def _begin_with(self, checkpoint: StoredCheckpoint) -> None:
        agent = checkpoint.agent
        self.join(agent)
        if checkpoint.basis != UNBORN:
            self.history.add(agent, 1, checkpoint.sent, checkpoint.received)
            self._shift[agent] = 1 - checkpoint.number
            self.base[agent] = self.newest[agent] = checkpoint.number

    def join(self, agent: str) -> None:
        """Add a new agent, whose implicit checkpoint 0 needs no file. The method is idempotent."""
        if agent not in self.newest:
            self.history.join(agent)
            self.newest[agent] = 0
            self._line = None

    # ---- additions ------------------------------------------------------------------------------------------------

    def hold(self, checkpoints: Iterable[StoredCheckpoint]) -> None:
        """Record that these checkpoints are in the store, even if the history cannot include them yet."""
        before = dict.fromkeys(self._held)
        for checkpoint in checkpoints:
            path = checkpoint.pack.path
            self.packs[path] = checkpoint.pack
            held = self._held.setdefault(path, {})
            if path not in before:
                self._pack_log_bytes[path] = self._pack_log_bytes.get(path, 0) + checkpoint.log_bytes
                self.log_bytes += checkpoint.log_bytes
            if checkpoint.agent not in self.left:
                held[checkpoint.agent] = max(checkpoint.number, held.get(checkpoint.agent, 0))

    def add(self, checkpoint: StoredCheckpoint) -> str:
        """Add a checkpoint that is in the store.

        The checkpoint may list either all channels or only those that have changed since the agent's previous checkpoint.

        Returns:
            "added" if the checkpoint is new; "known" if it is already in the ledger or older than the base; "gap" if its predecessor is
            missing; "void" if it is unusable.
        """
        agent, number = checkpoint.agent, checkpoint.number
        if number >= self._damaged.get(agent, number + 1) or agent in self.left:
            return VOID
        self.join(agent)
        if agent in self._missing:
            if number:
                return GAP
            del self._missing[agent]
            self._paths.setdefault(agent, {})[0] = checkpoint.pack.path
            return ADDED
        if number <= self.newest[agent]:
            return KNOWN
        if number > self.newest[agent] + 1:
            return GAP
        self._turns[agent] = self._turns.get(agent, 0) + checkpoint.turns
        try:
            history_number = number + self._shift.get(agent, 0)
            self.history.add(agent, history_number, checkpoint.sent, checkpoint.received, self._turns[agent])
        except ProtocolError as error:
            self.problems.append(f"checkpoint {number} of agent {agent} is not used: {error}")
            self._damaged[agent] = number
            return VOID
        self.newest[agent] = number
        self._paths.setdefault(agent, {})[number] = checkpoint.pack.path
        self._line = None
        return ADDED

    def leave(self, agent: str) -> None:
        """Mark a stopped agent as departed from the fleet. All messages that the agent has sent must have been received before the base."""
        if agent in self.newest:
            self.left[agent] = None
            for held in self._held.values():
                held.pop(agent, None)

    def report_live(self, agent: str, received: Mapping[str, int], turns: int) -> None:
        """Record that an agent's live state is `turns` turns past its newest checkpoint."""
        self.join(agent)
        self.history.report_live(agent, received, turns=self._turns.get(agent, 0) + turns)

    def why_not_advanced(self) -> str:
        """Explain to operators why the recovery line has not advanced: either no newer checkpoints exist, or none of them fits into a
        consistent cut."""
        newer = [agent for agent, number in self.newest.items() if number > self.base.get(agent, 0)]
        if not newer:
            return f"no agent has taken a checkpoint since epoch {self.base_epoch}: they do as their policy says"
        names = ", ".join(newer[:AGENTS_NAMED_MAX]) + (", …" if len(newer) > AGENTS_NAMED_MAX else "")
        return (
            f"the recovery line has not advanced since epoch {self.base_epoch}: {len(newer)} of {len(self.newest)} agents have "
            f"newer checkpoints ({names}), and none of these fits into a consistent cut; a protocol that forces checkpoints, such as "
            "hmnr, makes it advance"
        )

    # ---- queries --------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether a recovery line can be stored as an epoch, which requires a stored first checkpoint of each initial agent."""
        return not self._missing

    @property
    def line(self) -> dict[str, int]:
        """Return the recovery line for the case that all agents fail, as a map from agent to checkpoint number."""
        if self._line is None:
            shift = self._shift
            self._line = {agent: place - shift.get(agent, 0) for agent, place in self.history.total_line().items()}
        return self._line

    @property
    def has_advanced(self) -> bool:
        """Return whether the recovery line is newer than the base."""
        base = self.base
        line = self.line.items()
        return self.is_ready and any(number > base.get(agent, 0) for agent, number in line if agent not in self.left)

    def history_number_of(self, agent: str, number: int) -> int:
        """Convert the ledger's number of an agent's checkpoint to the number in `FleetHistory`."""
        return number + self._shift.get(agent, 0)

    def ledger_number_of(self, agent: str, place: int) -> int:
        """Convert a checkpoint number in `FleetHistory` to the ledger's number."""
        return place - self._shift.get(agent, 0)

    def line_agents(
        self, members: Iterable[tuple[str, AgentRecord]], line: Mapping[str, int]
    ) -> tuple[tuple[LineAgent, ...], dict[str, ReportedPack]]:
        """Return the agents with the paths of their packs, and the packs by path, as needed to store `line` as an epoch of `members`."""
        agents: list[LineAgent] = []
        packs: dict[str, ReportedPack] = {}
        for agent, record in members:
            number = self.base.get(agent, 0) if agent in self.left else line.get(agent, 0)
            base_number = self.base.get(agent, -1)
            first = base_number + 1 if base_number >= 0 or agent in self._initial else 1
            pack_paths = self._paths.get(agent, {})
            paths = tuple([pack_paths[x] for x in range(first, number + 1)])
            packs.update((path, self.packs[path]) for path in paths)
            agents.append(LineAgent(agent, record.kind, record.host, record.incarnation, number, base_number, paths))
        return tuple(agents), packs

    # ---- changes --------------------------------------------------------------------------------------------------

    def rebase(self, epoch: int, line: Mapping[str, int]) -> None:
        """Make a recovery line the new base, because it has become an epoch."""
        self.base_epoch = epoch
        for agent, number in line.items():
            if number == 0 and agent not in self._initial and agent not in self.base:
                continue  # the agent has not been created yet on this line
            self.base[agent] = number
            place = self.history_number_of(agent, number)
            known = self.history.checkpoints_of(agent)
            self.history.forget(agent, [x for x in known if x < place])
            paths = self._paths.get(agent, {})
            self._paths[agent] = {x: path for x, path in paths.items() if x > number}

    def drop_above_base(self) -> None:
        """Drop all checkpoints after the base, because the round in which they were taken has aborted."""
        self.history.roll_back(
            Line({agent: self.history_number_of(agent, self.base.get(agent, 0)) for agent in self.newest})
        )
        for agent in self.newest:
            base = self.base.get(agent, 0)
            self.newest[agent] = base
            self._paths[agent] = {x: path for x, path in self._paths.get(agent, {}).items() if x <= base}
        self._line = None

    def take_obsolete(self) -> tuple[str, ...]:
        """Remove and return the paths of all packs that contain no checkpoint after the base."""
        if not self.base_epoch:
            return ()
        base = self.base
        obsolete = tuple(
            [path for path, held in self._held.items() if all(x <= base.get(agent, 0) for agent, x in held.items())]
        )
        self.release(obsolete)
        return obsolete

    def release(self, paths: Iterable[str]) -> None:
        """Drop these packs from the ledger, because they will be deleted."""
        for path in paths:
            self._held.pop(path, None)
            self.packs.pop(path, None)
            self.log_bytes -= self._pack_log_bytes.pop(path, 0)

    def lowest_checkpoints_in(self, path: str, agent: str) -> dict[str, int]:
        """Map `agent`, or each agent in the pack if `agent` is empty, to the number of its lowest checkpoint after the base in this
        pack."""
        lowest: dict[str, int] = {}
        for name in [agent] if agent else list(self._held.get(path, {})):
            numbers = [number for number, pack_path in self._paths.get(name, {}).items() if pack_path == path]
            if numbers:
                lowest[name] = min(numbers)
        return lowest
