"""`Member`: includes a plain gRPC service and its calls in the cuts and recoveries of a fleet.

    member = Member(service, agent="a", fleet=fleet, coordinator="127.0.0.1:7700", store="/shared/store")
    server = grpc.aio.server(interceptors=[member.interceptor])
    stub = GreeterStub(member.channel("127.0.0.1:50052"))
    code = await member.run()

The member contains a host of the fleet (`EmbeddedHost`), and the ledger of the service's calls (`ledger.py`). The host runs in the
service's event loop and calls the member through `HostCallbacks`. The member decides when the service's state is captured for a cut, and
rejects work that belongs to an older history. All code runs in one event loop, so the work between two `await` expressions is one atomic
piece.

A host normally records an epoch as soon as it learns of the epoch. If the service is not ready at that moment, the host refuses the epoch.
To avoid refusals, the member delays the coordinator's message and the handling of stamped calls until the service is ready. Frames from
other hosts that announce the epoch are held until the service is ready (`HeldFrames`), as if they were still in transit. Frames are not
held for so long that the failure detector would suspect the link. The frames of each link are delivered in order.
"""

import asyncio
import contextvars
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import LOST_ANSWER, RUN, CallAnswer, CallLedger, CallStamp, ServiceCall, judge
from snapline.adapters.grpc.member_channel import MemberChannel, MemberInterceptor
from snapline.adapters.grpc.service_agent import CutService, FencedCall, ServiceAgent, ServiceState
from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.process import Host, HostOptions
from snapline.agent_runtime.message_encoding import encode_message
from snapline.channels.frame import Frame, Items, LinkHello, Marker, decode_control
from snapline.errors import SnaplineError, UsageError
from snapline.ids import check_receiver
from snapline.messages.host_messages import BeginEpoch, Directive, HostMessage, Plan, PlanApplied
from snapline.protocols.names import LOCAL
from snapline.security.transport import Security
from snapline.storage.capture.image import StateImage

HELD_S = 1.0
"""Longest time in seconds for which a frame is held before it is delivered in any case. The failure detector suspects a link after 2 s
without frames."""

READY_CHECK_PERIOD_S = 0.005
"""Time in seconds between two checks whether a service is ready for a cut. Held frames, and work that waits for the cut, are delayed by at
most this time longer than necessary."""


