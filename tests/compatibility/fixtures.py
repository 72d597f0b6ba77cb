"""Stored formats of releases. `python -m tests.compatibility.fixtures` makes those of the present code, in `tests/compatibility/VERSION/`.

Run it once for each release, and keep what earlier ones wrote: `test_stored_formats.py` reads all of them. Each `*.tar.xz` is the folder of a fleet
whose processes were killed while they worked: store, logs of inputs, steps and commits, the coordinator's Raft logs, keys if it is protected, and
`expected.json`, what the release itself read from it. `wire.binpb` holds the descriptors of all messages between processes, `promises.json` the
names that users rely on.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from tests.compatibility import promises
from tests.compatibility.tills import TOKENS

import snapline
from snapline.protos.v1 import agents_pb2, coordinator_pb2, inputs_pb2, link_pb2, operation_pb2, raft_pb2

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

FLEET = "tests.compatibility.tills:fleet"

MODULES = (agents_pb2, coordinator_pb2, inputs_pb2, link_pb2, operation_pb2, raft_pb2)

SOURCES = Path(tempfile.gettempdir()) / "snapline-sources"
"""Link to the checkout while a fixture is made: tracebacks of dead letters hold paths."""

COMMAND_S = 120

GATHER_S = 4.0
"""Long enough for several snapshots, and tokens in transit in one of them."""

KEPT = ("coordinator", "coordinators", "store")
"""What of a fleet's folder goes into a fixture; the rest belongs to processes."""


class Kind(NamedTuple):
    """A fleet whose folder is a fixture. `is_questioned`: its answers to `OF_FLEET` are stored too."""

    protocol: str
    coordinators: int = 1
    recovery: str = "global"
    is_protected: bool = False
    is_questioned: bool = False


KINDS = {
    "protected": Kind("chandy-lamport", is_protected=True),
    "replicated": Kind("uncoordinated", coordinators=3, is_questioned=True),
    "local": Kind("chandy-lamport", recovery="local"),
}

OF_STORE = {
    "list": ("snapshot", "list"),
    "show": ("snapshot", "show", "latest"),
    "effects": ("effect", "list"),
}
"""Questions to a store, by the names of their answers in `expected.json`. A later release gives the same answers."""

OF_FLEET = (
    ("status",),
    ("agent", "list"),
    ("agent", "describe", "treasurer"),
    ("agent", "dead-letters", "list"),
    ("host", "list"),
    ("coordinator", "members"),
    ("recovery", "line"),
    ("snapshot", "history"),
    ("effect", "list"),
)
"""Questions to the running fleet. Answers of a later release have the same keys, with values of the same types."""


def variables(folder: Path, *, release: str, sources: Path) -> dict[str, str]:
    """Return the environment of a fixture's processes and commands. Keys are those that lie in the folder."""
    keys = {"SNAPLINE_STORE_KEY": "store.key", "SNAPLINE_SIGNING_KEY": "ref.key", "SNAPLINE_VERIFY_KEY": "ref.key.pub"}
    return {
        "TILLS_FOLDER": str(folder),
        "TILLS_RELEASE": release,
        "PYTHONPATH": f"{sources / 'src'}:{sources}",
        **{name: str(folder / file) for name, file in keys.items() if (folder / file).exists()},
    }


def command(*words: object, environment: Mapping[str, str]) -> Any:
    """Return the JSON of a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "snapline", *map(str, words), "-o", "json"],
        env={**os.environ, **environment},
        cwd="/",  # else modules come from there, and not from `PYTHONPATH`
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def up(folder: Path, kind: Kind, environment: Mapping[str, str]) -> None:
    """Start the fleet of a folder, or continue it."""
    made = ("--arg", f"protocol={kind.protocol}", "--arg", f"recovery={kind.recovery}")
    count = ("--hosts", 2, "--coordinators", kind.coordinators)
    command("up", FLEET, *count, *made, "--data-dir", folder, environment=environment)


def deposit(folder: Path, key: str, amount: int, environment: Mapping[str, str]) -> Any:
    """Give the first till an input."""
    words = ("agent", "send", "till-0", "Deposit", json.dumps({"amount": amount}), "--key", key)
    return command(*words, "--data-dir", folder, environment=environment)


def ask_fleet(folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the answers to `OF_FLEET`, by the words of their commands."""
    return {" ".join(words): command(*words, "--data-dir", folder, environment=environment) for words in OF_FLEET}


def begin_turns(folder: Path, environment: Mapping[str, str]) -> None:
    """Begin the turns of auditor and treasurer, and wait until the second payment is open."""
    sends = {"auditor": "Report", "treasurer": "Settle", "courier": "Forward"}
    for agent, message in sends.items():
        command("agent", "send", agent, message, "{}", "--data-dir", folder, environment=environment)
    payments = folder / "payments"
    end = time.monotonic() + COMMAND_S
    while not payments.exists() or "pay-2" not in payments.read_text():
        assert time.monotonic() < end, "the second payment does not begin"
        time.sleep(0.1)


def kill(folder: Path) -> None:
    """Kill all processes of a fleet, its keeper first."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if int(process.name) != os.getpid() and any(word.startswith(str(folder)) for word in words):
                found.append(("host" in words or "coordinator" in words, int(process.name)))
    for _, pid in sorted(found):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def make(name: str, kind: Kind, target: Path) -> None:
    """Make one fixture."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if kind.is_protected:
            command("keys", "generate", folder / "store.key", environment={})
            command("keys", "generate", folder / "ref.key", "--signing", environment={})
        environment = variables(folder, release=snapline.__version__, sources=SOURCES)
        up(folder, kind, environment)
        deposit(folder, "deposit-1", 7, environment)
        deposit(folder, "deposit-2", -1, environment)
        begin_turns(folder, environment)
        deposit(folder, "deposit-3", 11, environment)  # its note waits for the end of the auditor's turn
        answers = ask_fleet(folder, environment) if kind.is_questioned else {}
        time.sleep(GATHER_S)
        deposit(folder, "deposit-4", 5, environment)  # in the log of inputs, and in no snapshot
        passed = command("agent", "ask", "till-0", "Count", "{}", "--data-dir", folder, environment=environment)
        kill(folder)
        store = ("--store", folder / "store")
        expected = {
            "tokens": 3 * TOKENS + 7 + 11 + 5,
            "passed": passed["message"]["fields"]["times"],
            "answers": answers,
            **{name: command(*words, *store, environment=environment) for name, words in OF_STORE.items()},
        }
        (folder / "expected.json").write_text(json.dumps(expected, indent=1))
        for path in folder.iterdir():
            if path.is_dir() and path.name not in KEPT:
                shutil.rmtree(path)
            elif path.suffix == ".log" or path.name.startswith(("launcher", "hosts-wanted")):
                path.unlink()
        with tarfile.open(target / f"{name}.tar.xz", "w:xz") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name)


def wire() -> FileDescriptorSet:
    """Return the descriptors of all messages and services between processes."""
    files = []
    for module in MODULES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return FileDescriptorSet(file=files)


def main() -> None:
    target = HERE / snapline.__version__
    target.mkdir(exist_ok=True)
    (target / "wire.binpb").write_bytes(wire().SerializeToString(deterministic=True))
    promises.write(target / "promises.json")
    SOURCES.symlink_to(ROOT)
    try:
        for name, kind in KINDS.items():
            make(name, kind, target)
    finally:
        SOURCES.unlink()
    for path in sorted(target.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
