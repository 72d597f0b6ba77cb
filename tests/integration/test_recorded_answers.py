"""Forks and new fleets on the recorded answers of a fleet: they ask nothing that is recorded, also when hosts are killed, and end the same."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.fleets import writers
from tests.integration.processes import Outcome, snapline
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.storage.store.store import Store

pytestmark = pytest.mark.timeout(240)

FLEET = "tests.integration.fleets.writers:fleet"
TOPICS, MODEL_CALLS = 66, 198


def lines(folder: Path, file: str) -> list[str]:
    path = folder / file
    return path.read_text().splitlines() if path.exists() else []


def texts(data_dir: Path, folder: Path) -> dict[str, list[str]]:
    agents: Any = open_store(data_dir / "store", fleet=writers.fleet(str(folder))).snapshot("latest").agents
    return {name: agents[name].state.texts for name in ("writer", "critic")}


async def run(data_dir: Path, folder: Path, *, kills: int = 0, recovery: str = "global") -> int:
    """Run the fleet in `data_dir` to its end; returns the epoch of a snapshot from before its first question, unless it is a fork."""
    folder.mkdir(exist_ok=True)
    async with running(data_dir, FLEET, {"folder": str(folder), "recovery": recovery}, hosts=2) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        created = await fleet.client.create_snapshot()
        if kills:
            await fleet.end_killed(kills, random.Random(kills), 0.2)
        else:
            await fleet.end()
    return created.epoch


async def fork(parent: Path, epoch: int, to: Path, *more: str) -> Outcome:
    return await snapline(
        "snapshot", "fork", str(epoch), "--store", parent / "store", "--to", to, "--name", to.name, *more
    )


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_a_fork_of_a_run_of_198_model_calls_makes_no_call_and_ends_the_same(
    tmp_path: Path, recovery: str
) -> None:
    parent, folder, forked = tmp_path / "parent", tmp_path / "notes", tmp_path / "forked"
    epoch = await run(parent, folder, recovery=recovery)
    assert (len(lines(folder, "calls")), len(lines(folder, "published"))) == (MODEL_CALLS, TOPICS)
    is_swept = bool(Store.open(parent / "store").answer_files())
    assert is_swept or recovery == "local", "the fleet has deleted batches, and kept their answers"
    made = await fork(parent, epoch, forked, "--answers", "only")
    assert (made.code, made.json["answers"], made.json["lost_batches"]) == (0, MODEL_CALLS + TOPICS, 0)
    await run(forked, folder, kills=3, recovery=recovery)
    assert (len(lines(folder, "calls")), len(lines(folder, "published"))) == (MODEL_CALLS, TOPICS)
    assert texts(forked, folder) == texts(parent, folder)
    assert (await snapline("snapshot", "verify", "--store", forked / "store")).code == 0
    again = tmp_path / "again"
    made = await fork(forked, epoch, again, "--answers", "only")
    assert made.json["answers"] == MODEL_CALLS + TOPICS, "the fork's answers are recorded as its parent's were"


async def test_with_one_prompt_changed_a_fork_asks_only_from_there_on(tmp_path: Path) -> None:
    parent, folder = tmp_path / "parent", tmp_path / "notes"
    epoch = await run(parent, folder)
    code = ["--fleet", FLEET, "--arg", f"folder={folder}", "--set", 'critic.prompt="Why not"']
    forked = tmp_path / "live"
    assert (await fork(parent, epoch, forked, "--answers", "parent", "--live", *code)).code == 0
    await run(forked, folder)
    asked = lines(folder, "calls")[MODEL_CALLS:]
    assert asked == ["critic: Why not"] * TOPICS
    assert len(lines(folder, "published")) == 2 * TOPICS, "other texts are other effects"

    forked = tmp_path / "only"
    assert (await fork(parent, epoch, forked, "--answers", "only", *code)).code == 0
    async with running(forked, FLEET, {"folder": str(folder)}, hosts=2) as fleet:
        await fleet.until(lambda now: sum(host.dead_letters for host in now.hosts) >= TOPICS)
        assert "no answer is recorded for what the agent asks" in fleet.whereabouts()
    assert len(lines(folder, "calls")) == MODEL_CALLS + TOPICS
    listed = await snapline("agent", "dead-letters", "list", "--store", forked / "store")
    assert "step 'judge' failed: NoRecordedAnswer" in json.dumps(listed.json)


async def test_several_forks_of_a_snapshot_are_compared_with_each_other(tmp_path: Path) -> None:
    parent, folder, tries = tmp_path / "parent", tmp_path / "notes", tmp_path / "tries"
    epoch = await run(parent, folder)
    code = ["--fleet", FLEET, "--arg", f"folder={folder}", "--set", 'critic.prompt="Why not"', "--live"]
    made = await fork(parent, epoch, tries, "--answers", "parent", "--times", "2", *code)
    forks = msgspec.convert(made.json["forks"], list[dict[str, Any]])
    assert [(x["name"], x["data_dir"]) for x in forks] == [(f"tries-{n}", str(tries / str(n))) for n in (1, 2)]
    for number in (1, 2):
        await run(tries / str(number), folder)
    stores = [parent / "store", tries / "1" / "store", tries / "2" / "store"]
    compared = (await snapline("answers", "compare", *stores)).json
    fleets = msgspec.convert(compared["fleets"], list[dict[str, Any]])
    written = MODEL_CALLS - TOPICS
    assert [(x["answers"], x["recorded"]) for x in fleets] == [
        *((MODEL_CALLS + TOPICS, 0), (MODEL_CALLS + TOPICS, written), (MODEL_CALLS + TOPICS, written))
    ]
    assert compared["same"] == written, "what the writer asked"
    different = msgspec.convert(compared["different"], list[dict[str, Any]])
    assert {each["name"] for each in different} == {"judge", "publish"}
    judged = [each["results"] for each in different if each["name"] == "judge"]
    assert sum(parents is not None for parents, _, _ in judged) == TOPICS
    assert sum(parents is None and one != other for parents, one, other in judged) >= TOPICS


async def test_damaged_answers_condemn_no_snapshot(tmp_path: Path) -> None:
    parent, folder, forked = tmp_path / "parent", tmp_path / "notes", tmp_path / "forked"
    epoch = await run(parent, folder)
    assert (await fork(parent, epoch, forked, "--answers", "only")).code == 0
    answers = forked / "store" / "answers" / "recorded"
    whole = answers.read_bytes()
    answers.write_bytes(whole[:-1] + b"x")
    verified = await snapline("snapshot", "verify", "--store", forked / "store")
    assert verified.code == 6 and "answers/recorded" in verified.out
    async with running(forked, FLEET, {"folder": str(folder)}, hosts=1) as fleet:
        await fleet.until(lambda now: "answers/recorded" in fleet.whereabouts())
        answers.write_bytes(whole)
        await fleet.end()
    assert texts(forked, folder) == texts(parent, folder)


async def test_a_new_fleet_runs_on_exported_answers(tmp_path: Path) -> None:
    parent, folder, file = tmp_path / "parent", tmp_path / "notes", tmp_path / "writers.answers"
    await run(parent, folder)
    store = ["--store", str(parent / "store")]
    exported = await snapline("answers", "export", *store, file)
    # Answers that all snapshots cover are gone: the first one was taken before the first question.
    assert (exported.code, exported.json["answers"], exported.json["lost_batches"]) == (0, MODEL_CALLS + TOPICS, 0)
    assert (await snapline("answers", "export", *store, file)).code == 2, "it exists"
    assert file.stat().st_mode & 0o077 == 0, "it is as private as the store"
    shown = (await snapline("answers", "show", file)).json["answers"]
    assert {row["name"] for row in msgspec.convert(shown, list[dict[str, Any]])} == {"write", "judge", "publish"}
    arguments: list[str | Path] = ["--hosts", "2", "--arg", f"folder={folder}", "--data-dir", tmp_path / "new"]
    done = await snapline("run", FLEET, *arguments, "--answers", file, "--answers-only", limit_s=120)
    assert done.code == 0, done.err
    assert (len(lines(folder, "calls")), len(lines(folder, "published"))) == (MODEL_CALLS, TOPICS)
    assert texts(tmp_path / "new", folder) == texts(parent, folder)
    refused = await snapline("run", FLEET, *arguments, "--answers", file)
    assert refused.code == 2 and "holds snapshots" in refused.err