class HeldFrames:
    """Holds frames until the service is ready (see the module docstring).

    `receive` passes a frame to the host. `begun` returns the newest epoch that the host has begun. `may` returns whether the service may
    now record a newer epoch.
    """

    def __init__(
        self, receive: Callable[[str, Frame], None], begun: Callable[[], int], may: Callable[[], bool]
    ) -> None:
        self._receive, self._begun, self._may = receive, begun, may
        self._held: dict[str, deque[tuple[int, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, peer: str, frame: Frame) -> None:
        """Pass a frame to the host, or hold it if it announces an epoch that the service is not ready to record. Raise ProtocolError if the
        frame contains an invalid control item."""
        held, newest = self._held.get(peer), newest_epoch(frame)
        if held is not None:
            held.append((newest, frame))
        elif newest <= self._begun() or self._may():
            self._receive(peer, frame)
        else:
            held = self._held[peer] = deque([(newest, frame)])
            task = asyncio.get_running_loop().create_task(self._release(peer, held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _release(self, peer: str, held: "deque[tuple[int, Frame]]") -> None:
        until_s = time.monotonic() + HELD_S
        while held and self._held.get(peer) is held:
            newest, frame = held[0]
            if newest > self._begun() and time.monotonic() < until_s and not self._may():
                await asyncio.sleep(READY_CHECK_PERIOD_S)
            else:
                held.popleft()
                self._receive(peer, frame)
        if self._held.get(peer) is held:
            del self._held[peer]

    def drop(self, peer: str) -> None:
        """Drop the held frames of a closed connection. The link later resends unacknowledged items."""
        self._held.pop(peer, None)

    def drop_all(self) -> None:
        """Drop all held frames, because every link is closed when its plan ends."""
        self._held.clear()


def newest_epoch(frame: Frame) -> int:
    """Return the newest epoch that a frame announces, or 0 if it announces none."""
    match frame.body:
        case LinkHello(floor=floor):
            return floor
        case Items(channel=channels, payload=payloads, epoch=epochs):
            controls = [
                decode_control(payload) for channel, payload in zip(channels, payloads, strict=True) if not channel
            ]
            return max([0, *epochs, *(control.epoch for control in controls if isinstance(control, Marker))])
    return 0


class HostCallbacks(Protocol):
    """Interface that the host requires from the member.

    The host calls the methods of this interface while it handles an event, so they must not pass events to the host.
    """

    def going_back(self) -> None:
        """End all work of the service's current history immediately, because a recovery plan has begun."""

    def when_work_ended(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as no work of an older history is running."""

    def on_rolled_back(self, made: object | None) -> None:
        """Restore the service from its agent's state, because the recovery line of the plan has been loaded. The service must handle no
        other event before this call.

        `made` is the agent object, or None if the agent was placed on a different host.
        """

    def begin_later(self, epoch: int) -> bool:
        """Return whether this epoch must begin later, because the service is not ready. If the result is True, the member begins the epoch
        when the service becomes ready."""

    def may_record(self) -> bool:
        """Return whether an epoch may be recorded now: the service is either ready or not running under a plan."""

    def before_capture(self, made: object) -> None:
        """Prepare the agent's state for capture. Raise SnaplineError if the state cannot be captured now. In that case, the host refuses
        the epoch."""

    def cut(self, epoch: int) -> None:
        """Notify the member that the agent's state was captured for this epoch."""


class EmbeddedHost(Host):
    """A fleet host that runs inside a member's process (see the module docstring)."""

    def __init__(self, options: HostOptions, agent: str, inside: HostCallbacks) -> None:
        self._agent, self._inside = agent, inside
        super().__init__(options)
        self._frames = HeldFrames(self._driver.received, self._begun, inside.may_record)
        self.received, self.opened, self.closed = self._frames.received, self._opened, self._closed
        self._session.received = self._directive_received

    @property
    def core(self) -> HostCore:
        """Return the core of the host, which must not be modified."""
        return self._driver.core

    def begin(self, epoch: int) -> None:
        """Begin an epoch that a call's stamp has announced. When the coordinator's message about that epoch arrives later, it has no
        effect."""
        self._feed(BeginEpoch(epoch, self._driver.core.shared.plan))

    def _begun(self) -> int:
        return self._driver.core.shared.begun_epoch

    def _opened(self, peer: str, attempt: int) -> bool:
        self._frames.drop(peer)
        return self._driver.opened(peer, attempt)

    def _closed(self, peer: str, error: str | None) -> None:
        self._frames.drop(peer)
        self._driver.closed(peer, error)

    def tell(self, sends: ev.ExternalSends) -> None:
        """Send messages to other agents without waiting for a turn to end."""
        self._feed(sends)

    def _feed(self, event: ev.Heard) -> None:
        """Pass an event to the host. Turns and other work caused by the event do not count as part of the handler that passed the event."""
        token = RUN.set(None)
        try:
            self._driver.feed(event)
        finally:
            RUN.reset(token)

    def _directive_received(self, directive: Directive) -> None:
        if isinstance(directive, BeginEpoch) and self._inside.begin_later(directive.epoch):
            return
        plan = self._driver.core.shared.plan
        if isinstance(directive, Plan) and directive.number > plan:
            self._inside.going_back()
            self._frames.drop_all()
        self._driver.directive_received(directive)

    def in_worker(self, function: Callable[..., object], *arguments: object, then: Callable[..., None]) -> None:
        """Run a function in a worker thread.

        The function starts only when all work of the older history has ended. So a recovery line is loaded, and its plan is confirmed, only
        after all older work has ended.
        """
        submit = super().in_worker
        self._inside.when_work_ended(lambda: submit(function, *arguments, then=then))

    def send(self, message: HostMessage) -> None:
        if isinstance(message, PlanApplied):
            turns = self._driver.turns
            self._inside.on_rolled_back(turns.object_of(self._agent) if turns.has(self._agent) else None)
        super().send(message)

    def capturing(self, agent: str) -> None:
        super().capturing(agent)
        if agent == self._agent:
            self._inside.before_capture(self._driver.turns.object_of(agent))

    def captured(self, command: ev.CaptureState | ev.TakeCheckpoint, known: AgentType, image: StateImage) -> None:
        super().captured(command, known, image)
        if command.agent == self._agent and isinstance(command, ev.CaptureState):
            for epoch in command.epochs:
                self._inside.cut(epoch)


log = logging.getLogger("snapline.grpc")


class NotReadyError(SnaplineError):
    """The service is not ready for a cut, or its state cannot be captured. The host refuses the epoch, and the service takes part in a
    later epoch."""


class Member:
    """Includes a gRPC service as a member of a fleet.

    Attributes:
        ledger: ledger of the service's calls, which must not be modified.
        plan: plan under which the service runs. The value is 0 during a rollback and before the fleet has started.
        reenter: asynchronous function to await before an answer that no caller awaits is removed from the ledger (`MemberThreads.passed`).
            None if nothing needs to be awaited.
        interceptor: interceptor for `grpc.aio.server(interceptors=[…])`. Put the interceptor before all other interceptors that change
            state.
    """

    def __init__(
        self,
        service: CutService,
        *,
        agent: str,
        fleet: Fleet,
        coordinator: str,
        store: str,
        host: str = "",
        listen: str = "127.0.0.1:0",
        advertise: str = "",
        security: Security | None = None,
        front: CutService | None = None,
    ) -> None:
        """Create a member. The constructor opens no connections or files.

        Args:
            service: the service, which must implement `CutService`. If the service has a method `answered(call, answer)`, it receives the
                answers that no caller awaits. Such answers belong to calls made with `send` and to calls repeated after a recovery. The
                method runs in the atomic piece of work that removes the answer from the ledger.
            agent: id of a `ServiceAgent` of the fleet, which must be placed on the host of this process.
            fleet: definition of the fleet, which must be identical in all processes.
            coordinator, store, listen, advertise: as for the command `snapline host run`. `listen` is the address of the host, not of the
                service.
            host: name of the host. Defaults to the agent's id.
            front: object that the member calls in place of the service (`QuiescentService`, for services with threads).

        Raises:
            UsageError: the fleet has no agent with this id, or has `recovery="local"`.
        """
        if fleet.recovery == LOCAL:
            raise UsageError(
                f'fleet {fleet.name!r} has recovery="local", in which services cannot take part, because their answers do not wait for '
                'commits: write recovery="global"'
            )
        if not isinstance(fleet.agents.get(agent), ServiceAgent):
            raise UsageError(
                f"agent {agent!r} of fleet {fleet.name!r} is no ServiceAgent: write Fleet(agents={{{agent!r}: ServiceAgent()}}, …)"
            )
        self.agent = agent
        self.plan = 0
        self.reenter: Callable[[], Awaitable[None]] | None = None
        self.ledger = CallLedger(agent)
        self.interceptor = MemberInterceptor(self)
        self._service, self._front = service, front or service
        self._initial = service.capture()
        self._moved = asyncio.Event()  # set when the plan changes next
        self._channels: dict[str, MemberChannel] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._calls: set[FencedCall] = set()
        self._unrouted: dict[str, list[ServiceCall]] = {}
        self._waiters: dict[str, asyncio.Future[None]] = {}
        options = HostOptions(
            host=host or agent,
            instance=secrets.token_hex(8),
            fleet=fleet,
            coordinator=coordinator,
            store=store,
            listen=listen,
            advertise=advertise,
            security=security or Security.loopback(),
        )
        self._host = EmbeddedHost(options, agent, self)
        self._shared = self._host.core.shared
        self._local: LocalAgent | None = None

    async def run(self) -> int:
        """Run as a member of the fleet until the fleet ends, SIGTERM arrives, or another process replaces this process. Return the
        process's exit code.

        Raises:
            UsageError: the fleet permanently rejects this process, or the port is in use.
        """
        try:
            return await self._host.run()
        finally:
            self.going_back()

    # ---- for the service ----------------------------------------------------------------------------------------------

    def channel(
        self, target: str, channel: grpc.aio.Channel | None = None, *, listed: Iterable[str] = ()
    ) -> MemberChannel:
        """Return a channel for gRPC stubs. Calls over this channel are part of the fleet's cuts.

        Args:
            target: name that identifies the receiver in cuts. After a recovery, calls are repeated over the channel with the same target
                name.
            channel: gRPC channel to use. The default is an insecure channel to `target`. Do not configure retries on this channel, because
                the member itself retries calls.
            listed: full names of methods of a service that is not part of cuts, such as /mail.Mail/Send. The member never repeats calls of
                listed methods. After a recovery, `unsettled` reports the calls that had no answer. "*" stands for all methods.
        """
        made = MemberChannel(self, target, channel or grpc.aio.insecure_channel(target), frozenset(listed))
        self._channels[target] = made
        for call in self._unrouted.pop(target, ()):
            made.again(call)
        return made

    def start(self, work: Coroutine[object, None, Any]) -> "asyncio.Task[Any]":
        """Run a background task of the service. The task is cancelled when the fleet rolls back, so the service's `restore` method must
        start the task again."""
        context = contextvars.copy_context()
        context.run(RUN.set, None)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def changed(self, response: Any = None) -> None:
        """Declare that the calling handler changes the service's state and must therefore not be rerun.

        If a handler makes further calls after a state change, call this method in the same atomic piece of work as the change.

        After a recovery, the handler's pending calls are repeated unchanged. `response` is the response that the handler's caller receives
        if the fleet recovers from a cut taken before the handler ends. If `response` is None, the caller receives an error with the code
        ABORTED instead.

        Raises:
            DivergedCallError: the rerun handler made fewer calls than its first run.
            UsageError: this method was called outside of a handler.
        """
        run = RUN.get()
        if run is None:
            raise UsageError("changed() is for handlers: what a background task changes is in the cut in any case")
        if run.handling is not None and run.plan == self.plan:
            answer = LOST_ANSWER if response is None else CallAnswer(response=run.serialize(response))
            self.ledger.changed(run.handling, answer)

    def tell(self, agent: str, message: object) -> None:
        """Send a message to another agent of the fleet, atomically with the service's state change. In a handler, sending a message implies
        `changed()`.

        Raises:
            EncodingError, MessageTooLargeError: the message cannot be encoded, or is larger than 16 MiB.
            UsageError: the agent id is invalid, the fleet has not started, or the fleet is rolling back. A rollback also undoes the
                service's state change.
        """
        local, run = self._local, RUN.get()
        if local is None or (run is not None and run.plan != self.plan):
            raise UsageError(f"agent {self.agent!r} cannot send messages: its fleet has not begun, or is rolling back")
        check_receiver(agent)
        payload = encode_message(message)
        if run is not None and run.handling is not None:
            self.ledger.changed(run.handling)
        self._host.tell(ev.ExternalSends(self.agent, local.incarnation, ((agent, payload),)))

    @property
    def unsettled(self) -> Sequence[ServiceCall]:
        """Return the listed calls that had no answer in the cut to which the fleet has rolled back. Their outcomes are unknown. Pass each
        unsettled call to `settle` when its outcome is known."""
        return tuple(self.ledger.unsettled.values())

    def settle(self, call: ServiceCall) -> None:
        """Remove a call from `unsettled`, because the service has found out the call's outcome. Raise KeyError if the call is not in
        `unsettled`."""
        self.ledger.settle(call.id)

    # ---- interface for calls and handlers -------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Return the newest epoch E such that the service has recorded every epoch up to E in which it takes part."""
        local = self._local
        if local is None:
            return 0
        return local.protocol.recorded if local.owes else self._shared.begun_epoch

    async def admit(self, stamp: CallStamp | None) -> bool:
        """Wait until a request can be accepted or rejected. Return True if the request may be accepted, or False if it belongs to an older
        history.

        The decision and the caller's next work form one atomic piece.
        """
        while True:
            if stamp is None:
                if self.plan:
                    return True
                await self._moved.wait()
                continue
            match judge(stamp, plan=self._shared.plan, is_loaded=self.plan > 0, recorded=self.seen):
                case "take":
                    return True
                case "refuse":
                    return False
                case "wait":
                    await self._moved.wait()
                case "record":
                    await self.record(stamp.epoch)

    async def record(self, epoch: int) -> None:
        """Ensure that the service is recorded in the cut of this epoch.

        Return when the service has been recorded, or when its plan or the epoch has ended.
        """
        plan, shared = self.plan, self._shared
        while plan and self.plan == plan and self.seen < epoch:
            if self._front.ready() or epoch in shared.ended:
                self._host.begin(epoch)
                if self.seen < epoch:  # a queued turn of the service's agent runs first
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(READY_CHECK_PERIOD_S)

    async def left(self, plan: int) -> None:
        """Wait until the service no longer runs under `plan`."""
        while self.plan == plan:
            await self._moved.wait()

    def made(self, call: FencedCall) -> None:
        """Register a call whose caller waits for the answer. When the fleet rolls back, the call is cancelled."""
        self._calls.add(call)

    def ended(self, call: FencedCall) -> None:
        """Unregister a call whose caller no longer waits for the answer."""
        self._calls.discard(call)

    def handler_began(self, task: "asyncio.Task[Any]") -> None:
        """Register a handler's task. The task is cancelled when the fleet rolls back."""
        self._handlers.add(task)

    def handler_ended(self, task: "asyncio.Task[Any]", call_id: str) -> None:
        """Unregister a handler's task, and wake the repeated requests that wait for the handler to end."""
        self._handlers.discard(task)
        waiter = self._waiters.pop(call_id, None)
        if waiter is not None:
            waiter.set_result(None)

    async def other_run(self, call_id: str) -> None:
        """Wait until the running handler for this call has ended."""
        waiter = self._waiters.get(call_id)
        if waiter is None:
            waiter = self._waiters[call_id] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waiter)

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        """Pass an answer that no caller awaits to the service's method `answered`."""
        take = getattr(self._front, "answered", None)
        if take is not None:
            take(call, answer)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task of %s has failed", self.agent, exc_info=task.exception())

    # ---- interface for the host -----------------------------------------------------------------------------------------

    def going_back(self) -> None:
        """Stop all work of the old plan. From now on, results of the old plan's work are rejected."""
        self._local = None
        self._move_to(0)
        for task in [*self._tasks, *self._handlers]:
            task.cancel()
        for call in list(self._calls):
            call.fence()
        self._tasks.clear()
        self._handlers.clear()
        self._calls.clear()
        self._unrouted.clear()
        for waiter in self._waiters.values():
            waiter.set_result(None)
        self._waiters.clear()
        self.ledger.running.clear()

    def when_work_ended(self, then: Callable[[], None]) -> None:
        """Call `then` when no work of an older history is running. If the service has threads, `then` is called when all threads of older
        histories have ended (`QuiescentService`)."""
        when_work_ended = getattr(self._front, "when_work_ended", None)
        if when_work_ended is None:
            then()
        else:
            when_work_ended(then)

    def on_rolled_back(self, made: object | None) -> None:
        plan = self._shared.plan
        if plan == self.plan:
            return
        if made is None:
            log.warning(
                "plan %d has placed agent %s elsewhere, where its service is not: calls wait here until another plan brings it back. "
                "Give the coordinator a --rejoin-grace that is longer than this process takes to be started again",
                *(plan, self.agent),
            )
            return
        self._local = self._shared.agents[self.agent]
        assert isinstance(made, ServiceAgent)
        made.service = self._service
        self._move_to(plan)
        self.ledger.restore(made.state.calls)
        self._front.restore(self._initial if made.state.service is None else made.state.service)
        for call in self.ledger.pending.values():
            channel = self._channels.get(call.target)
            if channel is None:
                self._unrouted.setdefault(call.target, []).append(call)
            else:
                channel.again(call)

    def _move_to(self, plan: int) -> None:
        """Set the plan and wake all tasks that wait for a new plan. The asyncio event is replaced, because tasks that wait for a later plan
        would spin on an event that remained set."""
        self.plan = plan
        self._moved.set()
        self._moved = asyncio.Event()

    def begin_later(self, epoch: int) -> bool:
        if self.plan and self.seen < epoch and not self._front.ready():
            self.start(self.record(epoch))
            return True
        return False

    def may_record(self) -> bool:
        return not self.plan or self._front.ready()

    def before_capture(self, made: object) -> None:
        assert isinstance(made, ServiceAgent)
        if not self.plan:
            return
        try:
            if not self._front.ready():
                raise NotReadyError(f"the service of agent {self.agent!r} is not ready for a cut")
            made.state = ServiceState(self._front.capture(), self.ledger.image())
        except SnaplineError:
            raise
        except Exception as error:
            raise NotReadyError(f"the service of agent {self.agent!r} could not be captured: {error!r}") from error

    def cut(self, epoch: int) -> None:
        self._front.on_cut(epoch)
