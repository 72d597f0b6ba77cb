"""The `Agents` service on a host's port shows agents to users and their programs.

Each host can read any agent's state in the newest snapshot from the store, even if the agent's host has failed. Only the agent's host knows
the agent's current state. The core of that host reports when the agent is between two turns, and the state is then encoded immediately. An
agent's state is converted to JSON in a thread. Only the agent's description is built on the event loop.

Bounds. At most `SHOWS_MAX` calls run at the same time, and a reply document has at most 16 MiB. The service sends the core only one request
for an agent's current state, however many clients wait. If a client disconnects, the request stays open and serves the next client.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.agent_runtime.host.failures import last_line
from snapline.agent_runtime.host.host_events import AgentView, AnswerOpenWaits, AnswerView, AnswerWaiting, TurnView
from snapline.errors import AgentMissingError, NotFoundError, ProtocolError, SnaplineError, UsageError
from snapline.ids import check_id
from snapline.messages.answers import Rows, document
from snapline.messages.client_requests import (
    APPROVALS,
    DESCRIPTION,
    EFFECTS,
    LIVE,
    TRACE,
    VIEW_BYTES_MAX,
    WAITING,
    AgentState,
    NotHereError,
    RecentTrace,
    TraceWanted,
    WaitingAgent,
    WaitingAgents,
)
from snapline.messages.client_wire import SHOW, decode_question, retry_message, trace_wanted, view_messages
from snapline.messages.payloads import describe_payload
from snapline.security.rpc_authorization import ERROR_KEY, Context
from snapline.storage.capture.saved_value_formats import find_field, json_of, too_large
from snapline.storage.capture.saved_values import read_record, read_state
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, OpenEffect
from snapline.storage.packs.manifest import AgentLine, Manifest
from snapline.storage.store.store import Store

LATEST = "latest"


def bounded(state: AgentState) -> bytes:
    """Encode a document about an agent's state as JSON.

    Raises:
        UsageError: If the JSON exceeds the maximum size of a document.
    """
    text = msgspec.json.encode(state)
    if len(text) > VIEW_BYTES_MAX:
        raise too_large(len(text), VIEW_BYTES_MAX)
    return text


def saved_state(open_store: Callable[[], Store], agent: str, field: str) -> bytes:
    """Return an agent's state in the newest snapshot, or one field of that state, as a JSON document.

    Raises:
        NotFoundError: If there is no snapshot, the snapshot does not contain the agent, or the state does not contain the field.
        UsageError: If the state is too large, or the path does not name a field.
        StoreError: If the store is unreadable or damaged.
    """
    store = open_store()
    manifest, line = _newest(store, agent)
    metadata = manifest.metadata
    if line is None:
        raise AgentMissingError(
            f"agent {agent!r} is not in epoch {metadata.epoch}, the newest snapshot: it was created since, or has stopped"
        )
    checkpoint = store.read_checkpoint(manifest, agent)
    tree = read_state(checkpoint, store.part_reader(manifest).read)
    if field:
        tree = find_field(tree, field)
    state = msgspec.Raw(json_of(tree, VIEW_BYTES_MAX))
    return bounded(
        AgentState(
            agent=agent,
            kind=checkpoint.kind,
            host=line.host,
            incarnation=checkpoint.incarnation,
            epoch=metadata.epoch,
            time=metadata.created,
            is_live=False,
            is_unborn=checkpoint.is_unborn,
            field=field,
            state=state,
        )
    )


def newest_in(open_store: Callable[[], Store], agent: str) -> Rows | None:
    """Describe the agent's checkpoint in the newest snapshot. Return None if there is no such checkpoint. If the store is unreadable,
    return a description of the problem instead of raising an error."""
    try:
        store = open_store()
        manifest, line = _newest(store, agent)
        saved = None if line is None else store.read_checkpoint(manifest, agent)
    except NotFoundError:
        return None
    except (SnaplineError, OSError) as error:
        return {"problem": str(error)}
    return None if saved is None else _saved(manifest, saved)


def _newest(store: Store, agent: str) -> tuple[Manifest, AgentLine | None]:
    epoch = store.resolve(LATEST)
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    return manifest, next((line for line in manifest.agents if line.agent == agent), None)


def _saved(manifest: Manifest, checkpoint: AgentCheckpoint) -> Rows:
    metadata = manifest.metadata
    return {"epoch": metadata.epoch, "time": metadata.created, "checkpoint": checkpoint.number}


def description(view: AgentView, kind: str, host: str, newest: Rows | None) -> Rows:
    """Return a document that describes an agent, with times in seconds."""
    turn = {"what": view.turn, "sender": view.sender} if view.turn else None
    return document(
        "AgentDescription",
        agent=view.agent,
        agent_kind=kind,
        host=host,
        incarnation=view.incarnation,
        life=view.life,
        turn=turn,
        durable_turn=None if view.durable is None else _durable(view.durable),
        attempts=view.attempts,
        retry_s=None if view.retry_ns is None else view.retry_ns / 1e9,
        messages_waiting=view.messages,
        inputs_waiting=view.inputs,
        inputs_consumed=view.inputs_consumed,
        keys=view.keys,
        outbox=view.outbox,
        spawns=list(view.spawns),
        timers=[{"name": name, "remaining_s": remaining_ns / 1e9} for name, remaining_ns in view.timers],
        checkpoint=view.checkpoint,
        snapshot=newest,
        dead_letter_count=view.dead_letter_count,
        dead_letters=[
            {
                "number": number,
                "sender": dead_letter.sender,
                "message": describe_payload(dead_letter.payload),
                "error": last_line(dead_letter.error),
                "attempts": dead_letter.attempts,
                "identity": identity_of(dead_letter).hex(),
            }
            for number, dead_letter in zip(view.dead_letter_numbers, view.dead_letters, strict=True)
        ],
    )


def _durable(turn: TurnView) -> Rows:
    """Describe an unfinished durable turn, and the newest entries of its journal."""
    first = turn.entries - len(turn.newest) + 1
    return {
        "what": turn.what,
        "sender": turn.sender,
        "message": describe_payload(turn.payload),
        "waits_for": None if turn.waits is None else _asked(turn.waits),
        "waits_s": None if turn.waits is None else turn.waits_ns / 1e9,
        "problem": turn.problem,
        "put_off": turn.put_off,
        "effect": None if turn.effect is None else _effect(turn.effect, turn.effect_stands),
        "entries": turn.entries,
        "journal": [
            {"number": number, "asked": _asked(entry), "outcome": entry.outcome}
            for number, entry in enumerate(turn.newest, first)
        ],
    }


def waiting_agent(view: AgentView, host: str) -> WaitingAgent:
    """Convert a view to a document about the agent's waiting work."""
    document = WaitingAgent(view.agent, host, inputs=view.inputs, dead_letters=view.dead_letter_count)
    turn = view.durable
    if turn is None:
        return document
    waits_for = "" if turn.waits is None else _asked(turn.waits)
    if turn.effect is not None:
        waits_for = f"effect {turn.effect.name}, key {turn.effect.key}: {turn.effect_stands}"
    return msgspec.structs.replace(
        document,
        turn=turn.what,
        sender=turn.sender,
        steps=turn.entries,
        waits_for=waits_for,
        waits_s=turn.waits_ns / 1e9,
        problem=turn.problem,
        put_off=turn.put_off,
    )


