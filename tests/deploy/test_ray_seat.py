"""What of the Ray launcher needs no Ray: seats, keys, plans."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from snapline.deploy import ray_fleet as ray_seat
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.plan import NODE, PRIVATE, FleetPlan, commands_of, own_files, read_certificates
from snapline.deploy.ray_cluster import RayCluster
from snapline.deploy.ray_fleet import NodeWorker, PrivateFiles, exit_from
from snapline.deploy.running_fleet import SINGLE_COORDINATOR
from snapline.errors import UsageError
from snapline.security.certificates import Authority


@pytest.fixture
def seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeWorker:
    monkeypatch.setattr(ray_seat, "node_here", lambda: ("node-7", "127.0.0.1"))
    return NodeWorker(str(tmp_path / "data"))


READ = "import sys; print(sys.argv[1], open(sys.argv[2]).read(), sys.argv[2])"


async def test_a_seat_fills_in_its_node_its_interpreter_and_its_private_files(seat: NodeWorker) -> None:
    spec = ProcessSpec("h1", "host", "run", ("/elsewhere/python", "-c", READ, f"{NODE}:0", f"{PRIVATE}/own.key"))
    started = await seat.start(msgspec.msgpack.encode(spec), {"own.key": b"secret"})
    handle = msgspec.msgpack.decode(started, type=Handle)
    assert (handle.name, handle.instance, handle.where) == ("h1", "run", "node-7")
    ended = exit_from(await seat.watch(started))
    assert ended is not None and ended.code == 0
    address, content, path = ended.last_words.split()
    assert (address, content) == ("127.0.0.1:0", "secret")
    assert Path(path).read_bytes() == b"secret", "while the seat is there"
    await seat.close()
    assert not Path(path).exists()


def test_renewed_files_take_the_place_of_the_old_ones_as_a_whole() -> None:
    """A process keeps the paths that it was given, and may be reading an old file just then."""
    files = PrivateFiles()
    files.write({"own.crt": b"old" * 1000, "own.key": b"key"})
    before = files.path("own.crt")
    with before.open("rb") as reading:
        first = reading.read(10)
        files.write({"own.crt": b"new"})
        assert first + reading.read() == b"old" * 1000
    assert files.path("own.crt") == before and before.read_bytes() == b"new"
    assert files.path("own.key").read_bytes() == b"key"
    files.remove()


def test_keys_end_with_the_process_that_holds_them_however_it_ends(tmp_path: Path) -> None:
    held = "from snapline.deploy.ray_fleet import PrivateFiles; f = PrivateFiles(); f.write({'own.key': b'secret'}); "
    words = held + "print(f.path('own.key'), flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", words], stdin=pipe, stdout=pipe, cwd=tmp_path) as holder:
        assert holder.stdout is not None
        path = Path(holder.stdout.readline().decode().strip())
        assert path.read_bytes() == b"secret"
        holder.kill()
    assert not path.exists() and list(tmp_path.iterdir()) == []


async def test_a_coordinator_is_given_one_address(seat: NodeWorker) -> None:
    first = await seat.address()
    assert first.startswith("127.0.0.1:") and await seat.address() == first


async def test_a_seat_that_was_started_again_knows_nothing_of_a_process_before(seat: NodeWorker) -> None:
    """Ray starts an actor anew, with the same arguments: it must not take a word about an earlier run for one about its own."""
    old = msgspec.msgpack.encode(Handle("h1", "run-1", "node-3", 4711))
    for ended in (await seat.watch(old), await seat.stop(old, 0.0), await seat.status(old)):
        found = exit_from(ended)
        assert found is not None and found.code is None
    await seat.kill(old)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'snapline\[ray\]'"):
        RayCluster("fleet", "auto")


def test_nobody_gets_the_keys_of_another_and_nobody_that_of_the_authority(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    authority = Authority.create(folder)
    names = [("host", "h1"), ("host", "h2"), ("coordinator", "c1"), ("launcher", "launcher")]
    for role, name in names:
        authority.issue(role, name)
    read = read_certificates(folder, hosts=2, coordinators=1)
    assert "ca.key" not in read and "operator-operator.key" not in read
    keys = [own_files(read, role, name)["own.key"] for role, name in names]
    assert len(set(keys)) == len(names)
    assert own_files(read, "coordinator", SINGLE_COORDINATOR) == own_files(read, "coordinator", "c1")
    assert all((folder / "ca.key").read_bytes() not in own_files(read, role, name).values() for role, name in names)
    with pytest.raises(UsageError, match=r"host-h3.crt cannot be read: `snapline auth issue .* host h3` makes it"):
        read_certificates(folder, hosts=3, coordinators=1)


@pytest.mark.parametrize(
    ("is_tls", "is_insecure", "there", "not_there"),
    [
        (True, False, "--tls-key", "--insecure"),
        (False, True, "--insecure", "--tls-key"),
        (False, False, "--listen", "--insecure"),
    ],
)
def test_trust_is_what_was_said(*, is_tls: bool, is_insecure: bool, there: str, not_there: str) -> None:
    plan = FleetPlan("f", "a:b", "/data", 2, {"CPU": 1.0}, is_insecure=is_insecure)
    commands = commands_of(plan, is_tls=is_tls)
    for command in (commands.host("c:1", "h1", "run"), commands.coordinator("c:1", "c1", {})):
        assert there in command and not_there not in command
    assert f"{NODE}:0" in commands.host("c:1", "h1", "run")
