"""`snapline auth`: what it says, and what it refuses."""

from pathlib import Path

from tests.kit.command_line import Run

SET = {
    *("coordinator-c1", "host-h1", "host-h2"),
    *(
        "viewer-viewer",
        "approver-approver",
        "operator-operator",
        "admin-admin",
        "launcher-launcher",
        "client-client",
        "bearer-bearer",
    ),
}


def test_a_working_set_is_made_and_added_to(run: Run, folder: Path) -> None:
    made = run("auth", "init", "set", "--tls-domain", "shop", "-o", "json")
    assert made.code == 0 and made.json["tls_domain"] == "shop"
    files = {path.name for path in (folder / "set").iterdir()}
    assert files == {f"{name}.{kind}" for name in (SET | {"ca"}) for kind in ("crt", "key")}
    added = run("auth", "issue", "set", "host", "h3", "-o", "json")
    assert (added.code, added.json["certificate"]) == (0, "set/host-h3.crt")
    assert "host-h3.crt" in run("auth", "issue", "set", "host", "h3", "-o", "table").out
    assert "keep ca.key where no process runs" in run("auth", "init", "other", "-o", "table").out


def test_what_makes_no_sense_is_refused_and_makes_nothing(run: Run, folder: Path) -> None:
    assert run("auth", "init", "set").code == 0
    again = run("auth", "init", "set")
    assert again.code == 2 and "is not empty" in again.err
    for arguments in (("--hosts", "h1,h1"), ("--hosts", ""), ("--replicas", "c1,c2"), ("--tls-domain", "A/B")):
        assert run("auth", "init", "new", *arguments).code == 2
    assert not list((folder / "new").glob("*")) if (folder / "new").exists() else True
    assert "'king' is no role" in run("auth", "issue", "set", "king", "k").err
    assert "makes one" in run("auth", "issue", "nowhere", "host", "h1").err


def test_all_of_a_folder_are_renewed_and_the_authority_stays(run: Run, folder: Path) -> None:
    assert run("auth", "init", "set", "--hosts", "h1,big-host").code == 0
    before = {path.name: path.read_bytes() for path in (folder / "set").iterdir()}
    renewed = run("auth", "renew", "set", "--days", "1", "-o", "json")
    assert renewed.code == 0 and len(renewed.json["certificates"]) == 10
    after = {path.name: path.read_bytes() for path in (folder / "set").iterdir()}
    assert {name for name in before if before[name] == after[name]} == {
        "ca.crt",
        "ca.key",
    } and after.keys() == before.keys()
    for path in (folder / "set").glob("*-*"):
        path.unlink()
    assert "holds no certificate to renew" in run("auth", "renew", "set").err


def test_a_token_is_sent_inside_tls_only_and_from_a_file_that_nobody_else_reads(run: Run, folder: Path) -> None:
    token = folder / "token"
    token.touch(mode=0o600)
    where = ("--coordinator", "127.0.0.1:1", "--auth-token", "token")
    assert "holds no token" in run("status", *where).err
    token.write_text("snapline_x\n")
    told = run("status", *where)
    assert told.code == 2 and "a token travels inside TLS only" in told.err
    token.chmod(0o640)
    assert "the token file token can be used by others (mode 0640): run chmod 600 token" in run("status", *where).err
    assert (
        "cannot read the token file nowhere"
        in run("status", "--coordinator", "127.0.0.1:1", "--auth-token", "nowhere").err
    )
