"""Smoke test of an installed snapline, without a checkout: `python smoke.py VERSION` with the interpreter that it is installed for.

It uses only the standard library and the installed commands, in an empty folder. The example is the one of the README, which an installed
package has as its description. `release/check_wheel.py` starts it.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMMAND_S = 240
"""Limit for one command. The demo takes longest, some 20 s on a quiet machine."""

READY_S = 60
"""Limit of each wait for a process."""

NOT_INSTALLED = {"agents", "hypothesis", "pydantic", "pydantic_ai", "pydantic_core", "pytest", "ray", "torch"}
"""Packages of extras that are not tested here, and of tests. Modules in `adapters/`, one for each framework, are left out."""

SNAPLINE = str(Path(sys.executable).parent / "snapline")


def snapline(*words: str, **variables: str) -> str:
    """Return what a command prints, which must end with 0."""
    done = subprocess.run(
        [SNAPLINE, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"snapline {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def result(*words: str, **variables: str) -> Any:  # JSON of any command
    return json.loads(snapline(*words, "-o", "json", **variables))


def write_example() -> None:
    page = importlib.metadata.metadata("snapline").json["description"]
    assert isinstance(page, str)
    found = re.search(r"^```python\n(# ping\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, "the description has no ping.py"
    Path("ping.py").write_text(found[1])


def states(store: str, **variables: str) -> dict[str, int]:
    snapshot = result("snapshot", "show", "latest", "--store", store, **variables)
    return {agent["agent"]: agent["state"]["hits"] for agent in snapshot["agents"]}


def check_version(expected: str) -> None:
    assert snapline("--version") == f"snapline {expected}\n", snapline("--version")
    assert json.loads(snapline("doctor", "-o", "json"))["findings"], "doctor"


def check_modules(_: str) -> None:
    """Import every module, so that a name which a dependency does not have yet is found."""
    package = importlib.import_module("snapline")
    assert Path(package.__file__ or "").is_relative_to(sys.prefix), f"{package.__file__} is not the installed one"
    for module in pkgutil.walk_packages(package.__path__, "snapline."):
        if not module.name.startswith("snapline.adapters.") and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                assert error.name and error.name.partition(".")[0] in NOT_INSTALLED, error


def check_run(_: str) -> None:
    """Run the README's fleet, and read its store."""
    snapline("run", "ping:fleet", "--hosts", "2", "--data-dir", "run")
    assert states("run/store") == {"ping": 1000, "pong": 999}
    snapline("snapshot", "verify", "--store", "run/store")
    snapline("ui", "export", "view.html", "--store", "run/store")


def check_protected(_: str) -> None:
    """Run it with an encrypted and signed store."""
    snapline("keys", "generate", "store.key")
    snapline("keys", "generate", "ref.key", "--signing")
    readers = {"SNAPLINE_STORE_KEY": "store.key", "SNAPLINE_VERIFY_KEY": "ref.key.pub"}
    keys = {**readers, "SNAPLINE_SIGNING_KEY": "ref.key"}
    snapline("run", "ping:fleet", "--hosts", "2", "--data-dir", "protected", **keys)
    assert states("protected/store", **readers) == {"ping": 1000, "pong": 999}


@contextlib.contextmanager
def serving(*words: str) -> Iterator[str]:
    """Start a server, and give the address that it prints."""
    server = subprocess.Popen([SNAPLINE, *words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(READY_S)


def check_fleet(_: str) -> None:
    """Start a fleet in the background, kill a host with SIGKILL, and ask metrics, gateway and view."""
    Path("idle.py").write_text(Path("ping.py").read_text().replace(", stop_when=lambda cut: cut.is_quiet", ""))
    snapline("auth", "init", "certificates")
    snapline("up", "idle:fleet", "--hosts", "2", "--data-dir", "up", "--metrics")
    try:
        (host,) = [int(each.name) for each in Path("/proc").glob("[0-9]*") if is_host(each, "h2", f"{Path.cwd()}/up/")]
        os.kill(host, signal.SIGKILL)
        wait_for(lambda: bool(result("recovery", "history", "--data-dir", "up")["recoveries"]))
        wait_for(lambda: bool(result("status", "--data-dir", "up")["phase"] == "running"))
        for words in (("gateway", "run"), ("ui", "serve")):
            with serving(*words, "--data-dir", "up") as address:
                path = "/openapi.json" if words[0] == "gateway" else "/"
                with urllib.request.urlopen(address + path, timeout=READY_S) as page:
                    assert page.status == 200
    finally:
        snapline("down", "--data-dir", "up")
    assert states("up/store") == {"ping": 1000, "pong": 999}


def is_host(process: Path, name: str, folder: str) -> bool:
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().decode().split("\0")
        return {"host", "run", name} <= set(words) and any(word.startswith(folder) for word in words)
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.2)


def check_demo(_: str) -> None:
    """Kill a host and the leading coordinator: the result is exact."""
    assert result("demo")["exact"]


def check_simulator(_: str) -> None:
    snapline("sim", "sweep", "ping:fleet", "--seeds", "0:3")


CHECKS = (check_version, check_modules, check_run, check_protected, check_fleet, check_demo, check_simulator)


def main() -> None:
    write_example()
    for check in CHECKS:
        check(sys.argv[1])
        print(f"  {check.__name__.removeprefix('check_')} ok", flush=True)


if __name__ == "__main__":
    main()
