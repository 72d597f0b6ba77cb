"""`Member`: makes a plain gRPC service a member of a fleet, whose cuts and recoveries hold it and its calls.

    member = Member(service, agent="a", fleet=fleet, coordinator="127.0.0.1:7700", store="/shared/store")
    server = grpc.aio.server(interceptors=[member.interceptor])
    stub = GreeterStub(member.channel("127.0.0.1:50052"))
    code = await member.run()

The member holds a host of the fleet (`embedded_host.py`) and the ledger of the service's calls (`ledger.py`); it decides when a cut of the service is
taken, and what of an older history has no effect any more. Everything runs in one event loop, so that what is between two awaits is one piece.
"""

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from snapline.adapters.grpc.embedded_host import EmbeddedHost
from snapline.adapters.grpc.handler_runs import RUN
from snapline.adapters.grpc.ledger import LOST_ANSWER, CallAnswer, CallLedger, ServiceCall
from snapline.adapters.grpc.member_channel import MemberChannel
from snapline.adapters.grpc.member_interceptor import MemberInterceptor
from snapline.adapters.grpc.service_agent import CutService, ServiceAgent, ServiceState
from snapline.adapters.grpc.service_interfaces import FencedCall
from snapline.adapters.grpc.stamps import CallStamp, judge
from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host.external_sends import ExternalSends
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.process import HostOptions
from snapline.errors import SnaplineError, UsageError
from snapline.ids import check_receiver
from snapline.security.transport import Security

READY_LOOK_S = 0.005
"""Between two questions to a service that is not ready for a cut: what waits for the cut waits so much longer at most."""

log = logging.getLogger("snapline.grpc")


class NotReadyError(SnaplineError):
    """The service wants no cut now, or could not be captured: the epoch is refused, and another one is tried later."""


