"""`snapline.Client`: the API through which external programs talk to a fleet's agents. `Client` does the I/O for the core in `core.py`.

`Client` holds the payloads, the futures on which callers wait, and the addresses and certificates of its connections. The core decides
which host to contact, and when.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold, with_standing
from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.client import approval_commands, operator_commands, sends_and_asks
from snapline.client import client_events as ev
from snapline.client.core import ClientCore
from snapline.client.host_calls import HostCalls, ask_until_answered, waiting_agents
from snapline.client.operator_commands import CommandSender, DeadLetterResult, Numbers, dead_letter_commands
from snapline.client.output_reader import OutputsRequest, requested_outputs
from snapline.client.sends_and_asks import (
    AgentInput,
    Receipt,
    Reply,
    ReplyReader,
    Sends,
    WaitingAsks,
    answer_error,
    check_timeout,
    fail_all,
    input_of,
    snapshot_of,
)
from snapline.client.trace_analysis import RecoveryLine
from snapline.deploy.data_directory import ADDRESS_FILE, read_address
from snapline.errors import InputsError, SnaplineError, UsageError
from snapline.ids import check_failed, check_id
from snapline.messages.agent_commands import DROP, RETRY, UNDO
from snapline.messages.answers import LocatedAgent, document, document_of
from snapline.messages.approvals import ApprovalAnswer, OpenApproval
from snapline.messages.client_requests import DESCRIPTION, LIVE, STATE, AgentState, GivenInput, Question
from snapline.messages.coordinator_client import SNAPSHOT_TIMEOUT_S, CoordinatorClient, retry_until_available
from snapline.messages.coordinator_client import TIMEOUT_S as CALL_S_MAX
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.status import FleetStatus
from snapline.security.transport import DEFAULT_DOMAIN, RELOAD_S, Security

CONNECT_S_MAX = 10.0
"""Longest wait for the coordinator's first answer, in seconds. It allows for a leader election, which takes a second or two."""


class Certificates(msgspec.Struct, frozen=True):
    """Files for TLS with a client certificate that has the role `client` (docs/security.md).

    Attributes:
        certificate, key: our certificate and key, as PEM files.
        authority: PEM file with the trusted CA certificates.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path
    domain: str = DEFAULT_DOMAIN


def address_of(address: str, data_dir: str | Path | None) -> str:
    """Return `address` if it is given, otherwise the address recorded in `data_dir`. The result may list several replicas, separated by
    commas.

    Raises:
        UsageError: neither argument is given, both are given, or `data_dir` records no address.
    """
    if address and data_dir is not None:
        raise UsageError("address and data_dir both name a coordinator: give one of them")
    if data_dir is not None:
        address = read_address(Path(data_dir)) or ""
        if not address:
            raise UsageError(
                f"{Path(data_dir) / ADDRESS_FILE} names no coordinator: is it the folder of a local fleet?"
            )
    if not [part for part in address.split(",") if part.strip()]:
        raise UsageError("which fleet? Give the coordinator's address, or data_dir of a local fleet")
    return address


def security_of(tls: Certificates | None, *, insecure: bool) -> Security:
    """Return the security settings for the given certificates. If neither `tls` nor `insecure` is given, only loopback connections are
    allowed.

    Raises:
        UsageError: both `tls` and `insecure` are given.
    """
    if tls is None:
        return Security.insecure() if insecure else Security.loopback()
    if insecure:
        raise UsageError("insecure contradicts tls: leave one out")
    return Security.tls(authority=tls.authority, certificate=tls.certificate, key=tls.key, domain=tls.domain)


class Startable(Protocol):
    """Interface of a client whose `start` method waits for the coordinator's first answer."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


_Client = TypeVar("_Client", bound=Startable)


async def started(client: _Client) -> _Client:
    """Wait until the coordinator has answered, then return the client. Raises the errors of `Client.connect`."""
    try:
        await client.start()
    except BaseException:
        await client.close()
        raise
    return client


async def keep_reloading(security: Security, renew: Callable[[], None]) -> None:
    """Check the certificate files periodically. Call `renew` whenever they have changed."""
    generation = security.generation
    while True:
        await asyncio.sleep(RELOAD_S)
        await asyncio.to_thread(security.reload)
        if generation != security.generation:
            generation = security.generation
            renew()


async def close_later(older: CoordinatorClient) -> None:
    """Close a client that has been replaced, after a delay in which all its pending calls must have ended or timed out."""
    try:
        await asyncio.sleep(CALL_S_MAX)
    finally:
        await older.close()


