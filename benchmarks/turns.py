"""What spans cost a turn: CPU microseconds of one that is followed by nobody, and of one that is, against a host without `--otel`.

    .venv/bin/python -m benchmarks.turns [--rounds 30]

One agent's handler takes a message and sends one, run as hosts run it, without the core around it (`host.py` has that). Rounds alternate; CPU is
that of the thread; what the exporter does with spans in its own is not in it (`observe.py --spans` has all).
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

from benchmarks.observe import counting, interval

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_spans import TurnPlace, TurnSpans
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import Traceparent, encode_message, with_tail
from snapline.telemetry.span_export import SpanExport

TURNS = 2000
"""Turns in a row: below the bound of the queue."""


class Token(snapline.Message):
    hops: int
    padding: bytes = bytes(48)


class Passer(snapline.Agent):
    state: Token
    on_error = "keep"

    @snapline.handler
    async def on_token(self, message: Token, ctx: snapline.Context) -> None:
        ctx.send("b", Token(message.hops + 1, message.padding))


def turn_us(run: Callable[[ev.StartTurn], object], payload: bytes) -> float:
    """Of one turn, in this thread."""
    turn = ev.StartTurn("a", 1, "message", "z", payload)
    start_s = time.thread_time()
    for _ in range(TURNS):
        run(turn)
    return (time.thread_time() - start_s) / TURNS * 1e6


def measure(rounds: int) -> None:
    turns = Turns(snapline.Fleet("passers", agents={"a": Passer(Token(0))}), print, print)
    turns.add("a", Passer(Token(0)))
    with counting() as counted:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{counted.server.server_port}"
        export = SpanExport(0.0, role="host", name="h1")
        spans = TurnSpans(export, turns.run, turns.type_of, lambda turn: TurnPlace(1, False))
        plain = encode_message(Token(0))
        followed = with_tail(plain, Traceparent(1, 2).tail())
        results: dict[str, list[float]] = {"without --otel": [], "followed by nobody": [], "followed": []}
        for _ in range(rounds):
            for name, run, payload in zip(
                results, (turns.run, spans.run, spans.run), (plain, plain, followed), strict=True
            ):
                results[name].append(turn_us(run, payload))
            while export.queue.exported < len(results["followed"]) * TURNS:
                time.sleep(0.01)
        exported_before = export.queue.exported
        export.close()
    base = results["without --otel"]
    for name, values in results.items():
        more = [value - before for value, before in zip(values, base, strict=True)]
        low, high = interval(more)
        print(
            f"{name:20} {statistics.median(values):7.2f} µs   +{statistics.median(more):.2f} ({low:.2f} to {high:.2f})"
        )
    print(f"{exported_before:,} spans exported, {counted.turns:,} came, {export.queue.dropped} dropped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    measure(options.rounds)


if __name__ == "__main__":
    main()
