"""One flipped byte anywhere in a store is found, named, and never used (G11); the fleet goes back to another epoch."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cuts import check_consistent, store_of
from tests.integration.fleets import paced_bank
from tests.integration.killing import HOSTS, TOKENS
from tests.integration.processes import LIMIT_S, nothing_left_running
from tests.integration.running import running
from typer.testing import CliRunner

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.cli.main import app
from snapline.errors import DamagedDataError
from snapline.examples.bank import tokens_in
from snapline.storage.disk import layout

EPOCHS = 5
POSITIONS = 3
"""Random positions in each file looked at, beside the first and the last byte."""

POSITIONS_SLOW = 20

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of a bank of which everything was killed at work; copy it before you change anything."""
    data_dir = tmp_path_factory.mktemp("stopped") / "data"
    with nothing_left_running():
        asyncio.run(_work_and_die(data_dir))
    return data_dir


def arguments(stopped: Path) -> dict[str, str]:
    """Snapshots by hand: so it is known which one is the newest, also to the coordinator.

    The place of the file `stop` is part of the saved states, hence the same for all copies.
    """
    return {"stop": str(stopped.with_name("stop")), "period": "0"}


async def _work_and_die(data_dir: Path) -> None:
    async with running(data_dir, "paced_bank:fleet", arguments(data_dir), hosts=HOSTS) as bank:
        await bank.until(lambda now: now.phase == "running")
        for epoch in range(1, EPOCHS + 1):
            await asyncio.sleep(0.05)
            assert (await bank.client.create_snapshot()).is_complete
            while store_of(data_dir).epochs() != list(range(1, epoch + 1)):  # the log knows it, the store not yet
                await asyncio.sleep(0.02)
        for name in ("coordinator", *bank.local.hosts):
            bank.local.kill(name, is_kept_down=True)


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << position % 8
    path.chmod(0o644)
    path.write_bytes(data)


def damages(store: Path, *, files_per_kind: int | None, positions: int, seed: int) -> Iterator[tuple[Path, int]]:
    """File and position: of each kind of file so many (None: all), in each the first, the last and random bytes."""
    chosen = random.Random(seed)
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        kinds.setdefault(path.relative_to(store).parts[0], []).append(path)
    assert {layout.IDENTITY, layout.PACKS, layout.MANIFESTS, layout.REFS} <= set(kinds)
    for paths in kinds.values():
        for path in paths if files_per_kind is None else chosen.sample(paths, min(files_per_kind, len(paths))):
            size = path.stat().st_size
            for position in sorted({0, size - 1, *(chosen.randrange(size) for _ in range(positions))}):
                yield path, position


