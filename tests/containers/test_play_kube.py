"""The chart's pods under podman: no cluster, but the pod templates as they are, names, certificates, probes and hooks.

What controllers of a cluster do is done here: pods are made of the StatefulSets' templates, claims are volumes, the headless services' names
are aliases on a network, and health is asked as a node's agent asks it. podman knows no such probes.
"""

import asyncio
import contextlib
import copy
import itertools
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest
from tests.containers.chart import Document, missing, one, pods, render, with_values
from tests.containers.engine import HERE, IMAGE, NETAVARK, podman
from tests.house.pages import Command
from tests.integration.processes import LIMIT_S, snapline
from tests.kit.shown_page import shown

from snapline.deploy.conformance.launcher_checks import judge
from snapline.errors import SnaplineError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security
from snapline.telemetry.health import is_serving

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("image"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(not NETAVARK.exists(), reason="netavark is not installed: make test-podman"),
]

NETWORK, CLAIM, USER = "tills", "snapshots", 10001
"""`fsGroup` gives a volume to the pod's user in a cluster; here the volume is made his."""

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


class Pods:
    """The pods of a release, each with an address of its own."""

    def __init__(self, folder: Path, release: str, values: Document) -> None:
        self.folder = folder
        objects = render(values, release)
        sets = [one(objects, "StatefulSet", f"{release}-{part}") for part in ("coordinator", "host")]
        self.made = {pod["metadata"]["name"]: pod for each in sets for pod in pods(each)}
        self.volumes = [CLAIM, *(f"data-{name}" for name in self.made if "coordinator" in name)]

    @property
    def coordinators(self) -> list[str]:
        return [name for name in self.made if "coordinator" in name]

    @property
    def hosts(self) -> list[str]:
        return [name for name in self.made if "host" in name]

    def up(self) -> None:
        podman("network", "create", NETWORK)
        for volume in self.volumes:
            podman("volume", "create", "--opt", f"o=uid={USER},gid={USER}", volume)
        for name in self.made:
            self.start(name)

    def start(self, name: str) -> None:
        service = name.rpartition("-")[0]
        path = self.folder / f"{name}.yaml"
        path.write_text(import_module("yaml").safe_dump(self.filled(self.made[name])))
        podman("play", "kube", "--network", f"{NETWORK}:alias={name}.{service}", path)

    def filled(self, pod: Document) -> Document:
        """With its own name in its arguments, as a node's agent fills it in and podman does not. Secrets are folders: podman 4.3 encodes them twice."""
        found = copy.deepcopy(pod)
        (made,) = found["spec"]["containers"]
        made["args"] = [word.replace("$(POD_NAME)", pod["metadata"]["name"]) for word in made["args"]]
        del made["ports"]  # in a cluster they are words only; podman would take them on the machine itself
        for volume in found["spec"]["volumes"]:
            if "secret" in volume:
                folder = self.folder / volume.pop("secret")["secretName"]
                volume["hostPath"] = {"path": str(folder), "type": "Directory"}
        return found

    def address(self, name: str) -> str:
        pod = json.loads(podman("pod", "inspect", name))
        found = json.loads(podman("container", "inspect", pod["InfraContainerID"]))[0]
        return str(found["NetworkSettings"]["Networks"][NETWORK]["IPAddress"])

    def says(self, name: str, probe: str) -> bool:
        """What the pod's probe would see."""
        (made,) = self.made[name]["spec"]["containers"]
        asked = made[probe]["grpc"]
        with contextlib.suppress(Exception):  # nobody answers, or not yet
            return asyncio.run(is_serving(f"{self.address(name)}:{asked['port']}", asked["service"], 5.0))
        return False

    def end(self, name: str) -> None:
        """As a node ends a pod after its hook."""
        podman("pod", "stop", "--time", "30", name)
        podman("pod", "rm", "--force", name)

    def down(self) -> None:
        podman("pod", "rm", "--all", "--force")
        podman("volume", "rm", "--all", "--force")
        podman("network", "rm", "--force", NETWORK)


def keep_secret(folder: Path, name: str, files: Sequence[Path]) -> None:
    """Keep files as `kubectl create secret generic --from-file` does, where only the pods' user reads them."""
    (folder / name).mkdir(mode=0o700)
    for file in files:
        os.chown(shutil.copy(file, folder / name), USER, USER)
    os.chown(folder / name, USER, USER)


@pytest.fixture
def tills(tmp_path: Path) -> Iterator[Pods]:
    image = {"repository": f"localhost/{IMAGE}", "tag": "latest", "pullPolicy": "Never"}
    made = Pods(tmp_path, "tills", with_values({"image": image}))
    try:
        yield made
    finally:
        made.down()


