"""The image that src/snapline/deploy/Containerfile makes: small words about it that users of any container engine lean on."""

import json
import time
from pathlib import Path

import pytest
from tests.containers.engine import IMAGE, podman
from tests.integration.processes import LIMIT_S

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("image")]

GRACE_S = "60"
"""Far more than a process takes that hears SIGTERM, and what one takes that does not."""


def test_it_runs_snapline_and_is_nobody_special() -> None:
    assert json.loads(podman("run", "--rm", IMAGE, "version", "-o", "json"))["kind"] == "Version"
    asked = (
        "import os; print(os.getuid(), os.access('/opt/snapline', os.W_OK), os.access('/var/lib/snapline', os.W_OK))"
    )
    assert podman("run", "--rm", "--entrypoint", "python3", IMAGE, "-c", asked).split() == ["10001", "False", "True"]


def test_a_process_says_how_it_is_and_hears_that_it_is_to_end() -> None:
    """As the first process of its container it would not hear SIGTERM by itself. The image's own health check is what is asked."""
    data = "/var/lib/snapline"
    options = (
        "--data-dir",
        f"{data}/c1",
        "--store",
        f"{data}/store",
        "--hosts",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--stay",
    )
    name = podman("run", "--detach", "--no-healthcheck", IMAGE, "coordinator", "run", *options).strip()
    try:
        image = json.loads(podman("image", "inspect", IMAGE))[0]
        check = image["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        until(name, *check[1:])
        until(name, "snapline", "health")
        podman("stop", "--time", GRACE_S, name)
        state = json.loads(podman("container", "inspect", name))[0]["State"]
        assert state["ExitCode"] == 0, podman("logs", name)
    finally:
        podman("rm", "--force", "--volumes", name)


def until(name: str, *command: str) -> None:
    """Until the command succeeds in this container."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            podman("exec", name, *command)
            return
        except AssertionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def test_a_whole_fleet_runs_in_one_container(tmp_path: Path) -> None:
    """Its processes do not quarrel over the health door that the image names for one process."""
    tmp_path.chmod(0o755)  # the user of the image reads it
    page = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (tmp_path / "ping.py").write_text(page.partition("```python")[2].partition("```")[0])
    mounted = ("--no-healthcheck", "--volume", f"{tmp_path}:/fleet:ro")
    ended = podman("run", "--rm", *mounted, IMAGE, "run", "ping:fleet", "--data-dir", "/tmp/run", "-o", "json")
    assert json.loads(ended)["outcome"] == "stopped"
