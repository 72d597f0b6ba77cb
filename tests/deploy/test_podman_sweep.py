"""What is left of a fleet in podman's containers is known by name and folder. No podman is needed: a small program stands in its place."""

import json
import sys
from pathlib import Path

from snapline.deploy.podman_launcher import FLEET_LABEL, FOLDER_LABEL, PodmanLauncher

FAKE = """
import json, pathlib, sys
folder, verb, rest = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
containers = json.loads((folder / "containers").read_text())
if verb == "ps":
    print("\\n".join(containers))
elif verb == "container":
    print(json.dumps([containers[rest[-1]]]))
else:
    with (folder / "asked").open("a") as asked:
        print(verb, *rest, file=asked)
"""


async def test_containers_of_another_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    state = {"Status": "running", "Pid": 7, "ExitCode": 0}
    containers = {
        each: {
            "Id": each,
            "Name": f"fleet-{each}",
            "State": state,
            "Config": {"Labels": {FLEET_LABEL: "fleet", FOLDER_LABEL: str(tmp_path / folder)}},
        }
        for each, folder in (("h1", "ours"), ("h2", "theirs"))
    }
    (tmp_path / "containers").write_text(json.dumps(containers))
    (tmp_path / "link").symlink_to("ours")
    program = [sys.executable, str(tmp_path / "fake.py"), str(tmp_path)]
    for folder in ("ours", "link"):
        (tmp_path / "asked").unlink(missing_ok=True)
        assert await PodmanLauncher("fleet", tmp_path / folder, program=program).sweep() == ["fleet-h1"]
        asked = (tmp_path / "asked").read_text().splitlines()
        assert [line.split()[-1] for line in asked] == ["h1"], "and no secret of the other one"
