"""A fleet of real processes whose host is killed between two requests to a model: collector and metrics see each of them once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.integration.processes import LIMIT_S
from tests.integration.running import LOOK_S, running
from tests.integration.test_metrics import scraped

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")
trace = pytest.importorskip("opentelemetry.trace", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from tests.adapters.pydantic_agents.gated import INPUT, OUTPUT, Question
from tests.kit.collector import collecting

import snapline
from snapline.telemetry.model_requests import GEN_AI, OPT_IN

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]

CALLER = trace.SpanContext(0xA0, 0xB0, False, trace.TraceFlags(1))
KINDS = {"input": INPUT, "output": OUTPUT}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(LOOK_S)


async def counted(data_dir: Path, http: httpx.AsyncClient, host: str) -> dict[str, float]:
    """Wait until this host has counted tokens."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            samples = (await scraped(data_dir, http)).get(host, {})
            names = {kind: ("snapline_model_tokens_total", "clerk", "scripted", kind) for kind in KINDS}
            if names["output"] in samples:
                return {kind: samples[name] for kind, name in names.items()}
            await asyncio.sleep(LOOK_S)


async def test_a_killed_host_pays_and_counts_each_request_once(tmp_path: Path) -> None:
    data_dir, name = tmp_path / "data", "tests.adapters.pydantic_agents.gated:fleet"
    with collecting() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, OPT_IN: GEN_AI}
        async with (
            running(
                *(data_dir, name, {"folder": str(tmp_path)}),
                hosts=1,
                metrics="127.0.0.1:0",
                log=("--otel", "0"),
                environment=environment,
            ) as fleet,
            httpx.AsyncClient(timeout=LIMIT_S) as http,
        ):
            await fleet.until(lambda now: now.phase == "running")
            async with await snapline.Client.connect(data_dir=data_dir) as client:
                with trace.use_span(trace.NonRecordingSpan(CALLER)):
                    await client.send("clerk", Question("may I?"), timeout_s=LIMIT_S)
            await until(lambda: collector.named("chat scripted"))
            assert await counted(data_dir, http, "h1") == KINDS
            await fleet.client.create_snapshot()
            await fleet.recovered_from("h1")
            (tmp_path / "gate").touch()
            assert await counted(data_dir, http, "h1") == KINDS, "the new process has made the second request only"
            (tmp_path / "stop").touch()
            await fleet.end_by_hand()
    assert (tmp_path / "requests").read_text() == "1\n3\n"
    (run,) = collector.named("invoke_agent clerk")
    (turn,) = collector.named("turn Question")
    chats, tools = collector.named("chat scripted"), collector.named("execute_tool wait")
    assert len(chats) == 2 and {span.parent for span in (*chats, *tools)} == {run.span} and run.parent == turn.span
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in chats] == [INPUT] * 2
