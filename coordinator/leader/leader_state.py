"""State shared by the parts of the leader: the replicated state, the commands issued so far, and the pending proposals.

Each decision has a *key*, such as "plan" or "epoch/7", and at most one proposal per key is pending. The parts are level-
triggered: after every event they compare the state with what they know and propose what is missing. So a rejected
proposal, or one refused because the state has changed, needs no handling: the next evaluation decides again.
"""

from collections.abc import Callable

import msgspec

from snapline.coordinator.leader.events import Command, Note, Propose, SendDirective
from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected
from snapline.coordinator.state.fleet_view import FleetView
from snapline.coordinator.state.operations import Kind
from snapline.messages.host_messages import Directive
from snapline.storage.log.log_record import LogName

SECOND_NS = 1_000_000_000

RETRY_NS = 100_000_000
"""Delay, in nanoseconds, before a key is used again after its proposal was rejected or refused, so that a bug cannot cause a busy loop."""

PROPOSALS_MAX = 4096
"""Largest number of pending proposals, including requests of hosts. Beyond it a requesting host's stream is closed, and the host
retries."""


class LeaderOptions(msgspec.Struct, frozen=True):
    """Options of a leader.

    Attributes:
        client: random name of this leader's run in request ids.
        cluster: random id for the fleet's run, used until the state holds one.
        hosts_expected: the fleet starts when this many hosts are attached.
        rejoin_grace_ns: time that agents wait for their lost host before they move.
        keep_epochs: number of complete epochs to keep, at least 2.
        heartbeat_ns: heartbeat interval requested from hosts.
        exit_when_finished: end the run when the fleet has ended.
        may_begin_anew: if all snapshots are damaged, the fleet may begin again from its initial states.
        certify: signs a host's public key for a log (`Store.certify_log`); deterministic. None: batches are not signed.
    """

    client: str
    cluster: str
    hosts_expected: int
    rejoin_grace_ns: int = 3 * SECOND_NS
    keep_epochs: int = 10
    heartbeat_ns: int = SECOND_NS // 2
    exit_when_finished: bool = True
    may_begin_anew: bool = True
    certify: Callable[[LogName, bytes], bytes] | None = None


class Proposal(msgspec.Struct, frozen=True):
    """A pending proposal."""

    key: str
    client: str
    sequence: int
    kind: Kind


class LeaderState:
    """State shared by the parts of one leader.

    Attributes:
        state: the replicated state; read only.
        now: time of the event being handled.
        out: commands issued so far for this event.
        ending: (epoch, outcome, reason) once a part decides that the fleet must end; proposed until the fleet has ended.
        damaged: damaged epoch → (path, reason); condemning it is proposed until the state agrees.
    """

    def __init__(self, state: FleetView, options: LeaderOptions) -> None:
        self.state = state
        self.options = options
        self.now = 0
        self.out: list[Command] = []
        self.ending: tuple[int, str, str] | None = None
        self.damaged: dict[int, tuple[str, str]] = {}
        self._token = 0
        self._pending: dict[int, Proposal] = {}
        self._keys: dict[str, int] = {}
        self._blocked: dict[str, int] = {}
        self._again: list[tuple[int, int]] = []

    def propose(self, key: str, kind: Kind, *, client: str = "", sequence: int = 0) -> bool:
        """Propose `kind` unless a proposal with this key is pending or has just failed; return whether it was proposed."""
        if key in self._keys or len(self._pending) >= PROPOSALS_MAX:
            return False
        if key in self._blocked:
            if self.now < self._blocked[key]:
                return False
            del self._blocked[key]
        self._token += 1
        proposal = Proposal(key, client or self.options.client, sequence or self._token, kind)
        self._pending[self._token] = proposal
        self._keys[key] = self._token
        self.out.append(Propose(self._token, proposal.client, proposal.sequence, kind))
        return True

    def is_pending(self, key: str) -> bool:
        """Return whether a proposal with this key is pending."""
        return key in self._keys

    @property
    def is_full(self) -> bool:
        """Return whether the limit of pending proposals is reached."""
        return len(self._pending) >= PROPOSALS_MAX

    def end_proposal(self, token: int, outcome: ProposalOutcome) -> tuple[Proposal, OperationResult | None] | None:
        """Handle the outcome of a proposal; return the proposal with its result, which is None if it was rejected.

        After an unknown outcome, or a rejected request of a host, the operation is proposed again under its request id, and None
        is returned.
        """
        proposal = self._pending.get(token)
        if proposal is None:
            return None
        is_request = proposal.client != self.options.client
        if not isinstance(outcome, Committed) and (is_request or not isinstance(outcome, Rejected)):
            self._again.append((self.now + RETRY_NS, token))
            return None
        del self._pending[token], self._keys[proposal.key]
        if isinstance(outcome, Committed) and not outcome.result.is_refused:
            return proposal, outcome.result
        if not is_request:  # hosts repeat a request only after a lost stream, so requests need no delay
            self._blocked[proposal.key] = self.now + RETRY_NS
        return proposal, outcome.result if isinstance(outcome, Committed) else None

    def propose_again(self) -> None:
        """Propose again after an unknown outcome, once RETRY_NS has passed."""
        due = [token for at, token in self._again if at <= self.now]
        self._again = [(at, token) for at, token in self._again if at > self.now]
        for token in due:
            proposal = self._pending[token]
            self.out.append(Propose(token, proposal.client, proposal.sequence, proposal.kind))
        if self._blocked:
            self._blocked = {key: until for key, until in self._blocked.items() if until > self.now}

    def send(self, sessions: tuple[int, ...], directive: Directive) -> None:
        """Send `directive` to these sessions."""
        if sessions:
            self.out.append(SendDirective(sessions, directive))

    def note(self, level: str, text: str) -> None:
        """Write `text` to the process's log."""
        self.out.append(Note(level, text))

    def condemn(self, epoch: int, path: str, reason: str) -> None:
        """Condemn an epoch whose bytes are damaged: no plan may use it."""
        if epoch not in self.damaged:
            self.note("warning", f"epoch {epoch} is damaged and will not be used: {path}: {reason}")
            self.damaged[epoch] = (path, reason)

    def end(self, epoch: int, outcome: str, reason: str) -> None:
        """Request the end of the fleet. The first request determines the reason."""
        if self.ending is None:
            self.ending = (epoch, outcome, reason)
