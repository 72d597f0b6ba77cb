"""docs/grpc.md runs as it is shown: the greeter and the route guide of gRPC's examples, and who calls them."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from tests.adapters.grpc_services.meshes import free_ports
from tests.house.pages import files_of
from tests.integration.processes import LIMIT_S, ROOT, nothing_left_running, start

DIARY = [
    "Hello Ada, you are number 1",
    "a church",
    "a church and a bridge",
    "2 features",
    "first",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["", pytest.param("threaded_", marks=pytest.mark.slow)])
async def test_the_services_of_the_page_run(tmp_path: Path, kind: str) -> None:
    """With threads the greeter and who calls; the guide is of grpc.aio."""
    for name, text in files_of((ROOT / "docs" / "grpc.md").read_text()).items():
        (tmp_path / name).write_text(text)
    for proto in ("greeter.proto", "route_guide.proto"):
        shutil.copy(Path(__file__).parent / proto, tmp_path)
    coordinator, greeter, guide = [f"127.0.0.1:{port}" for port in free_ports(3)]
    where = ("--data-dir", tmp_path / "c", "--store", tmp_path / "s", "--hosts", "3", "--rejoin-grace", "120")
    with nothing_left_running():
        processes = [await start("coordinator", "run", "--listen", coordinator, *where)]
        store = str(tmp_path / "s")
        try:
            for program, *addresses in (
                (f"{kind}greeter", greeter),
                ("guide", guide),
                (f"{kind}traveller", greeter, guide),
            ):
                processes.append(
                    await asyncio.create_subprocess_exec(
                        *(sys.executable, f"{program}.py", coordinator, store, *addresses),
                        cwd=tmp_path,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=asyncio.subprocess.DEVNULL,
                    )
                )
            said = processes[-1].stdout
            assert said is not None
            async with asyncio.timeout(LIMIT_S):
                assert [(await said.readline()).decode().rstrip() for _ in DIARY] == DIARY
        finally:
            for process in processes:
                process.kill()
                await process.wait()
