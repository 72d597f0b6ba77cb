"""Service with threads as its member sees it: like any other, and each answer holds for a moment in which no thread is inside."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member_threads import MemberThreads, Work
from snapline.adapters.grpc.service_agent import CutService


class CutPieces:
    """See the module; a `CutService` around the user's."""

    def __init__(self, service: CutService, threads: MemberThreads) -> None:
        self._service, self._threads = service, threads

    def capture(self) -> bytes:
        return self._service.capture()

    def restore(self, state: bytes) -> None:
        self._threads.open()
        self._service.restore(state)

    def on_cut(self, epoch: int) -> None:
        self._threads.open()
        self._service.on_cut(epoch)

    def ready(self) -> bool:
        """The service is asked before the gate is shut, since what it waits for may come by the gate; and again when nobody is inside who changes it."""
        threads = self._threads
        if not self._service.ready():
            return False
        if not threads.gate.ask(monotonic_ns()):
            threads.look_again()
            return False
        if self._service.ready():
            return True
        threads.open()
        return False

    def answered(self, call: ServiceCall, answer: CallAnswer) -> None:
        """Call the service in a thread, inside from now on, when the call has left the ledger: the service may wait for a lock of its own."""
        take: Callable[..., Any] | None = getattr(self._service, "answered", None)
        if take is not None:
            self._threads.begin(lambda: take(call, answer))

    def when_over(self, then: Work) -> None:
        self._threads.when_over(then)
