"""docs/security.md: the certificates and tokens of the page let in whom it says, in a fleet started as it shows."""

import json
import stat
from pathlib import Path

import pytest
from tests.kit.command_line import invoke
from tests.kit.shown_page import free_port, shown

from snapline.cli.main import app

pytestmark = pytest.mark.timeout(180)


def test_certificates_and_tokens_of_the_page_have_the_rights_that_it_says(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    address = f"127.0.0.1:{free_port()}"
    with shown("docs/security.md", tmp_path, {"127.0.0.1:7400": address}) as page:
        page.run("auth init")
        check_owners(page.text, secrets)
        page.run("coordinator run")
        check_strangers(address, tmp_path)
        (printed,) = [lines for lines in page.run("token create") if lines]
        token = next(line.split()[1] for line in printed if line.startswith("token"))
        file = tmp_path / "ada.token"
        file.touch(mode=0o644)
        file.write_text(token)
        use = page.commands("--auth-token")[0].text
        code, _, err = page.shell(use)
        assert code == 2 and "ada.token" in err, "a token file that others can read is rejected"
        file.chmod(0o600)
        page.run("--auth-token")
        code, _, err = page.shell(use)
        assert code == 2 and "it was revoked" in err, err
        page.run("snapline audit")
        check_log(json.loads("".join(page.shell("snapline audit $ADMIN -o json")[1])))
        for command in ("auth issue secrets host h3", "auth renew secrets"):
            assert page.shell(f"snapline {command}")[0] == 0
        assert (secrets / "host-h3.crt").exists()
        code, _, err = page.shell("snapline auth token list $ADMIN")
        assert code == 0, f"a renewed certificate is known: {err}"


def check_strangers(address: str, folder: Path) -> None:
    """Exit codes of who has no certificate, and of who has one of another authority."""
    plain = invoke(app, "status", "--coordinator", address)
    assert plain.code == 2, plain.err
    assert invoke(app, "auth", "init", folder / "others", "--tls-domain", "shop").code == 0
    own = folder / "others" / "viewer-viewer"
    files = ("--tls-cert", f"{own}.crt", "--tls-key", f"{own}.key", "--tls-ca", folder / "others" / "ca.crt")
    other = invoke(app, "status", "--coordinator", address, "--tls-domain", "shop", *files)
    assert other.code == 5, other.err


def check_log(log: dict[str, list[dict[str, object]]]) -> None:
    """Who has asked for what; a call with a token that is revoked has no name."""
    found = [
        (call["who"], call["role"], call["by"], call["call"]) for call in log["calls"] if call["outcome"] == "allowed"
    ]
    assert found == [
        ("admin", "admin", "certificate", "MakeToken"),
        ("ada", "operator", "token", "CreateSnapshot"),
        ("admin", "admin", "certificate", "RevokeToken"),
    ]


def check_owners(page: str, secrets: Path) -> None:
    """The table names every file that is made, and keys are their owner's alone."""
    made = {path.name for path in secrets.iterdir()}
    assert {path.name for path in secrets.glob("*.key")} == {
        path.name for path in secrets.iterdir() if stat.S_IMODE(path.stat().st_mode) == 0o600
    }
    table = page.partition("| file | owner |")[2].partition("\n\n")[0]
    named = [
        name for name in made if f"`{name.rpartition('.')[0]}" in table or name in table or name.startswith("host-h2")
    ]
    assert sorted(named) == sorted(made)
