"""A small store with two snapshots, and a way to run the command line."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.kit.command_line import Outcome, Run, invoke

from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.cli.main import app
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    DeadLetterRecord,
    InTransitMessage,
    ParkedMessage,
    SavedTimer,
    encode_checkpoint,
)
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store


class Coins(msgspec.Struct, frozen=True):
    amount: int


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    made = tmp_path / "cwd"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def run(folder: Path) -> Run:
    """Run `snapline …` inside this process: quick, and the same code from the arguments to the exit code."""

    def run_command(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Outcome:
        return invoke(app, *arguments, environment=environment)

    return run_command


@pytest.fixture
def run_process(folder: Path) -> Run:
    """Run `snapline …` as a user does, in a process of its own."""

    def run_command(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "snapline", *map(str, arguments)],
            check=False,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run_command


def checkpoint_of(agent: str, epoch: int) -> AgentCheckpoint:
    other = "bank-2" if agent == "bank-1" else "bank-1"
    return AgentCheckpoint(
        agent=agent,
        kind="tests:Bank",
        epoch=epoch,
        number=epoch,
        is_started=True,
        state_type="BankState",
        state=encode_body({"balance": 100 * epoch, "owner": agent}),
        sent={other: 7},
        received={other: 4},
        in_transit={other: [InTransitMessage(5, epoch - 1, encode_message(Coins(30)))]} if agent == "bank-1" else {},
        outbox=[ParkedMessage(other, encode_message(Coins(1)))] if agent == "bank-2" else [],
        timers=[SavedTimer("tick", 1_500_000_000, encode_message(Coins(2)))] if agent == "bank-2" else [],
        dead_letters=[DeadLetterRecord(other, encode_message(Coins(-1)), "ValueError: debt", 3, 0)]
        if agent == "bank-2"
        else [],
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Epochs 1 and 2 of agents bank-1 and bank-2 on hosts h1 and h2."""
    made = Store.create(tmp_path / "store")
    for epoch in (1, 2):
        packs = [
            made.write_pack(
                writer=f"h{n}.1",
                epoch=epoch,
                blobs=[(f"bank-{n}", encode_checkpoint(checkpoint_of(f"bank-{n}", epoch)))],
            )
            for n in (1, 2)
        ]
        lines = [
            agent_line(entry, pack=number, kind="tests:Bank", host=f"h{number + 1}", incarnation=1)
            for number, pack in enumerate(packs)
            for entry in made.read_pack_index(pack)
        ]
        metadata = Metadata(
            epoch=epoch,
            created=f"2025-01-0{epoch}T00:00:00Z",
            fleet="bank",
            trigger="period",
            hosts={"h1": 1, "h2": 1},
            channel_state_messages=1,
        )
        made.publish(epoch, made.write_manifest(Manifest(metadata, lines, packs)))
    return tmp_path / "store"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def epochs_of(store: Path) -> list[int]:
    return Store.open(store).epochs()
