"""State that all parts of the leader share: the replicated state, the commands issued for the current event, and the pending proposals.

Each decision has a *key*, such as "plan" or "epoch/7", and at most one proposal per key is pending. After every event, the parts compare
the state with what they know, and propose the missing operations. A rejected or refused proposal needs no special handling, because the
next evaluation decides again.
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
"""Minimum delay, in nanoseconds, between a failed proposal and the next one with the same key, so that a bug cannot cause a busy loop."""

PROPOSALS_MAX = 4096
"""Largest number of pending proposals, including those requested by hosts. While the limit is reached, the stream of a requesting host is
closed, and the host retries."""


class LeaderOptions(msgspec.Struct, frozen=True):
    """Options of a leader.

    Attributes:
        client: random name of this leader's run, which is part of its request ids.
        cluster: random id of the fleet's run, used until the replicated state contains an id.
        hosts_expected: number of attached hosts that the fleet needs to start.
        rejoin_grace_ns: how long a lost host may take to rejoin before its agents move to other hosts.
        keep_epochs: number of complete epochs to keep, at least 2.
        heartbeat_ns: heartbeat interval requested from hosts.
        exit_when_finished: whether the leader's run ends when the fleet has ended.
        may_begin_anew: whether the fleet may restart from its initial states if all snapshots are damaged.
        certify: deterministic function that signs the public key with which a host signs its log (`Store.certify_log`). If `certify` is
            None, log batches are not signed.
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
    """State that the parts of one leader share.

    Attributes:
        state: the replicated state; read only.
        now: monotonic time of the event being handled.
        out: commands issued so far for this event.
        ending: (epoch, outcome, reason) once the leader has decided that the fleet must end, otherwise None. The leader proposes the end
            in `ending` until the fleet has ended.
        damaged: path and reason for each epoch that was found damaged. The leader proposes to condemn each damaged epoch until the
            replicated state records it as condemned.
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
        """Propose `kind`, unless a proposal with the same key is pending or has just failed. Return whether the operation was proposed."""
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
        """Return whether the limit on pending proposals is reached."""
        return len(self._pending) >= PROPOSALS_MAX

    def end_proposal(self, token: int, outcome: ProposalOutcome) -> tuple[Proposal, OperationResult | None] | None:
        """Handle the outcome of a proposal. Return the proposal with its result; the result is None if the leader's own proposal was
        rejected.

        Return None if the outcome is unknown or a host's request was rejected, because the operation is then proposed again. After an
        unknown outcome, the operation is proposed again under the same request id.
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
        if not is_request:  # hosts repeat a request only after their stream was lost, so requests need no delay
            self._blocked[proposal.key] = self.now + RETRY_NS
        return proposal, outcome.result if isinstance(outcome, Committed) else None

    def propose_again(self) -> None:
        """Repeat the proposals queued by `end_proposal` once RETRY_NS has passed."""
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
        """Record that an epoch's data is damaged, so that no plan starts from this epoch."""
        if epoch not in self.damaged:
            self.note("warning", f"epoch {epoch} is damaged and will not be used: {path}: {reason}")
            self.damaged[epoch] = (path, reason)

    def end(self, epoch: int, outcome: str, reason: str) -> None:
        """Request the end of the fleet. If several parts of the leader request the end, the first request counts."""
        if self.ending is None:
            self.ending = (epoch, outcome, reason)
