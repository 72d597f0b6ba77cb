"""Words and failpoints are the ones that there are."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
from tests.house.product import parsed

from snapline.sim.faults.fault_kinds import (
    FAILPOINTS,
    REAL_FAILPOINT_PREFIXES,
    REAL_FAILPOINTS,
    CoordinatorFault,
    DiskFault,
    HangFault,
    MembershipFault,
    PartitionFault,
)
from snapline.sim.faults.faults import describe_faults
from snapline.sim.scenario import FAULT_KINDS

ROOT = Path(__file__).parents[2] / "src" / "snapline"


def test_every_word_shape_mode_and_kind_is_described() -> None:
    described = {word for _, word, _ in describe_faults()}
    wanted = {word for word in FAULT_KINDS if word not in ("partition", "hang", "disk", "coordinator", "membership")}
    for name, word, key in (
        ("partition", PartitionFault, "shape"),
        ("hang", HangFault, "what"),
        ("disk", DiskFault, "mode"),
        ("coordinator", CoordinatorFault, "kind"),
        ("membership", MembershipFault, "kind"),
    ):
        kinds = {field.name: field.type for field in msgspec.structs.fields(word)}[key]
        wanted |= {f"{name}: {kind}" for kind in get_args(kinds)}
    assert described == wanted


PRODUCT = ("agent_runtime", "channels", "coordinator", "deploy", "protocols", "recovery", "storage", ".")
STEPS = {
    "storage": ("opened", "written", "synced", "linked", "durable"),
    "coordinator": ("opened", "written", "synced", "renamed", "durable"),
}


def points_in(path: Path, folder: str) -> Iterator[str]:
    """Names in calls of `failpoint`, and those that functions make of a `point=` that they are given."""
    for node in ast.walk(parsed(path.resolve())):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "point" and isinstance(keyword.value, ast.Constant):
                point = str(keyword.value.value)
                yield from (f"{point}.{step}" for step in STEPS[folder])
                if getattr(node.func, "attr", "") == "_write_pack":
                    yield f"{point}.directory"
        if getattr(node.func, "id", "") == "failpoint" and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def test_the_registry_of_failpoints_is_the_code() -> None:
    found = {
        point
        for folder in PRODUCT
        for path in sorted((ROOT / folder).glob("*.py" if folder == "." else "**/*.py"))
        for point in points_in(path, folder)
    }
    real = {point for point in found if point.startswith(REAL_FAILPOINT_PREFIXES) or point in REAL_FAILPOINTS}
    assert found - real == {*FAILPOINTS}
    assert real >= {*REAL_FAILPOINTS}
    assert len({*FAILPOINTS}) == len(FAILPOINTS)


def test_steps_of_a_point_are_those_of_the_code() -> None:
    """What `points_in` takes for granted."""
    for path, folder in (
        (ROOT / "storage/disk/local_disk.py", "storage"),
        (ROOT / "coordinator/raft/durability.py", "coordinator"),
    ):
        steps = [
            line.split("{point}.")[1].split('"')[0] for line in path.read_text().splitlines() if "{point}." in line
        ]
        assert tuple(steps) == STEPS[folder]
