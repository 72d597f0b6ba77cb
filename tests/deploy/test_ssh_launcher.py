"""The launcher over ssh, on an sshd of our own with its own keys. Skipped where there is none: `make test-ssh` installs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.launchers import CUT, FAULTS, SLOW, chaos, check_passed, check_refused
from tests.deploy.served import addresses, until_renewed
from tests.kit.shown_page import shown

from snapline.deploy import conformance
from snapline.deploy.conformance.bench import processes_naming, until
from snapline.deploy.conformance.launcher_checks import judge
from snapline.deploy.conformance.local_sshd import MACHINES, SshBench, Sshd, find_sshd, own_sshd
from snapline.deploy.ssh_launcher import SshLauncher
from snapline.errors import ExternalFailureError, UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

PROGRAM = find_sshd()

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no sshd here: `make test-ssh` installs Debian's and runs this"),
    pytest.mark.timeout(300),
]

FLEET = "snapline.deploy.conformance.token_fleet:fleet"

ROOT = Path(__file__).resolve().parents[2]

BARE = "/usr/bin/python3"
"""An interpreter without snapline."""

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    assert PROGRAM is not None
    with own_sshd(tmp_path_factory.mktemp("sshd"), PROGRAM) as made:
        yield made


@pytest.mark.parametrize("name", CHECKS)
async def test_machines_conform(name: str, sshd: Sshd, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], SshBench(tmp_path, sshd))


@pytest.mark.parametrize(
    ("machine", "python", "words"),
    [
        (
            "stranger",
            sys.executable,
            "stranger: it does not let us in without a password: `ssh -o BatchMode=yes stranger",
        ),
        ("unknown", sys.executable, "unknown: its host key is not known: `ssh unknown` once, and compare"),
        ("nowhere.invalid", sys.executable, "nowhere.invalid: no machine of this name is known: mend --address"),
        ("m1", "/nowhere/python", "m1: /nowhere/python cannot be run there: name an interpreter"),
        ("m1", BARE, f"m1: {BARE} has no snapline there: install it"),
    ],
)
async def test_a_machine_that_cannot_be_used_says_why_in_one_sentence(
    machine: str, python: str, words: str, sshd: Sshd, tmp_path: Path
) -> None:
    """Those that can be are left as they were."""
    ssh = ("ssh", "-F", str(sshd.config))
    launcher = SshLauncher("bank", sorted({"m1", machine}), data_dir=str(tmp_path), ssh=ssh, python=python)
    with pytest.raises(UsageError) as refused:
        await launcher.open(["c1"])
    assert words in str(refused.value)
    await launcher.close()
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])


async def test_who_does_not_listen_is_named(tmp_path: Path) -> None:
    launcher = SshLauncher("bank", ["ssh://nobody@127.0.0.1:1"], data_dir=str(tmp_path))
    with pytest.raises(ExternalFailureError, match=r"ssh://nobody@127.0.0.1:1: .*onnection refused"):
        await launcher.open(["c1"])


async def test_a_fleet_with_certificates_outlives_its_keeper_and_down_leaves_nothing(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken up from snapline.toml; its keeper is killed, and a second one finds everything; then down, with a keeper and without."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapline.toml").write_text(
        f'[context.prod]\non = "ssh"\nmachines = {json.dumps(MACHINES)}\nssh = "ssh -F {sshd.config}"\n'
        f'python = "{sys.executable}"\ndata_dir = "{tmp_path}/data"\ntls = "certificates"\ncoordinators = 3\n'
    )
    for words in (
        ("config", "context", "use", "prod"),
        ("auth", "init", "certificates", "--hosts", "h1,h2,h3", "--replicas", "c1,c2,c3"),
    ):
        assert (made := snapline(*words)).returncode == 0, made.stderr
    up = snapline("up", FLEET, "-o", "json")
    assert up.returncode == 0, up.stderr
    taken = json.loads(up.stdout)
    assert (taken["on"], taken["hosts"], taken["coordinator"].count("127.0.0.1")) == ("ssh", 3, 3)
    again = snapline("up", FLEET)
    assert again.returncode == 11 and "a fleet is up in runs/fleet" in again.stderr
    hosts = pids(tmp_path)
    clients = ssh_clients(sshd)
    for pid in clients:
        os.kill(pid, signal.SIGKILL)
    await until("other connections", lambda: len(ssh_clients(sshd) - clients) == 3)
    os.kill(keeper(tmp_path), signal.SIGKILL)
    assert pids(tmp_path) == hosts and len(hosts) == 3
    second = snapline("up", FLEET, "-o", "json")
    assert second.returncode == 0, second.stderr
    assert pids(tmp_path) == hosts and json.loads(second.stdout)["coordinator"] == taken["coordinator"]
    tools = ("--tls-cert", "operator-operator.crt", "--tls-key", "operator-operator.key", "--tls-ca", "ca.crt")
    files = [word if word.startswith("--") else f"certificates/{word}" for word in tools]
    made = snapline("snapshot", "create", *files, "-o", "json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["epoch"] in [judged.epoch for judged in judge(str(tmp_path / "data" / "store"))]
    assert snapline("auth", "renew", "certificates", "--days", "1").returncode == 0
    own = Path("certificates/launcher-launcher")
    trust = Security.tls(authority="certificates/ca.crt", certificate=f"{own}.crt", key=f"{own}.key")
    client = CoordinatorClient(taken["coordinator"], trust)
    await until_renewed(Path("certificates"), addresses(taken["coordinator"], await client.status()), own.name)
    await client.close()
    assert pids(tmp_path) == hosts, "nothing is started again for it"
    os.kill(keeper(tmp_path), signal.SIGKILL)
    down = snapline("down")
    assert down.returncode == 0, down.stderr
    await until("nothing left", lambda: processes_naming(str(tmp_path / "data")) == [])
    gone = snapline("down")
    assert gone.returncode == 4 and "no fleet named fleet is on m1, m2, m3" in gone.stderr
    assert snapline("up", FLEET, "-o", "json").returncode == 0
    assert snapline("down").returncode == 0
    await until("nothing left", lambda: processes_naming(str(tmp_path / "data")) == [])
    judge(str(tmp_path / "data" / "store"))


async def test_a_fleet_that_cannot_come_up_says_why_and_leaves_nothing(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SNAPLINE_SSH", f"ssh -F {sshd.config}")
    monkeypatch.setenv("SNAPLINE_PYTHON", sys.executable)
    place = ("--on", "ssh", "--address", "m1,m2", "--data-dir", str(tmp_path / "data"))
    up = snapline("up", "nowhere:fleet", *place)
    assert up.returncode == 2 and "nowhere" in up.stderr and "Traceback" not in up.stderr
    await until("nothing left", lambda: processes_naming(str(tmp_path / "data")) == [])
    up = snapline("up", FLEET, "--on", "ssh", "--address", "m1,stranger", "--data-dir", str(tmp_path / "data"))
    assert up.returncode == 2 and "stranger: it does not let us in" in up.stderr
    await until("nothing left", lambda: processes_naming(str(tmp_path / "data")) == [])


async def test_faults_of_a_file_are_carried_out_on_its_processes_and_judged(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPLINE_SSH", f"ssh -F {sshd.config}")
    monkeypatch.setenv("SNAPLINE_PYTHON", sys.executable)
    place = ("--on", "ssh", "--address", ",".join(MACHINES))
    check_passed(chaos(FAULTS + SLOW, tmp_path, *place), {"crash", "pause", "coordinator", "membership", "slow"})
    await until("nothing left", lambda: processes_naming(str(tmp_path)) == [])
    check_refused(chaos(FAULTS + CUT, tmp_path, *place), "ssh")
    assert processes_naming(str(tmp_path)) == []


def test_the_run_of_the_page_about_chaos_passes(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPLINE_SSH", f"ssh -F {sshd.config}")
    monkeypatch.setenv("SNAPLINE_PYTHON", sys.executable)
    run = {"ann@north,ann@south": "m1,m2", "/shared/ann": str(tmp_path)}
    with shown("docs/chaos.md", tmp_path, run) as page:
        (command,) = [each for each in page.commands("--on ssh") if "run crash.toml --on ssh" in each.text]
        page.left.clear()  # `tests/chaos/test_chaos_page.py` runs the others
        code, out, err = page.shell(command.text)
    assert code == 0 and out[0].startswith("PASS  crash"), err


def test_an_agent_that_keeps_money_outside_its_state_is_convicted_there_too(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAPLINE_SSH", f"ssh -F {sshd.config}")
    monkeypatch.setenv("SNAPLINE_PYTHON", sys.executable)
    monkeypatch.setenv("SNAPLINE_CODE", str(ROOT))
    crash = '[fleet]\nhosts = 2\n[[fault]]\ncrash = { host = "h2", at = "2s", restart_after = "100ms" }\n'
    fleet = ("--fleet", "tests.chaos.leaky:fleet", "--invariant", "tests.chaos.leaky:all_money_is_there")
    place = ("--on", "ssh", "--address", "m1,m2", *fleet)
    done = chaos(crash, tmp_path, *place, "--arg", "bug=global_state")
    assert done.returncode == 6 and "of the beginning" in done.stdout, (done.stdout[-2000:], done.stderr[-2000:])
    done = chaos(crash, tmp_path, *place, "--arg", "bug=kept")
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])


def snapline(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `snapline …` as a user does."""
    command = [sys.executable, "-m", "snapline", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)


def keeper(folder: Path) -> int:
    return int(json.loads((folder / "runs" / "fleet" / "launcher.json").read_text())["pid"])


def pids(folder: Path) -> set[int]:
    """Of all hosts whose store lies there."""
    return processes_with(b"\0host\0run\0", str(folder).encode())


def ssh_clients(sshd: Sshd) -> set[int]:
    """All connections, which last as long as their keeper."""
    return processes_with(b"ssh\0-F\0" + str(sshd.config).encode())


def processes_with(*texts: bytes) -> set[int]:
    found = [path for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {int(path.name) for path in found if all(text in read(path / "cmdline") for text in texts)}


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_the_page_runs_as_it_is_shown(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All machines are this one; `ssh` is a program in front of the real one, which names the configuration of this sshd."""
    folder, programs = tmp_path / "bank", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {sshd.config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    there = {"/shared/bank": str(folder), "/opt/fleet/bin/python": sys.executable}
    with shown("docs/deploy-ssh.md", folder, there, files_from="docs/first-fleet.md", limit_s=110) as page:
        page.run_all()
    await until("nothing left", lambda: processes_naming(str(folder / "run")) == [])
