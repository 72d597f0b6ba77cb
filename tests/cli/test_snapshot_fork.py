"""`snapline snapshot fork`, through the real command: what it prints, its exit codes, and what other commands say of a fork."""

from pathlib import Path

import msgspec
import pytest
from tests.cli.conftest import locked
from tests.kit.command_line import Outcome, Run

from snapline.agent_runtime.message_encoding import encode_body
from snapline.cli.snapshot_transfer import parse_settings
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

MODULE = """
import msgspec
import snapline

class Till(msgspec.Struct):
    coins: int = 0
    names: dict[str, int] = {}

class Keeper(snapline.Agent):
    state: Till

def fleet(protocol="chandy-lamport"):
    agents = {"a": Keeper(Till()), "b": Keeper(Till())}
    return snapline.Fleet("tills", agents=agents, protocol=protocol)
"""


@pytest.fixture
def data_dir(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a local fleet with the snapshots 1 and 2 of agent a; its module lies in the current folder."""
    (folder / "till_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    store = Store.create(tmp_path / "parent" / "store")
    (tmp_path / "parent" / "coordinator").mkdir()
    for epoch in (1, 2):
        checkpoint = AgentCheckpoint(
            agent="a", kind="till_module:Keeper", epoch=epoch, state=encode_body({"coins": epoch, "names": {}}),
            state_type="Till", state_fields={"coins": "int", "names": "dict[str, int]"},
        )  # fmt: skip
        pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=[("a", encode_checkpoint(checkpoint))])
        lines = [
            agent_line(x, pack=0, kind="till_module:Keeper", host="h1", incarnation=1)
            for x in store.read_pack_index(pack)
        ]
        about = Metadata(
            epoch=epoch, fleet="tills", cluster=store.store_id, plan=1, protocol="chandy-lamport", config_hash="ab" * 32
        )
        store.publish(epoch, store.write_manifest(Manifest(about, lines, [pack])))
    return tmp_path / "parent"


def fork(run: Run, data_dir: Path, *more: str | Path, snapshot: str = "latest", to: str = "forked") -> Outcome:
    place = data_dir.with_name(to)
    return run("snapshot", "fork", snapshot, "--data-dir", data_dir, "--to", place, "--name", "what-if", *more)


CODE = ("--fleet", "till_module:fleet")


def test_a_fork_is_made_and_told(run: Run, data_dir: Path) -> None:
    done = fork(run, data_dir, *CODE, "--set", "a.coins=7", "--set", 'a.names["x.y"]=1', snapshot="1")
    assert (done.code, done.err) == (0, "")
    parent, made = Store.open(data_dir / "store"), Store.open(data_dir.with_name("forked") / "store")
    assert done.json == {
        "apiVersion": "snapline/v1", "kind": "Fork", "data_dir": str(data_dir.with_name("forked")), "name": "what-if",
        "store": made.location, "cluster": made.store_id, "parent": parent.store_id, "parent_name": "tills", "epoch": 1,
        "root": made.read_ref(1), "agents": 1, "messages": 0, "inputs_copied": 0, "inputs_dropped": 0, "effects_refused": 0,
        "changed": ["a.coins", 'a.names["x.y"]'], "not_begun": ["b"], "is_live": False,
            "answers": 0, "lost_batches": 0, "dependencies": [],
    }  # fmt: skip
    shown = run("snapshot", "show", "--store", data_dir.with_name("forked") / "store").json
    assert shown["agents"][0]["state"] == {"coins": 7, "names": {"x.y": 1}}
    assert shown["fork"] == {
        "name": "what-if", "parent": parent.store_id, "parent_name": "tills", "epoch": 1, "is_live": False
    }  # fmt: skip
    assert parent.verify().findings == [] and parent.epochs() == [1, 2]


def test_in_words(run: Run, data_dir: Path) -> None:
    done = fork(run, data_dir, "-o", "table", "--live")
    place = data_dir.with_name("forked")
    assert done.out == f"what-if: fork of tills, epoch 2\n1 agent, 0 messages in transit, in {place}\n"
    listed = run("snapshot", "list", "--store", place / "store", "-o", "table").out
    assert listed.startswith("what-if: fork of tills, epoch 2\nEPOCH")
    assert (
        "fork      what-if: fork of tills, epoch 2"
        in run("snapshot", "show", "--store", place / "store", "-o", "table").out
    )
    shadow = fork(run, data_dir, "-o", "table", *CODE, "--set", "a.coins=7", to="shadow").out.splitlines()
    assert shadow[0] == "what-if: fork of tills, epoch 2; effects are refused"
    assert shadow[2:] == ["set a.coins", "not in the snapshot, and so not begun: b"]


def test_a_fleet_that_is_no_fork_says_nothing_of_forks(run: Run, data_dir: Path) -> None:
    assert "fork" not in run("snapshot", "list", "--store", data_dir / "store").json
    assert "fork" not in run("snapshot", "show", "--store", data_dir / "store").json


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "a.coins=7"), "name the fleet's classes with --fleet MODULE:FLEET"),
        ((*CODE, "--set", "a.coins"), "--set 'a.coins' is not AGENT.FIELD=JSON"),
        ((*CODE, "--set", "a.coins=x"), "--set a.coins=x is no JSON"),
        ((*CODE, "--set", 'a.coins="x"'), 'a.coins cannot be "x": it is declared as int'),
        ((*CODE, "--set", "a.coin=1"), "Till has no 'coin', but coins, names"),
        ((*CODE, "--set", "b.coins=1"), "'b.coins' names no field of an agent in the snapshot"),
        (("--fleet", "till_module:nothing"), "has no 'nothing'"),
        (("--arg", "protocol=bcs"), "give --fleet MODULE:FLEET"),
        ((*CODE, "--arg", "protocol=bcs"), "a fork keeps it"),
        (("--name", "a b"), "'a b' is no valid fork id"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence_with_code_2_and_nothing_is_written(
    more: tuple[str, ...], words: str, run: Run, data_dir: Path
) -> None:
    done = fork(run, data_dir, *more)
    assert (done.code, done.out) == (2, "") and words in done.err and done.err.count("\n") == 1
    assert not (data_dir.with_name("forked") / "store").exists()


def test_a_snapshot_that_is_not_there_ends_as_in_other_commands(run: Run, data_dir: Path) -> None:
    done = fork(run, data_dir, snapshot="9")
    assert done.code == run("snapshot", "show", "9", "--store", data_dir / "store").code != 0
    assert "no snapshot '9'" in done.err


def test_an_unfinished_fork_is_refused_everywhere_and_made_again(run: Run, data_dir: Path) -> None:
    assert fork(run, data_dir).code == 0
    store = data_dir.with_name("forked") / "store"
    (store / "snapline-store").unlink()
    for done in (run("snapshot", "list", "--store", store), fork(run, data_dir)):
        assert done.code != 0 and "make it again with `snapline snapshot fork --again`" in done.err
    assert fork(run, data_dir, "--again").code == 0
    assert run("snapshot", "verify", "--store", store).code == 0
    done = fork(run, data_dir, "--again")
    assert done.code == 2 and "there is a store at" in done.err


def test_folders_of_fleets_and_of_forks_in_the_making_are_refused(run: Run, data_dir: Path) -> None:
    done = fork(run, data_dir, to="parent")
    assert done.code == 2 and "is the folder of a fleet: give the fork another one" in done.err
    place = data_dir.with_name("forked")
    place.mkdir()
    with locked(place / "launcher.lock"):
        assert fork(run, data_dir).code == 11
    assert fork(run, data_dir).code == 0


def test_another_store_may_be_given_for_it(run: Run, data_dir: Path, tmp_path: Path) -> None:
    done = fork(run, data_dir, "--to-store", tmp_path / "elsewhere")
    assert done.code == 0 and Store.open(tmp_path / "elsewhere").epochs() == [2]


def test_settings_are_parsed_once_each() -> None:
    assert parse_settings(['a.b="x=y"', "c.d=[1]"]) == {"a.b": b'"x=y"', "c.d": b"[1]"}
    with pytest.raises(UsageError, match="given twice"):
        parse_settings(["a.b=1", "a.b=2"])
    assert msgspec.json.decode(parse_settings(["a.b= 3"])["a.b"]) == 3
