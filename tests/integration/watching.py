"""Prometheus itself, watching fleets of a test, as docs/runbook.md says that it should."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from tests.integration.processes import LIMIT_S, ROOT

from snapline.deploy.data_directory import METRICS_FOLDER

T = TypeVar("T")

PROGRAM = shutil.which("prometheus")

LOOK_S = 0.25
"""Between two questions: Prometheus itself looks once in a second at most."""

Answer = dict[str, Any]
"""Any: whatever JSON holds."""


def shown(page: str) -> Answer:
    """The configuration that a page of docs/ shows."""
    text = (ROOT / "docs" / page).read_text().partition("```yaml\n")[2].partition("```")[0]
    return msgspec.yaml.decode(text, type=Answer)


def configuration(fleets: Mapping[str, Path]) -> Answer:
    """That of the runbook, but for the paths, for several fleets (label → folder), and with a glance each second."""
    found = shown("runbook.md")
    (job,) = found["scrape_configs"]
    jobs = []
    for name, data_dir in fleets.items():
        (discovery,), (label,) = job["file_sd_configs"], job["relabel_configs"]
        (files,) = discovery["files"]
        assert files == f"/path/to/DIR/{METRICS_FOLDER}/*.json"
        own = files.replace("/path/to/DIR", str(data_dir))
        jobs.append(
            {
                **job,
                "job_name": f"snapline-{name}",
                "scrape_interval": "1s",
                "file_sd_configs": [{"files": [own], "refresh_interval": "1s"}],
                "relabel_configs": [{**label, "replacement": name}],
            }
        )
    paths = [path.replace("/path/to/snapline", str(ROOT)) for path in found["rule_files"]]
    return {**found, "rule_files": paths, "scrape_configs": jobs}


class Watch:
    """A running Prometheus."""

    def __init__(self, http: httpx.AsyncClient, log: Path) -> None:
        self._http = http
        self._log = log

    async def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        answer = (await self._http.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", f"{path} {parameters}: {answer.get('error')}"
        return answer["data"]

    async def series(self, expr: str) -> list[Answer]:
        """What an expression comes to now."""
        found: list[Answer] = (await self.ask("query", query=expr))["result"]
        return found

    async def targets(self) -> dict[tuple[str, str], str]:
        """Fleet and process → "up" or "down"."""
        found = (await self.ask("targets"))["activeTargets"]
        return {(one["labels"]["fleet"], one["labels"]["instance"]): one["health"] for one in found}

    async def firing(self) -> set[tuple[str, str]]:
        """Fleet and name of each alert that fires."""
        found = (await self.ask("alerts"))["alerts"]
        return {(one["labels"]["fleet"], one["labels"]["alertname"]) for one in found if one["state"] == "firing"}

    async def until(
        self, look: Callable[[], Awaitable[T]], is_so: Callable[[T], object], limit_s: float = LIMIT_S
    ) -> T:
        """Wait until what `look` finds is as it should be."""
        found: T | None = None
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with contextlib.suppress(httpx.TransportError):  # it has not opened its door yet
                        found = await look()
                        if is_so(found):
                            return found
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"in vain; last {found}\n{self._log.read_text()[-2000:]}") from None


@contextlib.asynccontextmanager
async def watching(folder: Path, told: Answer) -> AsyncIterator[Watch]:
    """Prometheus, with its data in `folder` and this configuration."""
    assert PROGRAM is not None
    folder.mkdir()
    file, log = folder / "prometheus.yaml", folder / "prometheus.log"
    file.write_bytes(msgspec.json.encode(told))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=LIMIT_S) as http:
            yield Watch(http, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