def until(words: str, is_there: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 3 * LIMIT_S
    while not is_there():
        assert time.monotonic() < deadline_s, f"{words}: not within {3 * LIMIT_S:g} s"
        time.sleep(0.2)


def until_ready(made: Pods) -> None:
    for probe in PROBES:
        asked = made.coordinators if probe == "livenessProbe" else made.made
        until(f"the {probe}s", lambda: all(made.says(name, probe) for name in asked))  # noqa: B023  # it is called before the next


T = TypeVar("T")


def hand_on(tills: Pods, name: str) -> None:
    """What a node does before it ends a pod: the hook, in its container."""
    (made,) = tills.made[name]["spec"]["containers"]
    podman(
        "exec", "--env", f"POD_NAME={name}", f"{name}-{made['name']}", *made["lifecycle"]["preStop"]["exec"]["command"]
    )


def ask(tills: Pods, name: str, words: Callable[[CoordinatorClient], Awaitable[T]]) -> T:
    """One call to one replica, by an operator who is not on the pods' network, and so does not know their names."""

    async def call() -> T:
        leaf = tills.folder / "certificates" / "operator-operator"
        security = Security.tls(
            authority=leaf.with_name("ca.crt"), certificate=leaf.with_suffix(".crt"), key=leaf.with_suffix(".key")
        )
        client = CoordinatorClient(f"{tills.address(name)}:7400", security)
        try:
            return await words(client)
        finally:
            await client.close()

    return asyncio.run(call())


def until_led(tills: Pods, asked: str, *, not_by: str = "") -> str:
    """Whom this replica takes for the leader, once it is another one."""
    deadline_s = time.monotonic() + 3 * LIMIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(SnaplineError):
            members = ask(tills, asked, lambda client: client.read_replica("members", 5.0))["members"]
            assert isinstance(members, list)
            leaders = [str(member["id"]) for member in members if member["leads"]]
            if leaders and leaders != [not_by]:
                return leaders[0]
        time.sleep(0.2)
    raise AssertionError(f"{asked} knows no leader but {not_by or 'none'}")


def test_pods_form_a_fleet_that_takes_a_snapshot_and_a_pod_that_ends_hands_on_its_lead(tills: Pods) -> None:
    names = ("--replicas", ",".join(tills.coordinators), "--hosts", ",".join(tills.hosts))
    made = asyncio.run(snapline("auth", "init", tills.folder / "certificates", *names))
    assert made.code == 0, made.err
    certificates = tills.folder / "certificates"
    for role in ("coordinator", "host"):
        keep_secret(tills.folder, f"tills-{role}s", [certificates / "ca.crt", *certificates.glob(f"{role}-*")])
    tills.up()
    until_ready(tills)
    leader = until_led(tills, tills.coordinators[0])
    epoch = ask(tills, leader, lambda client: client.create_snapshot(LIMIT_S)).epoch
    store = podman("volume", "inspect", CLAIM, "--format", "{{.Mountpoint}}").strip()
    assert epoch in [judged.epoch for judged in judge(store)]
    other = next(name for name in tills.coordinators if name != leader)
    hand_on(tills, leader)
    until_led(tills, other, not_by=leader)  # the pod has not been told to end yet
    tills.end(leader)
    tills.start(leader)
    until("it again", lambda: tills.says(leader, "readinessProbe"))
    until("later epochs", lambda: last_epoch(tills, until_led(tills, other)) > epoch)


def last_epoch(tills: Pods, leader: str) -> int:
    with contextlib.suppress(SnaplineError):
        return ask(tills, leader, lambda client: client.status()).last_complete_epoch
    return 0


def arguments_of(command: Command, folder: Path) -> list[str]:
    """Return the arguments with which a shell would call kubectl or helm."""
    functions = 'kubectl() { printf \'%s\\0\' "$@"; }; helm() { kubectl "$@"; }; '
    done = subprocess.run(
        ["bash", "-c", functions + command.text], check=True, cwd=folder, capture_output=True, text=True
    )
    return done.stdout.split("\0")[:-1]


def values_of(arguments: Sequence[str]) -> Document:
    """Return the values of options such as `--set a.b=c,d=e`."""
    found: Document = {}
    for option, given in itertools.pairwise(arguments):
        for path, _, value in (each.partition("=") for each in given.split(",") if option == "--set"):
            *tables, key = path.split(".")
            table = found
            for name in tables:
                table = table.setdefault(name, {})
            table[key] = value
    return found


def test_the_page_runs_as_it_is_shown(tmp_path: Path) -> None:
    """kubectl and helm ask a cluster, which is not here: their arguments are read, and podman does with the chart's pods what they ask for."""
    build = {"podman build": shlex.join(["podman", "build", *HERE]), " && podman push registry.local/bank": ""}
    there = {**build, "registry.local/bank": "localhost/bank", "127.0.0.1:7400": "$COORDINATOR"}
    shop: Pods | None = None
    with (
        contextlib.ExitStack() as ended,
        shown("docs/deploy-kubernetes.md", tmp_path, there, files_from="docs/first-fleet.md", limit_s=LIMIT_S) as page,
    ):
        page.take("scrape_configs")  # tests/deploy/test_promtool.py
        for command in page.all_commands():
            if not command.text.startswith(("kubectl ", "helm ")):
                page.run_command(command)
                continue
            match arguments_of(command, tmp_path):
                case ["create", "secret", "generic", name, *options]:
                    keep_secret(tmp_path, name, [tmp_path / each.removeprefix("--from-file=") for each in options])
                case ["install", release, "chart", *options]:
                    shop = Pods(tmp_path, release, values_of(options))
                    ended.callback(shop.down)
                    shop.up()
                case ["wait", "--for=condition=Ready", "pod", "--selector", "app.kubernetes.io/instance=shop"] if shop:
                    labels = [pod["metadata"]["labels"]["app.kubernetes.io/instance"] for pod in shop.made.values()]
                    assert set(labels) == {"shop"}
                    until_ready(shop)
                case ["port-forward", name, "7400"] if shop:
                    page.exports.append(f"export COORDINATOR={shop.address(name)}:7400")
                case ["delete", "pod", name, "--grace-period=0", "--force"] if shop:
                    podman("pod", "kill", name)
                    podman("pod", "rm", "--force", name)
                    shop.start(name)
                case ["uninstall", "shop"]:
                    ended.close()
                case other:
                    raise AssertionError(f"teach this test what a cluster does: {other}")
