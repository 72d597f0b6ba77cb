"""Runs a host or a coordinator into which faults can be injected. The command is `python -m snapline.chaos.fault_wrapper FOLDER NODE host
run …`.

The wrapper runs the regular command line of snapline. Before that, it installs a hook for failpoints. The wrapper also wraps methods, so
that the simulator's failpoints exist in real processes, too. The product does not depend on the wrapper.
"""

import errno
import functools
import os
import random
import runpy
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from snapline import failpoints
from snapline.chaos.failpoints import FailpointReader
from snapline.chaos.preload import FaultCounters
from snapline.errors import EncodingError
from snapline.sim.faults import fault_executor as moments

POINTS, CONTROLS, LIMITS_FILE = "points", "controls", "limits.json"
LOOK_S = 0.02

Handler = Callable[..., Any]  # a method of the product, with any arguments


class FaultTarget:
    """Injects faults into the process itself."""

    def __init__(self, folder: Path, node: str) -> None:
        self._points = FailpointReader(folder / POINTS, node)
        self._control = FaultCounters(folder / CONTROLS / node)

    def passed(self, name: str) -> None:
        """Pass a failpoint. If the failpoint is armed, execute its action."""
        match self._points.due(name):
            case "crash" | "power-cut":
                os.kill(os.getpid(), signal.SIGKILL)
            case "pause":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)
            case "refuse":
                raise EncodingError(f"chaos: the state cannot be saved, injected at {name}")
            case _:
                pass  # the chaos process breaks streams

    def before(self, owner: type, method: str, point: str, *, if_: Callable[..., bool] = lambda *_: True) -> None:
        """Wrap `method` so that each call passes the failpoint before it starts."""
        inner: Handler = getattr(owner, method)

        @functools.wraps(inner)
        def wrapped(instance: object, *arguments: object, **named: object) -> object:
            if if_(instance, *arguments):
                self.passed(point)
            return inner(instance, *arguments, **named)

        setattr(owner, method, wrapped)

    def after(self, owner: type, method: str, point: str, *, if_: Callable[..., bool] = lambda *_: True) -> None:
        """Wrap `method` so that each call passes the failpoint after it returns."""
        inner: Handler = getattr(owner, method)

        @functools.wraps(inner)
        def wrapped(instance: object, *arguments: object, **named: object) -> object:
            result = inner(instance, *arguments, **named)
            if if_(instance, *arguments):
                self.passed(point)
            return result

        setattr(owner, method, wrapped)

    # ---- points of hosts and coordinators ---------------------------------------------------------------------------

    def watch_host(self) -> None:
        from snapline.agent_runtime.host import coordinator_messages as stopping
        from snapline.agent_runtime.host import driver, process
        from snapline.agent_runtime.host.turns import Turns

        self.before(Turns, "run", moments.WHEN_WORKING)
        self.before(driver.HostDriver, "_capture", moments.WHEN_RECORDING)
        self.before(driver.HostDriver, "_take_checkpoint", moments.WHEN_RECORDING)
        self.after(
            driver.HostDriver,
            "_load_agents",
            moments.WHEN_RECOVERING,
            if_=lambda _, command: bool(command.line_epoch),
        )
        self.after(driver.HostDriver, "directive_received", moments.WHEN_RECEIVING)
        self.before(process.Host, "capturing", moments.WHEN_CAPTURING)
        original = stopping.ask_stop

        def ask_stop(*arguments: Any, **options: Any) -> Any:
            while self._control.get("hang_stop"):
                time.sleep(LOOK_S)
            return original(*arguments, **options)

        vars(driver)["ask_stop"] = ask_stop
        run_turns = driver.HostDriver.run_turns

        @functools.wraps(run_turns)
        def block(*arguments: Any) -> None:
            while self._control.get("hang_loop"):
                time.sleep(LOOK_S)
            run_turns(*arguments)

        setattr(driver.HostDriver, "run_turns", block)  # noqa: B010  # mypy does not allow assigning to a method

    def watch_coordinator(self) -> None:
        from snapline.coordinator.leader.events import ProposalEnded
        from snapline.coordinator.service import leader_driver, leadership

        self.before(
            leader_driver.LeaderDriver,
            "feed",
            moments.WHEN_DECIDING,
            if_=lambda _, event: isinstance(event, ProposalEnded),
        )
        self.before(leadership.Outbox, "get", moments.WHEN_SENDING, if_=_was_directive_written)
        inner = leadership.LeaderRunner.__init__

        def init(runner: Any, core: Any, log: Any, *more: Any) -> None:
            inner(runner, core, log, *more)
            log.propose = self._hiding_outcomes(log.propose)

        leadership.LeaderRunner.__init__ = init  # type: ignore[assignment]

    def _hiding_outcomes(self, propose: Callable[[bytes], Awaitable[Any]]) -> Callable[[bytes], Awaitable[Any]]:
        """Wrap `propose` so that some of its outcomes are hidden from the caller."""
        from snapline.coordinator.state.fleet_records import Unknown

        async def proposed(entry: bytes) -> Any:
            outcome = await propose(entry)
            is_lost = random.random() * 1000 < self._control.get("unknown_per_mille")
            return Unknown("chaos has lost the outcome") if is_lost else outcome

        return proposed


def _was_directive_written(outbox: Any) -> bool:
    """Return whether a directive was already written to one host, while other hosts may still be waiting for their directives. Record that
    a directive is being written now."""
    was_directive_written = getattr(outbox, "was_directive_written", False)
    outbox.was_directive_written = True
    return was_directive_written


def main() -> None:
    """Install the hook and the wrappers, and run snapline's command line."""
    from snapline.storage.capture import forked

    folder, node = Path(sys.argv[1]), sys.argv[2]
    sys.argv = ["snapline", *sys.argv[3:]]
    forked.prepare()  # before anything imports gRPC
    target = FaultTarget(folder, node)
    failpoints.install(target.passed)
    target.watch_host() if sys.argv[1] == "host" else target.watch_coordinator()
    with _limited(folder / LIMITS_FILE):
        # This module must not import the command line, which is a higher layer.
        runpy.run_module("snapline", run_name="__main__")


def _limited(path: Path) -> Any:
    """Return a context manager in which the product has the limits that the scenario sets."""
    import msgspec

    from snapline.sim.world.product_patches import limited

    return limited(msgspec.json.decode(path.read_bytes(), type=dict[str, int]))


if __name__ == "__main__":
    main()
