"""`ThreadedMember`: includes a service of the threaded `grpc.server`, with blocking stubs, in a fleet.

    member = ThreadedMember(service, agent="a", fleet=fleet, coordinator="127.0.0.1:7700", store="/shared/store")
    server = grpc.server(ThreadPoolExecutor(10), interceptors=[member.interceptor])
    stub = GreeterStub(member.channel("127.0.0.1:50052"))
    server.start()
    code = member.run()

It is a `Member` in an event loop, which runs in the thread that calls `run`; requests of handlers are carried out there (`member_threads.py`). Cuts,
calls and recoveries are those of `Member`; this module connects threads and the loop.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import ServiceCall
from snapline.adapters.grpc.member import Member
from snapline.adapters.grpc.member_threads import MemberThreads, QuiescentService, Reenter
from snapline.adapters.grpc.service_agent import CutService
from snapline.adapters.grpc.threaded_channel import ThreadedChannel
from snapline.adapters.grpc.threaded_interceptor import ThreadedInterceptor
from snapline.agent_runtime.fleet import Fleet
from snapline.security.transport import Security


class ThreadedMember:
    """A service with threads in a fleet.

    Attributes:
        interceptor: for `grpc.server(…, interceptors=[…])`, before all others that change anything.
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
    ) -> None:
        """Take the arguments of `Member`. `capture`, `restore`, `on_cut` and `ready` are called in the loop's thread,
        the first two while no thread of the service is inside.

        Raises:
            UsageError: the fleet has no such agent.
        """
        self._loop = asyncio.new_event_loop()
        self._threads = MemberThreads(self._loop)
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(self._loop.close)
            self._member = self._threads.member = Member(
                service,
                agent=agent,
                fleet=fleet,
                coordinator=coordinator,
                store=store,
                host=host,
                listen=listen,
                advertise=advertise,
                security=security,
                front=QuiescentService(service, self._threads),
            )
            unless_made.pop_all()
        self._member.reenter = self._threads.passed
        self.interceptor = ThreadedInterceptor(self._member, self._threads)

    def run(self) -> int:
        """Take part in the fleet until it ends, SIGTERM arrives (in the main thread), or another process replaces this one. Return an exit code.

        Raises:
            UsageError: the fleet refuses this process permanently, or the port is taken.
        """
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                return runner.run(self._run())
        finally:
            self._threads.close()

    async def _run(self) -> int:
        try:
            return await self._member.run()
        finally:
            self._threads.is_ending = True

    def channel(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        options: Sequence[tuple[str, Any]] = (),
        listed: Iterable[str] = (),
    ) -> ThreadedChannel:
        """Return a channel for stubs, whose calls are in the cut. For threads of handlers, and of `start`.

        Args:
            target: name of the receiver in the cut: after a recovery, calls are repeated over the channel of this name.
            credentials, options: as for `grpc.secure_channel`; without credentials the channel is insecure. Leave retries to the member.
            listed: as for `Member.channel`.
        """
        names = frozenset(listed)

        def inner() -> grpc.aio.Channel:
            if credentials is None:
                return grpc.aio.insecure_channel(target, options)
            return grpc.aio.secure_channel(target, credentials, options)

        made = ThreadedChannel(self._threads, lambda: self._member.channel(target, inner(), listed=names), names)
        self._loop.call_soon_threadsafe(made.inner)  # calls made before a recovery wait for it
        return made

    def start(self, function: Callable[[], object]) -> None:
        """Run the function in a thread. A recovery ends it with `HistoryOverError`; `restore` must start it again.

        Raises:
            UsageError: the caller is neither `restore` nor a thread of the service.
        """
        self._threads.step(lambda: self._threads.start(function))

    def sleep(self, seconds: float) -> None:
        """Wait outside, until the fleet rolls back at most; like `time.sleep` within `outside`."""

        async def slept(reenter: Reenter) -> None:
            await asyncio.sleep(seconds)
            await reenter()

        self._threads.wait(lambda: slept)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Let this thread wait for something other than a call of the member, without using the service's state; a cut may be taken meanwhile."""
        self._threads.outside()
        try:
            yield
        finally:
            self._threads.wait(lambda: _reenter)

    def changed(self, response: Any = None) -> None:
        """Call `Member.changed`."""
        self._threads.step(lambda: self._member.changed(response))

    def tell(self, agent: str, message: object) -> None:
        """Call `Member.tell`."""
        self._threads.step(lambda: self._member.tell(agent, message))

    @property
    def unsettled(self) -> Sequence[ServiceCall]:
        """Return `Member.unsettled`."""
        calls: Sequence[ServiceCall] = self._threads.step(lambda: self._member.unsettled)
        return calls

    def settle(self, call: ServiceCall) -> None:
        """Call `Member.settle`."""
        self._threads.step(lambda: self._member.settle(call))


async def _reenter(reenter: Reenter) -> None:
    await reenter()
