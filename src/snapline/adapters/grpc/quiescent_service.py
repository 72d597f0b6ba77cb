"""Adapter that makes a service with threads look single-threaded to its member: each of its answers is valid while no thread is inside."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from snapline.adapters.grpc.ledger import CallAnswer, ServiceCall
from snapline.adapters.grpc.member_threads import MemberThreads, Work
from snapline.adapters.grpc.service_agent import CutService


class QuiescentService:
    """A `CutService` that wraps the user's; see the module."""

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
        """Return whether a cut may be taken. The service is asked before the gate is shut, as it may need a thread at the gate, and again after."""
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
        """Pass the answer to the service in a new thread that is inside, since the service may wait for a lock of its own."""
        take: Callable[..., Any] | None = getattr(self._service, "answered", None)
        if take is not None:
            self._threads.begin(lambda: take(call, answer))

    def when_work_ended(self, then: Work) -> None:
        self._threads.when_work_ended(then)