def check_all_found(store: Path, *, files_per_kind: int | None, positions: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for path, position in damages(store, files_per_kind=files_per_kind, positions=positions, seed=seed):
        name = path.relative_to(store).as_posix()
        flip(path, position)
        done = CliRunner().invoke(app, ["snapshot", "verify", "--store", str(store)])
        where = f"seed {seed}, byte {position} of {name}: {done.stderr}"
        assert done.exit_code == 6, where
        epoch = epoch_of(store, name)
        found = f"{name}{'' if epoch is None else f' (epoch {epoch})'} is damaged: "
        assert found in done.stderr, where
        flip(path, position)
    done = CliRunner().invoke(app, ["snapshot", "verify", "--store", str(store)])
    assert done.exit_code == 0, done.stderr


def epoch_of(store: Path, name: str) -> int | None:
    """The epoch that a file belongs to, read from names and other files; None for one that has none."""
    pack, manifest = layout.parse_pack_path(name), layout.parse_manifest_path(name)
    if manifest is not None:
        root = manifest[0]
        refs = {int(path.name): path.read_bytes() for path in (store / layout.EPOCH_REFS).iterdir()}
        return next((epoch for epoch, ref in refs.items() if root.encode() in ref), None)
    return pack.epoch if pack is not None else layout.parse_ref_path(name)


@pytest.mark.promise
def test_a_flipped_byte_is_found_with_its_file_and_epoch(stopped: Path, data_dir: Path) -> None:
    shutil.copytree(stopped, data_dir)
    check_all_found(data_dir / "store", files_per_kind=1, positions=POSITIONS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_flipped_byte_is_found_in_every_file(stopped: Path, data_dir: Path) -> None:
    shutil.copytree(stopped, data_dir)
    check_all_found(data_dir / "store", files_per_kind=None, positions=POSITIONS_SLOW)


def files_of_epoch(store: Path, epoch: int) -> dict[str, Path]:
    """By kind, a file that the epoch needs."""
    opened = store_of(store.parent)
    root = opened.read_ref(epoch)
    pack = opened.read_manifest(root).packs[0].path
    paths = {"pack": pack, "manifest": layout.manifest_path(root), "ref": layout.ref_path(epoch)}
    return {kind: store / path for kind, path in paths.items()}


async def check_recovers_without(data_dir: Path, damaged: dict[int, Path], given: dict[str, str]) -> None:
    """Run again: the epochs in `damaged` are passed over with a warning, and every later cut holds every token."""
    line = max(epoch for epoch in store_of(data_dir).epochs() if epoch not in damaged)
    stop = Path(given["stop"])
    stop.unlink(missing_ok=True)
    async with running(data_dir, "paced_bank:fleet", given, hosts=HOSTS) as bank:
        recovery = await bank.until_recovered()
        assert recovery["line_epoch"] == line
        history = await bank.client.recovery_history()
        condemned = {row["epoch"]: row["path"] for row in _rows(history["condemned_epochs"])}
        store = data_dir / "store"
        assert condemned == {epoch: path.relative_to(store).as_posix() for epoch, path in damaged.items()}
        assert (await bank.client.create_snapshot()).is_complete
        stop.touch()
        await bank.end_by_hand()
    log = (data_dir / "logs" / "coordinator.log").read_text()
    for path in damaged.values():
        assert path.name in "\n".join(row for row in log.splitlines() if " WARNING " in row or " ERROR " in row)
    fleet = paced_bank.fleet(**given)
    for epoch in store_of(data_dir).epochs():
        if epoch not in damaged:
            check_consistent(store_of(data_dir), epoch)
            assert tokens_in(load_cut(store_of(data_dir), epoch, fleet)) == TOKENS


def _rows(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


@pytest.mark.promise
async def test_a_fleet_goes_back_to_the_newest_epoch_that_is_whole(stopped: Path, data_dir: Path) -> None:
    """The newest epoch has a damaged pack, the one before a damaged manifest, the one before that a damaged ref."""
    shutil.copytree(stopped, data_dir)
    newest = store_of(data_dir).epochs()[-3:]
    damaged = {
        epoch: files_of_epoch(data_dir / "store", epoch)[kind]
        for epoch, kind in zip(newest, ("ref", "manifest", "pack"), strict=True)
    }
    for path in damaged.values():
        flip(path, path.stat().st_size // 2)
    await check_recovers_without(data_dir, damaged, arguments(stopped))


async def test_a_fleet_whose_store_has_lost_its_identity_ends_at_once(stopped: Path, data_dir: Path) -> None:
    """Nothing can tell any more whether this is the store the log belongs to: trying again would not help."""
    shutil.copytree(stopped, data_dir)
    flip(data_dir / "store" / layout.IDENTITY, 40)
    async with running(data_dir, "paced_bank:fleet", arguments(stopped), hosts=HOSTS) as bank:
        with pytest.raises(DamagedDataError, match=f"^{layout.IDENTITY} is damaged: "):
            await bank.local.wait(LIMIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pack", "manifest", "ref"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
async def test_a_fleet_goes_back_past_one_damaged_file(stopped: Path, data_dir: Path, kind: str, where: str) -> None:
    shutil.copytree(stopped, data_dir)
    epoch = store_of(data_dir).epochs()[-1]
    path = files_of_epoch(data_dir / "store", epoch)[kind]
    flip(path, {"first": 0, "middle": path.stat().st_size // 2, "last": path.stat().st_size - 1}[where])
    # A pack's header repeats what its index says; who restores does not read it, and the epoch is as good as ever.
    is_used = (kind, where) != ("pack", "first")
    await check_recovers_without(data_dir, {epoch: path} if is_used else {}, arguments(stopped))
