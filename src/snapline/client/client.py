"""`snapline.Client`: the API for programs outside a fleet to talk to its agents. The adapter of `core.py`.

It keeps the payloads and the programs that wait; the core decides what is asked of which host, and when.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold, with_standing
from snapline.agent_runtime.reading import Output, OutputsReverted
from snapline.client import connecting, effects, requests
from snapline.client import events as ev
from snapline.client.analysis import RecoveryLine
from snapline.client.asking import WaitingAsks
from snapline.client.connecting import Certificates, address_of, close_later, security_of, started
from snapline.client.core import ClientCore
from snapline.client.dead_letters import DeadLetterResult, Numbers, Settling, words_for
from snapline.client.endings import Receipt, Reply, ReplyReader, answer_error, snapshot_of
from snapline.client.giving import AgentInput, check_timeout, input_of
from snapline.client.hosts import HostCalls
from snapline.client.outputs import OutputsRequest, wanted_outputs
from snapline.client.sends import Sends
from snapline.client.views import see, waiting_agents
from snapline.client.waiting import fail_all
from snapline.errors import InputsError, SnaplineError
from snapline.ids import check_failed, check_id
from snapline.messages.answers import LocatedAgent
from snapline.messages.coordinator_client import SNAPSHOT_TIMEOUT_S, CoordinatorClient, patiently
from snapline.messages.coordinator_client import TIMEOUT_S as CALL_S_MAX
from snapline.messages.dead_letters import DROP, RETRY
from snapline.messages.documents import document, document_of
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.effect_words import UNDO
from snapline.messages.inputs import GivenInput
from snapline.messages.views import DESCRIPTION, LIVE, STATE, AgentState, Question
from snapline.security.transport import Security

TIMEOUT_S = 30.0
"""Default time for a send: a fleet that has lost a host is back in some seconds, one whose host has to start again in ten or so."""


class Client:
    """A connection to a fleet, for programs outside of it; made by `connect`. For one event loop; all methods may be called at the same time.

    An input that has a receipt takes effect exactly once (docs/clients.md). Inputs from one client to one agent are consumed in the order of
    the calls. Inputs are sent again, with the same key, until there is an answer or the time is over.
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
        """Connect to the fleet whose coordinator listens at `address`, or is that of the local fleet in `data_dir`.

        Args:
            address: HOST:PORT; of several replicas all, with commas between.
            tls: our certificate and the authority we trust; without it only connections to this machine are made.
            insecure: plaintext to other machines: only where no one else can reach them.
            name: sender of the inputs, for people; a certificate's name takes its place.

        Raises:
            UsageError: these contradict each other, or our certificate has no permission.
            CoordinatorUnavailableError: no coordinator answers there.
        """
        return await open_client(address_of(address, data_dir), security_of(tls, insecure=insecure), name)

    async def start(self) -> None:
        """Wait for the coordinator's first answer. For `connect`."""
        await patiently(lambda: self._coordinator.locate((), connecting.CONNECT_S_MAX))
        if self._security.is_tls:
            self._reloading = asyncio.create_task(connecting.keep_reloading(self._security, self._renew))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Sends under way end: as unknown, if they may have been taken. Waits for answers end too."""
        self._feed(ev.ClientClosed())
        tasks = [*self._tasks, *([self._reloading] if self._reloading is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._hosts.close()
        await self._coordinator.close()

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def send(self, agent: str, message: Any, key: str | None = None, timeout_s: float = TIMEOUT_S) -> Receipt:
        """Give an agent an input; returns when it is permanently in the fleet's log.

        Args:
            message: as agents send it, a snapline.Message or another struct or dataclass; or `(type, fields)`, its type's name and
                its JSON fields, which the host converts.
            key: of 1 to 128 characters. The same key again is the same input, so an unknown outcome can be repeated; without one a random
                key is generated, which the receipt and every error name.
            timeout_s: for everything. It is tried again until then.

        Raises:
            InputUnknownError: it may have been taken; `error.key` is the key to repeat it with.
            InputRejectedError: it was certainly not taken in time.
            InputRefusedError: it never will be: the agent has no handler for it, it is not as declared, or its key was used for another
                input.
            AgentMissingError: there is no such agent, or it has stopped.
            FleetEndedError: the fleet has ended.
            EncodingError, MessageTooLargeError, UsageError: it cannot be sent.
        """
        (outcome,) = await self._sends.outcomes([input_of(agent, message, key)], timeout_s)
        if isinstance(outcome, SnaplineError):
            raise outcome
        return outcome

    async def send_many(self, inputs: Iterable[AgentInput], timeout_s: float = TIMEOUT_S) -> list[Receipt]:
        """Give many inputs, each `(agent, message)` or `(agent, message, key)`; returns their receipts, in order.

        Inputs for one host travel together. To one agent they go in this order; one that is refused does not stop the others.

        Raises:
            InputsError: some have no receipt; `error.outcomes` has a receipt or an error for each. With keys of your own, giving all
                of them again is safe.
            EncodingError, MessageTooLargeError, UsageError: one cannot be sent; nothing was.
        """
        given = [input_of(each[0], each[1], each[2] if len(each) > 2 else None) for each in inputs]
        outcomes = await self._sends.outcomes(given, timeout_s)
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
        """Give an agent an input as `send` does, and wait for the answer of its turn (`ctx.reply`).

        The answer is final: it comes when a complete snapshot holds the turn, and the same key gives it again.

        Args:
            early: take the answer as soon as the turn has ended. A recovery may undo that turn; its input takes effect again, and
                the answer may be another one then.
            timeout_s: for everything.
            reply_type: class of the answer; without it the reply holds plain values.

        Raises:
            AnswerMissingError: the input was taken, and there was no answer in time, or it is no longer available; ask again with `error.key`.
            InputDeadLetteredError: it was taken, and became a dead letter.
            EncodingError: the answer is not of this type.
            InputUnknownError: and all others that `send` raises.
        """
        reader, given = ReplyReader(reply_type), input_of(agent, message, key)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        giving = asyncio.ensure_future(self._sends.outcomes([given], timeout_s))
        asking = asyncio.ensure_future(self._asking.hear(agent, given.key, deadline_s, is_early=early))
        try:
            (receipt,) = await giving
            if isinstance(receipt, SnaplineError):
                raise receipt
            said = await asking
            if said.ending == ev.FORGOTTEN:  # asked of a host before the input had come there
                said = await self._asking.hear_of(receipt, deadline_s, is_early=early)
        finally:
            giving.cancel()
            asking.cancel()
        if said.ending != ev.ANSWERED or said.outcome is None:
            raise answer_error(said, receipt)
        return Reply(agent, receipt.number, reader.read(said.outcome), early, given.key)

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
        """Yield the external outputs of agents (`ctx.emit`), in order, each once, when a complete snapshot holds it.

        Args:
            topic: only these; empty: all that agents have named themselves. `@effects` is the ledger of effects.
            after: the cursor of an output: what comes after it; empty: from the oldest that are kept.
            consumer: instead go on where this consumer has `acknowledge`d; unacknowledged outputs are kept for it, a week at most.
            message_type: class of the messages; without it they are plain values.
            follow: go on until the fleet ends; otherwise until all is read that is released now.
            timeout_s: how long the coordinator may be silent.

        Raises:
            NotFoundError: what comes after the cursor was deleted.
            UsageError: it is no cursor of this fleet, or this client has no permission. EncodingError: a message is not of this type.
            CoordinatorUnavailableError, UnknownOutcomeError, StoreError: nothing could be read for that long.
            DamagedDataError: a file is not what was written.
        """
        wanted = OutputsRequest(topic, after, consumer, message_type, follow, timeout_s)
        return wanted_outputs(lambda: self._coordinator, wanted)

    async def effects(self) -> list[Effect]:
        """Return the external effects of agents (`ctx.effect`), and their fates, as far as snapshots hold them. Raises as `outputs`.

        Hosts are asked for the state of unfinished ones, if this client may look at agents; those of a host that does not answer are "open".
        """
        standing = await effects.standing(self._coordinator, self._hosts)
        words = [x async for x in self.outputs(EFFECTS_TOPIC, message_type=EffectRecord, follow=False)]
        return with_standing(fold(words), standing)

    async def acknowledge(self, consumer: str, had: Output | OutputsReverted | str) -> None:
        """Record that a named consumer has had all up to this output, or cursor: `outputs` goes on after it. It never goes back."""
        cursor = had if isinstance(had, str) else had.cursor
        await patiently(lambda: self._coordinator.move_consumer(consumer, cursor))

    # ---- the fleet as a whole ---------------------------------------------------------------------------------------

    async def status(self) -> dict[str, object]:
        """Return the state of the fleet: the document that `snapline status -o json` prints."""
        return document_of(await patiently(lambda: self._coordinator.status()))

    async def agents(self) -> list[LocatedAgent]:
        """Return the agents that take turns, and where each of them lives, sorted."""
        return list((await patiently(lambda: self._coordinator.locate_all())).agents)

    async def waiting(self) -> dict[str, object]:
        """Return waiting work, as hosts see it: `agents` with an unfinished durable turn, inputs or dead letters, at most 500 of each host.

        `more`: agents that are left out; `silent_hosts`: those without an answer in 2 s, as of an older release; `effects`: those agents wait at.
        """
        found = await waiting_agents(self._coordinator, self._hosts)
        standing = await effects.standing(self._coordinator, self._hosts)
        return document("WaitingAgents", **msgspec.to_builtins(found), effects=msgspec.to_builtins(standing))

    async def snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> dict[str, object]:
        """Take a snapshot now; returns when it is complete: the document that `snapline snapshot create -o json` prints.

        Raises:
            SnapshotAbortedError: its epoch was aborted, or none can begin; the reason says why.
            UnknownOutcomeError: no answer in time: there may be one now, or later. Asking again is harmless: it is one more.
            CoordinatorUnavailableError: no coordinator answers. UsageError: this certificate has neither role `operator` nor `admin`.
        """
        check_timeout(timeout_s)
        return snapshot_of(await patiently(lambda: self._coordinator.create_snapshot(timeout_s)))

    async def restore(
        self, snapshot: str | int, *, drop_inputs: bool = False, reason: str = "", timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> dict[str, object]:
        """Take the fleet back to a snapshot (an epoch, a tag, "last") permanently: what happened since is undone (docs/going-back.md).

        Returns when its plan is committed, what `snapline recovery restore -o json` prints. `drop_inputs`: drop those that it has not consumed.

        Raises:
            NotFoundError, UsageError: no such snapshot, the fleet cannot go back to it, or no permission. ExternalFailureError: not now.
        """
        check_timeout(timeout_s)
        what = str(snapshot), secrets.token_hex(16), reason
        return document_of(await patiently(lambda: self._coordinator.restore(*what, drop_inputs, timeout_s)))

    async def recovery_line(self, failed: Iterable[str] = (), timeout_s: float = CALL_S_MAX) -> RecoveryLine:
        """Return where the fleet would go back to if these failed now: a mapping, the document that `snapline recovery line -o json` prints.

        With certificates it requires the role `viewer`, `operator` or `admin`.

        Args:
            failed: agents; `host:h1` means all of its agents. None of them: all fail.

        Raises:
            NotFoundError: no such agent or host.
            UnknownOutcomeError: no answer in time. CoordinatorUnavailableError: none answers, or it cannot say just now.
        """
        check_timeout(timeout_s)
        return RecoveryLine(await patiently(lambda: self._coordinator.recovery_line(check_failed(failed), timeout_s)))

    # ---- one agent ------------------------------------------------------------------------------------------------

    async def state(
        self, agent: str, *, live: bool = False, field: str = "", timeout_s: float = TIMEOUT_S
    ) -> AgentState:
        """Return the state of an agent in the newest complete snapshot, as plain values, from a host; for any role that may read.

        Args:
            live: instead as it is now, between two turns. It waits for the end of the present one. A recovery may undo it.
            field: only the value at this path, such as `mind.notes[3].text`.

        Raises:
            AgentMissingError: there is no such agent, it has stopped, or is not in that snapshot.
            NotFoundError: there is no snapshot yet, or no such field.
            UsageError: it takes more than 16 MiB of JSON, or this client has no permission.
            FleetEndedError: no host is left to answer. UnknownOutcomeError: no host answered in time; asking changes nothing.
            DamagedDataError, StoreError: what the host has found.
        """
        check_timeout(timeout_s)
        question = Question(check_id(agent), LIVE if live else STATE, field)
        told = await see(lambda: self._coordinator, self._hosts, question, timeout_s)
        return msgspec.json.decode(told, type=AgentState)

    async def describe(self, agent: str, timeout_s: float = TIMEOUT_S) -> dict[str, object]:
        """Describe an agent: the document that `snapline agent describe -o json` prints. Raises what `state` does."""
        check_timeout(timeout_s)
        told = await see(lambda: self._coordinator, self._hosts, Question(check_id(agent), DESCRIPTION), timeout_s)
        return msgspec.json.decode(told, type=dict[str, object])

    async def retry_dead_letters(
        self, agent: str, numbers: Numbers = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Give dead letters of an agent another turn, once each and in order; None: all current ones.

        Returns when a complete snapshot holds that. With certificates it requires the role `operator` or `admin`.

        Raises:
            NotFoundError: a number is none of its dead letters. AgentMissingError: there is no such agent, or it has stopped.
            InputUnknownError: not all is known in time; repeating it is harmless: settled ones are gone.
            FleetEndedError: the fleet has ended. UsageError: this client has no permission.
        """
        return await self._settle(agent, RETRY, numbers, timeout_s)

    async def drop_dead_letters(
        self, agent: str, numbers: Numbers = None, timeout_s: float = TIMEOUT_S
    ) -> list[DeadLetterResult]:
        """Drop dead letters of an agent. They stay counted. Otherwise as `retry_dead_letters`."""
        return await self._settle(agent, DROP, numbers, timeout_s)

    async def _settle(self, agent: str, verb: str, numbers: Numbers, limit_s: float) -> list[DeadLetterResult]:
        deadline_s = asyncio.get_running_loop().time() + limit_s
        words = words_for(agent, verb, await self.describe(agent, limit_s), numbers)
        return await Settling(lambda: self._coordinator, self._hosts, agent).settle(
            words, deadline_s, self._asking.hear_of
        )

    async def resolve_effect(
        self, agent: str, key: str, *, result: Any = None, not_done: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Resolve an effect in doubt at which its agent waits for an operator (docs/effects.md); once. Roles as above.

        `result`: what its function would have returned, as plain values. `not_done`: it was not; it is called when a complete snapshot holds that.

        Raises:
            NotFoundError, UsageError: the agent does not wait at it, it needs no operator, or this client has no permission.
            AgentMissingError, FleetEndedError: no agent accepts it. InputUnknownError: not known in time; repeating it is harmless.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        word = effects.word_for(agent, key, await self.describe(agent, timeout_s), result=result, not_done=not_done)
        await self._say(word, key, deadline_s, is_early=True)

    async def retry_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Retry a failed effect, by a further turn of the dead letter that its turn has become; a failed compensation; or an effect in
        doubt that waits for an operator. Returns when that is over, for the last when its call is certain.
        `key`: as `effects` names it, with `#2` of a second generation.

        Raises:
            UsageError: that makes no sense, as the sentence says, or this client has no permission. NotFoundError: the agent waits at another one.
            InputDeadLetteredError: it failed again, and is a new dead letter. Others as `resolve_effect`.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        word = effects.retry_for(agent, key, await self.describe(agent, timeout_s))
        await self._say(word, key, deadline_s, is_early=not effects.is_wish(word))

    async def undo_effect(self, agent: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        """Undo an effect by its compensation, even after its turn ended well: the agent is not notified. Requested again, it reruns. Returns when a
        complete snapshot holds that; one that was undone already stays so. Raises as `retry_effect`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self._say(effects.request_for(check_id(agent), UNDO, key), key, deadline_s)

    async def _say(self, word: GivenInput, key: str, deadline_s: float, *, is_early: bool = False) -> None:
        settling = Settling(lambda: self._coordinator, self._hosts, word.agent, effects.late)
        await effects.say(settling, word, key, deadline_s, partial(self._asking.hear_of, is_early=is_early))

    # ---- the core ---------------------------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        loop = asyncio.get_running_loop()
        try:
            commands = self._core.handle(round(loop.time() * 1e9), event)
        except Exception as error:  # one of ours: nobody may wait for ever because of it
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
                    self._start(self._hand_back(requests.ask(self._hosts, command, question)))
                case ev.FindAgents():
                    self._start(self._hand_back(requests.find(self._coordinator, command)))
                case ev.OfferInputs():
                    given = [self._sends.waiting[send].given for send in command.sends]
                    self._start(self._hand_back(requests.offer(self._hosts, command, given)))
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
        """Present other certificates on new connections; calls under way go on over the old ones."""
        self._hosts.renew()
        older, self._coordinator = self._coordinator, CoordinatorClient(self._address, self._security)
        self._start(close_later(older))


async def open_client(address: str, security: Security, name: str) -> Client:
    """Return a client that the coordinator has answered once; raises what `Client.connect` raises."""
    return await started(Client(address, security, check_id(name, "client")))
