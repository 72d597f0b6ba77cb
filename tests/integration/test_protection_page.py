"""docs/protection.md: a fleet runs with the page's keys, which are then rotated in its four steps; nothing is read without them."""

import json
import re
import stat
from pathlib import Path

import pytest
from tests.kit.command_line import Outcome, invoke
from tests.kit.shown_page import PIP, shown

import snapline
from snapline.cli.main import app

pytestmark = pytest.mark.timeout(180)


def test_a_fleet_with_the_keys_of_the_page_and_their_rotation(tmp_path: Path) -> None:
    with shown("docs/protection.md", tmp_path, {**PIP}) as page:
        page.run("keys generate")
        check_files(tmp_path)
        check_store(tmp_path)
        steps = dict(re.findall(r"^(\d)\. .*?`([^`]*)`", page.text.partition("## Key rotation")[2], re.MULTILINE))
        show = re.findall(r"`(snapline keys show [^`]*)`", page.text)[0]
        assert page.shell(steps["1"])[0] == 0
        assert (
            page.shell(f"{steps['2']} snapline run snapline.examples.hello:fleet --hosts 1 --data-dir run -q")[0] == 0
        )
        assert page.shell(steps["3"])[0] == 0
        new = (tmp_path / "new.key").read_text().split()[1]
        code, out, err = page.shell(f"{steps['4']} {show} -o json")
        assert code == 0 and {key["wrapped_by"] for key in json.loads("".join(out))["keys"]} == {new}, err
        assert read(tmp_path, store="store.key").code == 2, "the old file opens nothing"
        assert read(tmp_path, store="new.key").code == 0


def read(folder: Path, *, store: str = "store.key", verify: str = "ref.key.pub") -> Outcome:
    """Show the newest snapshot with these key files; "": the variable is empty."""
    variables = {"SNAPLINE_STORE_KEY": store, "SNAPLINE_VERIFY_KEY": verify}
    environment = {name: str(folder / file) if file else "" for name, file in variables.items()}
    return invoke(app, "snapshot", "show", "--store", folder / "run" / "store", environment=environment)


def check_files(folder: Path) -> None:
    """Secret files are their owner's, and a file that others can read is rejected."""
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("store.key", "ref.key")}
    assert modes == dict.fromkeys(modes, 0o600) and (folder / "ref.key.pub").exists()
    (folder / "store.key").chmod(0o644)
    refused = read(folder)
    assert refused.code == 2 and "store.key" in refused.err
    (folder / "store.key").chmod(0o600)


def check_store(folder: Path) -> None:
    """Only with the right keys can it be read."""
    right, empty = read(folder), read(folder, store="")
    assert right.code == 0, right.err
    assert empty.code == 2 and "names no file" in empty.err
    plain = invoke(app, "snapshot", "show", "--store", folder / "run" / "store")
    assert plain.code == 2 and "is encrypted" in plain.err
    assert invoke(app, "keys", "generate", folder / "other.key").code == 0
    assert invoke(app, "keys", "generate", folder / "other-ref.key", "--signing").code == 0
    wrong, forged = read(folder, store="other.key"), read(folder, verify="other-ref.key.pub")
    assert wrong.code == forged.code == 2, (wrong.err, forged.err)
    opened = snapline.open_store(
        folder / "run" / "store", store_keys=folder / "store.key", verify_keys=folder / "ref.key.pub"
    )
    assert opened.snapshot("latest").agents
