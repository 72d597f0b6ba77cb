"""docs/ray-actors.md runs as it is shown: a bank whose process is killed has its balance."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.adapters.grpc_services.meshes import free_ports
from tests.house.pages import commands_of, files_of
from tests.integration.processes import LIMIT_S, ROOT, start
from tests.kit.shown_page import matches

from snapline.deploy.conformance.local_ray import Raylets

pytest.importorskip("ray", reason="Ray is not installed: pip install 'snapline[ray]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


async def test_the_program_of_the_page_runs(cluster: Raylets, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ray-actors.md").read_text()
    for name, text in files_of(page).items():
        (tmp_path / name).write_text(text)
    coordinated, shown = commands_of(page)
    _, *words = coordinated.text.removesuffix(" &").split()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    swapped = {"127.0.0.1:7700": address, "run/coordinator": str(tmp_path / "c"), "run/store": str(tmp_path / "store")}
    coordinator = await start(*(swapped.get(word, word) for word in words))
    try:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            *(swapped.get(word, word) for word in shown.text.split()[1:]),
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": cluster.address, "RAY_LOG_TO_DRIVER": "0"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(LIMIT_S):
            out, err = await program.communicate()
    finally:
        coordinator.kill()
        await coordinator.wait()
    assert program.returncode == 0, err.decode()
    said = [line for line in out.decode().splitlines() if " has" in line]
    assert matches(shown.output, said), out.decode() + err.decode()