TIMEOUT_S = 30.0
"""Default time limit of a send, in seconds. A fleet recovers from the loss of a host in a few seconds, or in about ten seconds if the host
has to restart."""


class Client:
    """A connection from an external program to a fleet. `connect` creates it. A client belongs to one event loop, on which its methods may
    run concurrently.

    Once an input has a receipt, it takes effect exactly once (docs/clients.md). An agent consumes a client's inputs in the order in which
    the client sent them. Until a host answers or the time limit is reached, the client resends each input with the same key.
    """

    def __init__(self, address: str, security: Security, name: str) -> None:
        self._address = address
        self._security = security
        self._core = ClientCore(secrets.randbits(32))
        self._hosts = HostCalls(security, name)
        self._coordinator = CoordinatorClient(address, security)
        self._sends = Sends(self._feed)
        self._asking = WaitingAsks(self._feed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reloading: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        address: str = "",
        *,
        data_dir: str | Path | None = None,
        tls: Certificates | None = None,
        insecure: bool = False,
        name: str = "client",
    ) -> "Client":
        """Connect to the fleet whose coordinator listens at `address`, or to the local fleet in `data_dir`.

        Args:
            address: HOST:PORT of the coordinator. If the coordinator has several replicas, list all their addresses, separated by commas.
            tls: the client's certificate and the trusted certificate authority. If `tls` is None, only loopback connections are allowed,
                unless `insecure` is set.
            insecure: whether to allow unencrypted connections to other machines. Use this option only in isolated networks.
            name: client name, recorded as the sender of inputs. If a client certificate contains a name, that name is used instead.

        Raises:
            UsageError: the arguments contradict each other, or the client's certificate does not grant permission.
            CoordinatorUnavailableError: no coordinator answers at the address.
        """
        return await open_client(address_of(address, data_dir), security_of(tls, insecure=insecure), name)

    async def start(self) -> None:
        """Wait for the coordinator's first answer. `connect` calls this method."""
        await retry_until_available(lambda: self._coordinator.locate((), CONNECT_S_MAX))
        if self._security.is_tls:
            self._reloading = asyncio.create_task(keep_reloading(self._security, self._renew))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections and end all pending asks and sends. A pending send fails with InputUnknownError if its input may have been
        accepted."""
        self._feed(ev.ClientClosed())
        tasks = [*self._tasks, *([self._reloading] if self._reloading is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._hosts.close()
        await self._coordinator.close()

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def send(self, agent: str, message: Any, key: str | None = None, timeout_s: float = TIMEOUT_S) -> Receipt:
        """Send an input to an agent. Return as soon as the input is durable in the fleet's log.

        Args:
            message: an instance of snapline.Message, a struct or a dataclass, like a message between agents. Alternatively, a pair `(type,
                fields)`: the message type's name and the fields as JSON values, which the host converts.
            key: idempotency key of 1 to 128 characters. Sends with the same key count as one input, so it is safe to repeat a send whose
                outcome is unknown. By default, a random key is generated, which the receipt and every error contain.
            timeout_s: time limit for the whole send, including retries.

        Raises:
            InputUnknownError: the input may have been accepted. Repeating the send with `error.key` shows whether the input was accepted.
            InputRejectedError: the input was not accepted within the time limit.
            InputRefusedError: the input will never be accepted, because the agent has no handler for it, its fields do not match its type,
                or its key was used for another input.
            AgentMissingError: the agent does not exist, or has stopped.
            FleetEndedError: the fleet has ended.
            EncodingError, MessageTooLargeError, UsageError: the message is invalid and was not sent.
        """
        (outcome,) = await self._sends.outcomes([input_of(agent, message, key)], timeout_s)
        if isinstance(outcome, SnaplineError):
            raise outcome
        return outcome

    async def send_many(self, inputs: Iterable[AgentInput], timeout_s: float = TIMEOUT_S) -> list[Receipt]:
        """Send many inputs, each given as `(agent, message)` or `(agent, message, key)`. Return the receipts in the order of the inputs.

        Inputs for agents on the same host are sent in shared requests. Each agent receives its inputs in the given order. If one input
        is refused, the remaining inputs are still sent.

        Raises:
            InputsError: at least one input has no receipt. `error.outcomes` contains one receipt or error for each input. If the caller
                supplied the keys, all inputs can safely be sent again.
            EncodingError, MessageTooLargeError, UsageError: at least one message is invalid, so no message was sent.
        """
        checked_inputs = [input_of(each[0], each[1], each[2] if len(each) > 2 else None) for each in inputs]
        outcomes = await self._sends.outcomes(checked_inputs, timeout_s)
        failed = [each for each in outcomes if isinstance(each, SnaplineError)]
        if failed:
            count = f"{len(failed):,} of {len(outcomes):,} inputs have no receipt"
            raise InputsError(f"{count}; the first: {failed[0]}", outcomes) from failed[0]
        return [each for each in outcomes if isinstance(each, Receipt)]

    # ---- asking -----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        agent: str,
        message: Any,
        key: str | None = None,
        early: bool = False,
        timeout_s: float = TIMEOUT_S,
        *,
        reply_type: Any = None,
    ) -> Reply:
        """Send an input as `send` does, and return the answer that the agent gives while handling the input (`ctx.reply`).

        The answer is final, because `ask` returns it only after a complete snapshot contains the turn that produced it. A repeated `ask`
        with the same key returns the same answer.

        Args:
            early: whether to return the answer as soon as the turn that gives it has ended, before a snapshot contains that turn. If
                `early` is set, a recovery may still undo the turn, so that the agent handles the input again and gives a different answer.
            timeout_s: time limit for the send and the answer together.
            reply_type: class to which the answer's message is converted. If `reply_type` is None, the reply contains plain values.

        Raises:
            AnswerMissingError: the input was accepted, but its answer did not arrive in time or is no longer stored. Ask again with
                `error.key`.
            InputDeadLetteredError: the input was accepted, but its handler failed and the input became a dead letter.
            EncodingError: the answer does not match `reply_type`.
            InputUnknownError: as in `send`. `ask` also raises all errors of `send`.
        """
        reader, checked_input = ReplyReader(reply_type), input_of(agent, message, key)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        giving = asyncio.ensure_future(self._sends.outcomes([checked_input], timeout_s))
        asking = asyncio.ensure_future(
            self._asking.wait_for_answer(agent, checked_input.key, deadline_s, is_early=early)
        )
        try:
            (receipt,) = await giving
            if isinstance(receipt, SnaplineError):
                raise receipt
            ending = await asking
            if ending.ending == ev.FORGOTTEN:  # The host received the request for the answer before the input.
                ending = await self._asking.wait_for_answer_to(receipt, deadline_s, is_early=early)
        finally:
            giving.cancel()
            asking.cancel()
        if ending.ending != ev.ANSWERED or ending.outcome is None:
            raise answer_error(ending, receipt)
        return Reply(agent, receipt.number, reader.read(ending.outcome), early, checked_input.key)

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def outputs(
        self,
        topic: str = "",
        *,
        after: str = "",
        consumer: str = "",
        message_type: Any = None,
        follow: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> AsyncGenerator[Output | OutputsReverted, None]:
        """Yield the outputs that agents emit to external consumers (`ctx.emit`), in order. Each output is yielded exactly once, after a
        complete snapshot contains it.

        Args:
            topic: topic of the outputs to yield. If `topic` is empty, yield the outputs of all topics named by agents. The topic
                `@effects` contains the ledger of external effects.
            after: cursor of the output after which to start. If `after` is empty, start with the oldest stored output.
            consumer: name of a consumer; reading starts at the position that it has acknowledged (`acknowledge`). Outputs not yet
                acknowledged by the consumer are retained for at most a week.
            message_type: class to which messages are converted. If `message_type` is None, messages are returned as plain values.
            follow: whether to wait for new outputs until the fleet ends. If `follow` is False, stop after all outputs released so far.
            timeout_s: how long reads may keep failing before the error is raised.

        Raises:
            NotFoundError: some outputs that follow the cursor have been deleted.
            UsageError: the cursor does not belong to this fleet, or this client has no permission. EncodingError: a message does not match
                `message_type`.
            CoordinatorUnavailableError, UnknownOutcomeError, StoreError: all reads have failed for `timeout_s`.
            DamagedDataError: a file in the store is damaged.
        """
        request = OutputsRequest(topic, after, consumer, message_type, follow, timeout_s)
        return requested_outputs(lambda: self._coordinator, request)

    async def effects(self) -> list[Effect]:
        """Return the agents' external effects (`ctx.effect`), with the outcomes recorded in complete snapshots. Raises the errors of
        `outputs`.

        If this client may inspect agents, the result also includes the current state of unfinished effects, as reported by hosts. The
        unfinished effects of a host that does not answer are reported as "open".
        """
        open_effects = await operator_commands.standing(self._coordinator, self._hosts)
        records = [x async for x in self.outputs(EFFECTS_TOPIC, message_type=EffectRecord, follow=False)]
        return with_standing(fold(records), open_effects)

    async def acknowledge(self, consumer: str, last: Output | OutputsReverted | str) -> None:
        """Record that the named consumer has processed all outputs up to and including the given output or cursor. The consumer's next
        call of `outputs` starts after this position. A consumer's position never moves backwards."""
        cursor = last if isinstance(last, str) else last.cursor
        await retry_until_available(lambda: self._coordinator.move_consumer(consumer, cursor))

    # ---- the fleet as a whole ---------------------------------------------------------------------------------------

    async def status(self) -> FleetStatus:
        """Return the status of the fleet."""
        return await retry_until_available(lambda: self._coordinator.status())

    async def agents(self) -> list[LocatedAgent]:
        """Return all agents that handle messages, sorted by id, each with its host."""
        return list((await retry_until_available(lambda: self._coordinator.locate_all())).agents)

    async def waiting(self) -> dict[str, object]:
        """Return the pending work that the hosts report. `agents` lists at most 500 agents per host that have an unfinished durable turn,
        unconsumed inputs or dead letters.

        `more` is the number of further agents with pending work that `agents` does not list. `silent_hosts` lists hosts that did not
        answer within 2 s or that run an older release. `effects` lists the external effects on whose outcome agents are currently waiting,
        and `approvals` the open approvals.
        """
        agents = await waiting_agents(self._coordinator, self._hosts)
        waits = {
            "effects": await operator_commands.standing(self._coordinator, self._hosts),
            "approvals": await self.approvals(),
        }
        return document("WaitingAgents", **msgspec.to_builtins(agents), **msgspec.to_builtins(waits))

    async def snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> dict[str, object]:
        """Take a snapshot now, and return when it is complete. The result is the same document that `snapline snapshot create -o json`
        prints.

        Raises:
            SnapshotAbortedError: the snapshot's epoch was aborted, or no epoch can start now.
            UnknownOutcomeError: no answer arrived in time, so the snapshot may or may not have been taken. It is safe to repeat the call.
            CoordinatorUnavailableError: no coordinator answers. UsageError: this client's certificate has neither the role `operator` nor
                the role `admin`.
        """
        check_timeout(timeout_s)
        return snapshot_of(await retry_until_available(lambda: self._coordinator.create_snapshot(timeout_s)))

    async def restore(
        self,
        snapshot: str | int,
        *,
        drop_inputs: bool = False,
        accept_changes: bool = False,
        reason: str = "",
        timeout_s: float = SNAPSHOT_TIMEOUT_S,
    ) -> dict[str, object]:
        """Restore the fleet to a snapshot, given as an epoch number, a tag or "last". All work after that snapshot is undone permanently
        (docs/going-back.md).

        Return as soon as the recovery plan is committed. The result is the same document that `snapline recovery restore -o json` prints.
        If `drop_inputs` is set, discard inputs that no agent has consumed. If `accept_changes` is set, dependencies may have changed even if
        the fleet's `on_change` refuses that.

        Raises:
            NotFoundError, UsageError: the snapshot does not exist, cannot be restored, or this client has no permission.
            ExternalFailureError: the fleet cannot be restored now.
        """
        check_timeout(timeout_s)
        what = str(snapshot), secrets.token_hex(16), reason
        return document_of(
            await retry_until_available(
                lambda: self._coordinator.restore(*what, drop_inputs, timeout_s, accept_changes=accept_changes)
            )
        )

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = CALL_S_MAX) -> RecoveryLine:
        """Return the recovery line that would apply if the agents in `failed` failed now. The result is a mapping with the same content as
        the document that `snapline recovery line -o json` prints.

        On a fleet that uses certificates, the client needs the role `viewer`, `approver`, `operator` or `admin`.

        Args:
            failed: ids of the agents assumed to fail. The entry `host:h1` stands for all agents of host `h1`. If `failed` is empty, all
                agents fail.

        Raises:
            NotFoundError: an agent or host does not exist.
            UnknownOutcomeError: no answer arrived in time. CoordinatorUnavailableError: no coordinator answers, or the recovery line
                currently cannot be computed.
        """
        check_timeout(timeout_s)
        return RecoveryLine(
            await retry_until_available(lambda: self._coordinator.recovery_line(check_failed(failed), timeout_s))
        )

    # ---- one agent ------------------------------------------------------------------------------------------------

    async def state(
        self, agent: str, *, live: bool = False, field: str = "", timeout_s: float = TIMEOUT_S
    ) -> AgentState:
        """Return an agent's state in the newest complete snapshot, as plain values. The state is read by a host. On a fleet that uses
        certificates, any role with read access is sufficient.

        Args:
            live: whether to return the agent's current state instead, after waiting for the running turn to end. The current state may be
                undone by a recovery.
            field: path of a single value to return, such as `mind.notes[3].text`.

        Raises:
            AgentMissingError: the agent does not exist, has stopped, or is not part of the newest complete snapshot.
            NotFoundError: there is no snapshot yet, or the state has no such field.
            UsageError: the state is larger than 16 MiB as JSON, or this client has no permission.
            FleetEndedError: the fleet has ended, so no host can answer. UnknownOutcomeError: no host answered in time.
            DamagedDataError, StoreError: the host could not read the state from the store.
        """
        check_timeout(timeout_s)
        question = Question(check_id(agent), LIVE if live else STATE, field)
        reply = await ask_until_answered(lambda: self._coordinator, self._hosts, question, timeout_s)
        return msgspec.json.decode(reply, type=AgentState)

    async def describe(self, agent: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Describe an agent. The result is the same document that `snapline agent describe -o json` prints. Raises the errors of
        `state`."""
        check_timeout(timeout_s)
        reply = await ask_until_answered(
            lambda: self._coordinator, self._hosts, Question(check_id(agent), DESCRIPTION), timeout_s
        )
        return msgspec.json.decode(reply, type=dict[str, object])

    async def retry_dead_letters(
        self, agent: str, numbers: Numbers = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Retry dead letters of an agent: the agent handles each selected dead letter once more, in order. If `numbers` is None, select
        all current dead letters.

        Return when a complete snapshot contains the results. On a fleet that uses certificates, the client needs the role `operator` or
        `admin`.

        Raises:
            NotFoundError: the agent has no dead letter with a given number. AgentMissingError: the agent does not exist, or has stopped.
            InputUnknownError: at least one outcome did not arrive in time. It is safe to repeat the call, because a dead letter no longer
                exists once it has been retried or dropped.
            FleetEndedError: the fleet has ended. UsageError: this client has no permission.
        """
        return await self._settle(agent, RETRY, numbers, timeout_s)

    async def drop_dead_letters(
        self, agent: str, numbers: Numbers = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Discard dead letters of an agent without retrying them. In all other respects, this method works like `retry_dead_letters`.
        Discarded dead letters remain included in the agent's count of dead letters."""
        return await self._settle(agent, DROP, numbers, timeout_s)

    async def _settle(self, agent: str, verb: str, numbers: Numbers, limit_s: float) -> list[DeadLetterResult]:
        deadline_s = asyncio.get_running_loop().time() + limit_s
        commands = dead_letter_commands(agent, verb, await self.describe(agent, limit_s), numbers)
        return await CommandSender(lambda: self._coordinator, self._hosts, agent).settle(
            commands, deadline_s, self._asking.wait_for_answer_to
        )

    async def resolve_effect(
        self, agent: str, key: str, *, result: Any = None, not_done: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Resolve an effect whose outcome is in doubt and on which its agent waits (docs/effects.md). Each effect can be resolved only
        once. The client needs the same roles as for `retry_dead_letters`.

        `result` is the return value, as plain values, that the effect's function would have produced. `not_done` means that the effect was
        not executed. If `not_done` is set, the effect is called again once a complete snapshot contains the resolution.

        Raises:
            NotFoundError, UsageError: the agent is not waiting for the effect, the effect needs no resolution, or this client has no
                permission.
            AgentMissingError, FleetEndedError: the agent or the fleet no longer exists. InputUnknownError: the outcome did not arrive in
                time. It is safe to repeat the call.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        command = operator_commands.resolution_command_for(
            agent, key, await self.describe(agent, timeout_s), result=result, not_done=not_done
        )
        await self._send_command(command, key, deadline_s, is_early=True)

    async def approvals(self) -> list[OpenApproval]:
        """Return the approvals for which agents wait (`ctx.approval`), those first that have waited longest. Hosts that do not answer within
        2 s are skipped. The client needs a role that may inspect agents."""
        return await approval_commands.open_approvals(self._coordinator, self._hosts)

    async def answer_approval(
        self, agent: str, approval: str, *, is_granted: bool, note: str = "", timeout_s: float = TIMEOUT_S
    ) -> str:
        """Grant or deny an approval by its id. Return when no recovery can undo that.

        The client needs one of the roles `approver`, `operator` and `admin`. The agent learns the name in the client's certificate or
        token.

        Returns:
            "taken" if the agent's turn goes on with this answer. "kept" if a recovery has meanwhile taken the turn back to before its
            question: it takes the answer when it asks again.

        Raises:
            UsageError: nobody waits for the approval, another answer came first, it has expired, or this client has no permission.
            AgentMissingError, FleetEndedError: the agent or the fleet no longer exists. InputUnknownError: the outcome did not arrive in
                time. It is safe to repeat the call.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        sender = CommandSender(lambda: self._coordinator, self._hosts, check_id(agent), approval_commands.late)
        answer = ApprovalAnswer(approval, is_granted, note)
        return await approval_commands.answer(sender, agent, answer, deadline_s, self._asking.wait_for_answer_to)

    async def retry_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Retry a failed effect, a failed compensation, or an effect in doubt that waits for an operator.

        If an effect failed, the message of its turn became a dead letter, which the retry handles in a new turn. Return when the retry has
        ended. For an effect in doubt, return when the effect is certain to be called again. `key` is the effect's key as returned by
        `effects`. The key of a second generation ends in `#2`.

        Raises:
            UsageError: this client has no permission, or the effect cannot be retried for the reason that the error states. NotFoundError:
                the agent is waiting for a different effect.
            InputDeadLetteredError: the effect failed again, which created a new dead letter. This method also raises the errors of
                `resolve_effect`.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        command = operator_commands.retry_command_for(agent, key, await self.describe(agent, timeout_s))
        await self._send_command(command, key, deadline_s, is_early=not operator_commands.is_retry_or_undo(command))

    async def undo_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Undo an effect by running its compensation, even if the effect's turn ended successfully. The agent is not notified. If the agent
        requests the effect again later, the effect is executed again. Return when a complete snapshot contains the undo. If the effect is
        already undone, nothing happens. Raises the errors of `retry_effect`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self._send_command(operator_commands.effect_request_command(check_id(agent), UNDO, key), key, deadline_s)

    async def _send_command(self, word: GivenInput, key: str, deadline_s: float, *, is_early: bool = False) -> None:
        command_sender = CommandSender(lambda: self._coordinator, self._hosts, word.agent, operator_commands.late)
        await operator_commands.say(
            command_sender, word, key, deadline_s, partial(self._asking.wait_for_answer_to, is_early=is_early)
        )

    # ---- the core ---------------------------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        loop = asyncio.get_running_loop()
        try:
            commands = self._core.handle(round(loop.time() * 1e9), event)
        except Exception as error:  # This is a bug in snapline, but no caller may wait forever.
            fail_all([*[each.ending for each in self._sends.waiting.values()], *self._asking.endings], error)
            raise
        for command in commands:
            match command:
                case ev.FinishSend():
                    self._sends.finish(command)
                case ev.FinishAsk():
                    self._asking.finish(command)
                case ev.AskHost():
                    question = self._asking.question(command.ask)
                    self._start(self._hand_back(sends_and_asks.ask(self._hosts, command, question)))
                case ev.LookUpAgents():
                    self._start(self._hand_back(sends_and_asks.find(self._coordinator, command)))
                case ev.OfferInputs():
                    inputs = [self._sends.waiting[send].given for send in command.sends]
                    self._start(self._hand_back(sends_and_asks.offer(self._hosts, command, inputs)))
        if self._timer is not None:
            self._timer.cancel()
        wakeup_ns = self._core.wakeup_ns
        self._timer = None if wakeup_ns is None else loop.call_at(wakeup_ns / 1e9, self._feed, ev.TimerFired())

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_back(self, request: Awaitable[ev.Event]) -> None:
        self._feed(await request)

    def _renew(self) -> None:
        """Use the new certificates for new connections. Pending calls continue on the old connections."""
        self._hosts.renew()
        old_coordinator, self._coordinator = self._coordinator, CoordinatorClient(self._address, self._security)
        self._start(close_later(old_coordinator))


async def open_client(address: str, security: Security, name: str) -> Client:
    """Create a client, wait until the coordinator has answered, and return the client. Raises the errors of `Client.connect`."""
    return await started(Client(address, security, check_id(name, "client")))