class Member:
    """A service in a fleet.

    Attributes:
        agent: its agent in the fleet.
        ledger: of its calls. To read.
        plan: under which the service runs; 0 while it goes back, or before the fleet has begun.
        come_in: is waited for before an answer that nobody awaits leaves the ledger (`MemberThreads.passed`); None: nothing is.
        interceptor: for `grpc.aio.server(interceptors=[…])`, before all others that change anything.
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
        """Nothing is opened yet.

        Args:
            service: see `CutService`. Its optional `answered(call, answer)` gets the answers to calls that nobody awaits: those of `send`, and
                those that were made again after a recovery; in one piece with their leaving the cut.
            agent: an agent of the fleet, a `ServiceAgent`, placed on the host of this process.
            fleet: the same in every process.
            coordinator, store, listen, advertise: as of `snapline host run`. `listen` is the host's own door, not the service's.
            host: the name of the host; that of the agent if it is empty.
            front: is asked in the service's place (`CutPieces`, of services with threads).

        Raises:
            UsageError: the fleet has no such agent.
        """
        if not isinstance(fleet.agents.get(agent), ServiceAgent):
            raise UsageError(
                f"agent {agent!r} of fleet {fleet.name!r} is no ServiceAgent: write Fleet(agents={{{agent!r}: ServiceAgent()}}, …)"
            )
        self.agent = agent
        self.plan = 0
        self.come_in: Callable[[], Awaitable[None]] | None = None
        self.ledger = CallLedger(agent)
        self.interceptor = MemberInterceptor(self)
        self._service, self._front = service, front or service
        self._initial = service.capture()
        self._moved = asyncio.Event()  # of the next change of plan
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
        """Take part in the fleet until it ends, SIGTERM, or until another process has taken this one's place; returns an exit code.

        Raises:
            UsageError: the fleet refuses this process permanently, or the port is taken.
        """
        try:
            return await self._host.run()
        finally:
            self.going_back()

    # ---- for the service ----------------------------------------------------------------------------------------------

    def channel(
        self, target: str, channel: grpc.aio.Channel | None = None, *, listed: Iterable[str] = ()
    ) -> MemberChannel:
        """Return a channel for stubs, whose calls are in the cut.

        Args:
            target: names the receiver in the cut: calls of before a recovery are made again over the channel of this name.
            channel: over which; an insecure one to `target` if there is none. Leave retries to the member.
            listed: full names of methods of a service that is in no cut, such as /mail.Mail/Send: their calls are never made again, and after a
                recovery stand in `unsettled`. "*": all.
        """
        made = MemberChannel(self, target, channel or grpc.aio.insecure_channel(target), frozenset(listed))
        self._channels[target] = made
        for call in self._unrouted.pop(target, ()):
            made.again(call)
        return made

    def start(self, work: Coroutine[object, None, Any]) -> "asyncio.Task[Any]":
        """Run a background task of the service, that ends when the fleet goes back; `restore` starts it anew."""
        context = contextvars.copy_context()
        context.run(RUN.set, None)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def changed(self, response: Any = None) -> None:
        """Within a handler, in the piece in which it changes the service's state though calls are still to come: it is not run again.

        Its calls from here on are made again after a recovery as they are. `response`: what its caller gets after a recovery; without, an error
        of code ABORTED.

        Raises:
            DivergedCallError: the handler was run again, and has made fewer calls than before.
            UsageError: this is no handler.
        """
        run = RUN.get()
        if run is None:
            raise UsageError("changed() is for handlers: what a background task changes is in the cut in any case")
        if run.handling is not None and run.plan == self.plan:
            answer = LOST_ANSWER if response is None else CallAnswer(response=run.serialize(response))
            self.ledger.changed(run.handling, answer)

    def tell(self, agent: str, message: object) -> None:
        """Send a message to another agent of the fleet, in one piece with what the service changes. In a handler it counts as `changed()`.

        Raises:
            EncodingError, MessageTooLargeError: it cannot be encoded, or is above 16 MiB.
            UsageError: no agent can have such an id, or the fleet goes back just now: what was changed is undone with that.
        """
        local, run = self._local, RUN.get()
        if local is None or (run is not None and run.plan != self.plan):
            raise UsageError(f"agent {self.agent!r} cannot tell anything: its fleet has not begun, or goes back")
        check_receiver(agent)
        payload = encode_message(message)
        if run is not None and run.handling is not None:
            self.ledger.changed(run.handling)
        self._host.tell(ExternalSends(self.agent, local.incarnation, ((agent, payload),)))

    @property
    def unsettled(self) -> Sequence[ServiceCall]:
        """Listed calls that had no answer in the cut that the fleet went back to: they were made, or not. See `settle`."""
        return tuple(self.ledger.unsettled.values())

    def settle(self, call: ServiceCall) -> None:
        """Forget a call whose outcome the service has found out. Raises KeyError: it is not there."""
        self.ledger.settle(call.id)

    # ---- what calls and handlers ask ------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Up to this epoch the service has recorded all that are to be recorded."""
        local = self._local
        if local is None:
            return 0
        return local.protocol.recorded if local.owes else self._shared.begun_epoch

    async def admit(self, stamp: CallStamp | None) -> bool:
        """Wait until a request may be taken in; False: it is of an older history. What follows is in the same piece."""
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
        """Be in this epoch's cut before anything else happens; returns when it is so, or when the plan or the epoch has ended."""
        plan, shared = self.plan, self._shared
        while plan and self.plan == plan and self.seen < epoch:
            if self._front.ready() or epoch in shared.ended:
                self._host.begin(epoch)
                if self.seen < epoch:  # a turn of the bridge is queued, and comes first
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(READY_LOOK_S)

    async def left(self, plan: int) -> None:
        """Return when the service is under another plan than this."""
        while self.plan == plan:
            await self._moved.wait()

    def made(self, call: FencedCall) -> None:
        """Register a call that waits for its answer: it ends when the fleet goes back."""
        self._calls.add(call)

    def ended(self, call: FencedCall) -> None:
        """Remove a call that does not wait any more."""
        self._calls.discard(call)

    def handler_began(self, task: "asyncio.Task[Any]") -> None:
        """Register a handler's task: it is cancelled when the fleet goes back."""
        self._handlers.add(task)

    def handler_ended(self, task: "asyncio.Task[Any]", call_id: str) -> None:
        """Remove a handler's task; the one that waits for its answer looks again."""
        self._handlers.discard(task)
        waiter = self._waiters.pop(call_id, None)
        if waiter is not None:
            waiter.set_result(None)

    async def other_run(self, call_id: str) -> None:
        """Wait until the handler of this call, which runs already, has ended."""
        waiter = self._waiters.get(call_id)
        if waiter is None:
            waiter = self._waiters[call_id] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waiter)

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        """Deliver the answer to a call that nobody awaits."""
        take = getattr(self._front, "answered", None)
        if take is not None:
            take(call, answer)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task of %s has failed", self.agent, exc_info=task.exception())

    # ---- what the host asks ---------------------------------------------------------------------------------------------

    def going_back(self) -> None:
        """End all work of the old plan here: it has no effect any more."""
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

    def when_over(self, then: Callable[[], None]) -> None:
        """Tasks are cancelled, and have done nothing since; of a service with threads these end first (`CutPieces`)."""
        when_over = getattr(self._front, "when_over", None)
        if when_over is None:
            then()
        else:
            when_over(then)

    def gone_back(self, made: object | None) -> None:
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
        """Set the plan and wake waiters once: an event that stayed set would have them look without end, and block the loop."""
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

    def filling(self, made: object) -> None:
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