def _effect(opened: OpenEffect, state: str) -> Rows:
    """Describe the effect that a turn waits for. `number` in the result distinguishes a call with an unknown outcome from later calls."""
    return {
        "key": opened.key,
        "generation": opened.generation,
        "number": opened.number,
        "name": opened.name,
        "arguments": opened.arguments,
        "stands": state,
    }


def _asked(entry: JournalEntry) -> str:
    return f"{entry.kind} {entry.name}".rstrip()


SHOWS_MAX = 8
"""Largest number of concurrent calls, since each call may keep a state of some 64 MiB and its JSON in memory."""

ANSWER_S_MAX = 60.0
"""Longest wait for the end of a turn. Clients that still wait then ask again."""


class ViewSource(Protocol):
    """Interface that `ViewService` requires from its host."""

    def view(self, agent: str, then: Callable[[AnswerView], None], *, is_settled: bool) -> None:
        """Ask the core for a view of an agent. The callback `then` receives the view before the agent starts another turn, or is never
        called if the host ends first."""

    def open_waits(self, then: Callable[[AnswerOpenWaits], None]) -> None:
        """Ask the core for the effects and approvals that agents wait for. The callback `then` receives the core's answer."""

    def waiting(self, then: Callable[[AnswerWaiting], None]) -> None:
        """Ask the core for the agents with waiting work. The callback `then` receives the core's answer."""

    def recent_trace(self, wanted: TraceWanted) -> Callable[[], RecentTrace]:
        """Keep recording the trace for viewers for some more seconds. Return a function that builds a reply with the trace of the last
        seconds. Any thread may call the returned function."""

    def look_at(self, agent: str) -> bytes:
        """Return the agent's current state, encoded as one record."""

    def type_of(self, agent: str) -> AgentType | None:
        """Return the description of the agent's class, or None if the agent is not on this host."""

    def open_store(self) -> Store:
        """Return the store for reading in a thread. Raise SnaplineError or OSError if the store cannot be opened."""


class _Live(msgspec.Struct, frozen=True):
    """The view and the state of an agent between two turns. `record` is None if the agent is unborn."""

    view: AgentView
    kind: str
    record: bytes | None


