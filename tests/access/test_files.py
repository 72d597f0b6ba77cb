"""Files that the product writes are for whom the table says, whatever the umask is; and every file that writes some has a row."""

import ast
import asyncio
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.access.served import DATA
from tests.access.table import FILES, OTHER_WRITERS, PRIVATE, WITHIN
from tests.access.world import World
from tests.integration.processes import ROOT

from snapline.cli.answers import write_file_of_answers
from snapline.cli.fleet_locations import start_in_background
from snapline.coordinator.service.backup import write_backup
from snapline.deploy import launch_agent
from snapline.deploy.child import Child
from snapline.deploy.data_directory import LOGS_FOLDER, STORE_FOLDER, lock, write_address
from snapline.deploy.detached_fleet import DetachedPlan, write_plan
from snapline.deploy.plan import FleetPlan
from snapline.deploy.running_fleet import request_hosts
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.certificates import Authority
from snapline.storage.capture.saved_value_formats import write_npy
from snapline.storage.capture.saved_values import Content, SavedArray
from snapline.storage.capture.values import ArrayHead
from snapline.storage.keys.key_files import generate_signing_key, generate_wrapping_key
from snapline.storage.store.catalog import read_summaries
from snapline.storage.store.store import Store
from snapline.storage.transfer.archive import write_archive
from snapline.view.html_export import write_file


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


THERE_BEFORE = {"data/", "keys/", "cache/", "memory/"}
"""Folders that the product finds, and leaves as they are."""


def row_of(name: str) -> str:
    """The pattern that fits; "": none."""
    return next((pattern for pattern in FILES if fnmatchcase(name, pattern)), "")


def is_open(path: Path) -> bool:
    """Has anybody but its owner any right to it?"""
    return bool(stat.S_IMODE(path.lstat().st_mode) & 0o077)


def look(root: Path, under: str = "") -> tuple[set[str], dict[str, str]]:
    """Rows of which there are files in a folder, and path → what is wrong with it."""
    rows, wrong = set(), {}
    for path in (root / under).rglob("*"):
        name = path.relative_to(root).as_posix() + "/" * path.is_dir()
        if name in THERE_BEFORE:
            continue
        row = row_of(name)
        rows.add(row)
        above = [root / each for each in path.relative_to(root).parents if each.parts]
        readers = FILES[row].readers if row else ""
        if (readers == PRIVATE and is_open(path)) or (readers == WITHIN and all(map(is_open, above))) or not row:
            wrong[name] = f"mode {stat.S_IMODE(path.lstat().st_mode):04o}, for {readers or 'nobody knows whom'}"
    return rows, wrong


async def test_what_is_written_is_for_whom_the_table_says(
    secured: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_fleet, wrong = look(secured.folder, DATA)
    assert wrong == {}
    for name in (DATA, "keys", "cache"):
        (tmp_path / name).mkdir()
    write_secrets(tmp_path)
    await write_launchers_files(tmp_path / DATA)
    await write_what_is_taken_out(secured, tmp_path)
    written, wrong = look(tmp_path)
    assert wrong == {}
    of_posts, wrong = await look_at_a_post(monkeypatch)
    assert wrong == {}
    assert of_fleet | written | of_posts == set(FILES), "each row has been seen"


def write_secrets(folder: Path) -> None:
    Authority.create(folder / "certificates").issue("host", "h1")
    generate_wrapping_key(folder / "keys" / "wrapping")
    generate_signing_key(folder / "keys" / "signing", folder / "keys" / "verify")


async def write_launchers_files(data: Path) -> None:
    """As `snapline up` does in a folder that was there before."""
    os.close(lock(data))
    write_plan(data, DetachedPlan("ssh", FleetPlan("f", "m:f", str(data), 1, {})))
    write_address(data, "127.0.0.1:1")
    request_hosts(data, 1)
    start_in_background(["version"], data, 0.0).wait()
    await Child.start("x", ["/bin/true"], log_path=data / LOGS_FOLDER / "x.log").wait()


async def look_at_a_post(patch: pytest.MonkeyPatch) -> tuple[set[str], dict[str, str]]:
    """While it runs; the path of its socket has to be short."""
    with tempfile.TemporaryDirectory() as folder:
        patch.setattr(launch_agent, "MEMORY", Path(folder) / "memory")
        launch_agent.MEMORY.mkdir()
        running = launch_agent.LaunchAgent(launch_agent.runtime_folder("key"), Path(folder))
        serving = asyncio.create_task(running.serve(launch_agent.IDLE_S))
        while not serving.done() and not list(launch_agent.MEMORY.rglob(launch_agent.SOCKET)):
            await asyncio.sleep(0.01)
        running._write_keys("h1", {"h1.key": b"secret"})
        found = look(Path(folder))
        running.end()
        await serving
    return found


async def write_what_is_taken_out(world: World, folder: Path) -> None:
    """Where the user wants it."""
    admin = CoordinatorClient(world.places["coordinator"], world.security("admin"))
    write_backup(folder / "fleet.backup", *(await admin.backup()))
    await admin.close()
    store = Store.open(str(world.folder / DATA / STORE_FOLDER))
    read_summaries(store, folder / "cache" / "snapline" / "store.sqlite")
    write_file(folder / "page.html", "a page", is_forced=False)
    write_archive(store, store.epochs()[:1], folder / "snapshot.tar")
    write_file_of_answers(folder / "run.answers", b"")
    content = Content(bytes(8), None, lambda part: b"")
    write_npy(SavedArray(ArrayHead("int64", (1,)), content, is_tensor=False), folder / "field.npy")


# ---- who writes -------------------------------------------------------------------------------------------------------

WRITING = {
    "mkdir",
    "makedirs",
    "mkdtemp",
    "TemporaryDirectory",
    "touch",
    "write_bytes",
    "write_text",
    "sqlite3.connect",
}
"""Functions by which Python makes files; and `open`, by its mode or flags."""

ELSEWHERE = ("sim", "cli/sim", "examples", "deploy/conformance", "storage/conformance")
"""What writes reports of simulations; and programs for users, and for tests of theirs."""


def writes(path: Path) -> bool:
    """Does the code of this file make files or folders?"""
    text = path.read_text()
    if not re.search("|".join([*WRITING, "open"]), text):
        return False
    calls = [(last_name(node.func), node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    opened = [ast.unparse(call) for name, call in calls if name in ("open", "fdopen")]
    connected = [ast.unparse(call.func) for name, call in calls if name == "connect"]
    return bool(WRITING & {*(name for name, _ in calls), *connected}) or any(
        re.search(r"O_CREAT|O_TMPFILE|['\"][wax][b+]*['\"]", each) for each in opened
    )


def last_name(called: ast.expr) -> str:
    """Of what is called; "" if it has none."""
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def test_every_file_that_writes_has_a_row() -> None:
    rooms = [
        link
        for link in (ROOT / "src" / "snapline").iterdir()
        if link.suffix == ".py" or (link.is_dir() and link.name != "protos")
    ]
    files = [path for room in rooms for path in (room.resolve().rglob("*.py") if room.is_dir() else [room])]
    names = {path.relative_to(ROOT).as_posix().removeprefix("src/snapline/"): path for path in files}
    found = {name for name, path in names.items() if not name.startswith(ELSEWHERE) and writes(path)}
    assert found == {row.written_by for row in FILES.values() if row.written_by} | set(OTHER_WRITERS)
