"""Paths and ports that cannot be used: one sentence on stderr, and the exit code for misuse."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.command_line import Run

from snapline.channels import servers
from snapline.cli.demo import _run_during
from snapline.deploy.local import Ending
from snapline.errors import UsageError


@pytest.fixture
def port() -> Iterator[int]:
    """One that another process listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    "command",
    [
        ["run", "snapline.examples.hello:fleet", "--data-dir"],
        ["demo", "--data-dir"],
        ["coordinator", "run", "--store", "store", "--hosts", "1", "--listen", "127.0.0.1:0", "--data-dir"],
        ["coordinator", "run", "--data-dir", "data", "--hosts", "1", "--listen", "127.0.0.1:0", "--store"],
    ],
)
@pytest.mark.parametrize(("place", "why"), [("/proc/x", "No such file or directory"), ("file", " exists")])
def test_a_place_where_no_folder_can_be(run: Run, folder: Path, command: list[str], place: str, why: str) -> None:
    (folder / "file").touch()
    done = run(*command, place)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and place in done.err and why in done.err
    assert place != "file" or "give another" in done.err


def test_a_port_that_is_taken_is_one_sentence_without_gRPCs_own(run_process: Run, folder: Path, port: int) -> None:
    arguments = ["--coordinator", "127.0.0.1:1", "--id", "h1", "--fleet", "snapline.examples.hello:fleet"]
    done = run_process("host", "run", *arguments, "--store", "store", "--listen", f"127.0.0.1:{port}")
    sentence = f"snapline: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --listen\n"
    assert (done.code, done.out, done.err) == (1, "", sentence)


def test_a_coordinators_port_that_is_taken(run: Run, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PORT_WAIT_S", 0.2)
    arguments = ["--data-dir", "data", "--store", "store", "--hosts", "1"]
    done = run("coordinator", "run", *arguments, "--listen", f"127.0.0.1:{port}")
    assert done.code == 1 and "Address already in use; choose another --listen" in done.err


def test_an_address_of_another_machine_is_a_wrong_option(run: Run, folder: Path) -> None:
    arguments = ["--data-dir", "data", "--store", "store", "--hosts", "1", "--insecure"]
    done = run("coordinator", "run", *arguments, "--listen", "192.0.2.1:7400")
    assert done.code == 2 and "cannot listen on 192.0.2.1:7400: Cannot assign requested address" in done.err


def test_a_name_that_dns_does_not_know_is_no_wrong_option(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know it a moment later."""
    monkeypatch.setattr(servers, "PORT_WAIT_S", 0.2)
    arguments = ["--data-dir", "data", "--store", "store", "--hosts", "1", "--insecure"]
    done = run("coordinator", "run", *arguments, "--listen", "nobody.invalid:7400")
    assert done.code == 1 and "cannot listen on nobody.invalid:7400" in done.err


def test_a_folder_whose_fleet_has_its_store_elsewhere(run: Run, folder: Path) -> None:
    """As after `snapline up --data-dir run --store other`."""
    (folder / "run").mkdir()
    done = run("snapshot", "copy", "latest", "--to", "copies", "--data-dir", "run")
    assert (done.code, done.out) == (10, "") and not (folder / "copies").exists()
    assert done.err.endswith(
        "no store at run/store: check the path, or give the --store with which its fleet was started\n"
    )


def test_a_module_that_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name))
    done = run("demo")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "snapline: the demo computes with NumPy, which is not installed: pip install 'snapline[numpy]'\n"
    )


async def test_the_demo_ends_as_soon_as_its_launcher_gives_up() -> None:
    """Its hosts could not start: it used to wait for their first epoch for minutes."""
    cancelled: list[bool] = []

    async def give_up() -> Ending:
        await asyncio.sleep(0.01)
        raise UsageError("module 'x' needs 'numpy', which is not installed")

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with asyncio.timeout(5):
        with pytest.raises(UsageError, match="needs 'numpy'"):
            await _run_during(give_up(), work())
    assert cancelled == [True]