class ViewService:
    """Handles view requests on one host, all on the host's event loop."""

    def __init__(self, agents: ViewSource, *, host: str) -> None:
        self._agents = agents
        self._host = host
        self._calls = 0
        self._open: dict[str, asyncio.Future[_Live]] = {}
        """Open requests for the current states of agents, which are read as soon as the agents are between two turns."""

    def handlers(self) -> Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]:
        """Return the handlers of the service's calls."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._show, bytes)
        return {SHOW: handler}

    async def _show(self, request: bytes, context: Context) -> None:
        if self._calls >= SHOWS_MAX:
            reason = f"{SHOWS_MAX} others look at agents of host {self._host}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._calls += 1
        try:
            for message in view_messages(await self._answer(request)):
                await context.write(message)
        except NotHereError as error:
            await context.write(retry_message(str(error)))
        except (SnaplineError, OSError) as error:
            await _tell(error, context)
        finally:
            self._calls -= 1

    async def _answer(self, request: bytes) -> bytes:
        question = decode_question(request)
        if question.what == EFFECTS:
            return msgspec.json.encode((await self._open_waits()).effects)
        if question.what == APPROVALS:
            return msgspec.json.encode((await self._open_waits()).approvals)
        if question.what == WAITING:
            return msgspec.json.encode(await self._waiting())
        if question.what == TRACE:
            answer = self._agents.recent_trace(trace_wanted(question))
            return await asyncio.to_thread(lambda: msgspec.json.encode(answer()))
        agent = check_id(question.agent)
        if question.what == LIVE:
            live = await self._live(agent)
            return await asyncio.to_thread(self._live_document, live, question.field)
        if question.what == DESCRIPTION:
            view = await self._view(agent)
            known = self._agents.type_of(agent)
            kind = view.kind or (known.kind if known is not None else "")
            newest = await asyncio.to_thread(newest_in, self._agents.open_store, agent)
            return msgspec.json.encode(description(view, kind, self._host, newest))
        return await asyncio.to_thread(saved_state, self._agents.open_store, agent, question.field)

    # ---- now --------------------------------------------------------------------------------------------------------

    async def _view(self, agent: str) -> AgentView:
        reply: asyncio.Future[AnswerView] = asyncio.get_running_loop().create_future()
        self._agents.view(agent, reply.set_result, is_settled=False)
        answer = await reply
        if answer.view is None:
            raise NotHereError(answer.reason)
        return answer.view

    async def _open_waits(self) -> AnswerOpenWaits:
        reply: asyncio.Future[AnswerOpenWaits] = asyncio.get_running_loop().create_future()
        self._agents.open_waits(reply.set_result)
        return await reply

    async def _waiting(self) -> WaitingAgents:
        reply: asyncio.Future[AnswerWaiting] = asyncio.get_running_loop().create_future()
        self._agents.waiting(reply.set_result)
        answer = await reply
        return WaitingAgents(tuple([waiting_agent(view, self._host) for view in answer.agents]), answer.more)

    async def _live(self, agent: str) -> _Live:
        waiting = self._open.get(agent) or self._look(agent)
        await asyncio.wait({waiting}, timeout=ANSWER_S_MAX)  # if this call is cancelled, others may still wait
        if not waiting.done():
            raise NotHereError(f"agent {agent} has been in one turn for {ANSWER_S_MAX:g} s")
        return waiting.result()

    def _look(self, agent: str) -> "asyncio.Future[_Live]":
        waiting: asyncio.Future[_Live] = asyncio.get_running_loop().create_future()
        self._open[agent] = waiting

        def then(answer: AnswerView) -> None:
            del self._open[agent]
            try:
                waiting.set_result(self._settled(answer))
            except (SnaplineError, NotHereError) as error:
                waiting.set_exception(error)
                waiting.exception()  # all waiters may have disconnected

        self._agents.view(agent, then, is_settled=True)
        return waiting

    def _settled(self, answer: AnswerView) -> _Live:
        """Encode the agent's state immediately, before the agent starts another turn."""
        view = answer.view
        if view is None:
            raise NotHereError(answer.reason)
        known = self._agents.type_of(view.agent)
        if known is None:
            return _Live(view, view.kind, None)
        return _Live(view, known.kind, self._agents.look_at(view.agent))

    def _live_document(self, live: _Live, field: str) -> bytes:
        """Build the document about an agent's current state. This method runs in a thread."""
        record = live.record
        tree = None if record is None else read_record(record)
        state = AgentState(
            agent=live.view.agent,
            kind=live.kind,
            host=self._host,
            incarnation=live.view.incarnation,
            epoch=None,
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            is_live=True,
            is_unborn=record is None,
            field=field,
            state=msgspec.Raw(json_of(find_field(tree, field) if field else tree, VIEW_BYTES_MAX)),
        )
        return bounded(state)


async def _tell(error: Exception, context: Context) -> None:
    """Abort the call and send the type of the error, so that the client can raise the same error."""
    match error:
        case NotFoundError():
            code = grpc.StatusCode.NOT_FOUND
        case UsageError() | ProtocolError():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case _:
            code = grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, SnaplineError):
        context.set_trailing_metadata(((ERROR_KEY, type(error).__name__),))
    await context.abort(code, str(error))
