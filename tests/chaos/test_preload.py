"""Files and clocks under the preloaded library, by one small program; and what a power cut may take."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.chaos import preload
from snapline.chaos.preload import FIELDS, FaultCounters

needs_compiler = pytest.mark.skipif(bool(preload.reason_against()), reason=preload.reason_against())

PROGRAM = """
import errno, os, sys, threading, time
from pathlib import Path
from snapline.chaos.preload import FaultCounters

root, control, elsewhere = Path(sys.argv[1]), FaultCounters(Path(sys.argv[2])), Path(sys.argv[3])

def failing(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

def during(field, value, call):
    control.set(field, value)
    try:
        return failing(call)
    finally:
        control.set(field, 0)

def write(path=root / "new"):
    path.write_bytes(b"x" * 100)

def sync(path=root / "known"):
    with path.open("ab") as file:
        file.write(b"y")
        file.flush()
        os.fdatasync(file.fileno())

print("eio", during("eio", 1, write), during("eio", 1, (root / "known").read_bytes), during("eio", 1, lambda: write(elsewhere / "new")))
print("full", during("full", 1, write), during("full", 1, (root / "known").read_bytes), during("full", 1, lambda: os.mkdir(root / "folder")))
print("sync", during("failed_sync", 1, sync), during("failed_sync", 1, write), failing(sync))
began = time.time()
control.set("skew_ns", 3_600_000_000_000)
print("clock", round((time.time() - began) / 100), round((time.time_ns() / 1e9 - began) / 100))
control.set("skew_ns", 0)
done = threading.Event()
control.set("hang_store", 1)
threading.Thread(target=lambda: (sync(), done.set()), daemon=True).start()
print("hang", done.wait(0.2))
control.set("hang_store", 0)
print("hang", done.wait(60))
temporary = os.open(root, os.O_TMPFILE | os.O_WRONLY)
os.write(temporary, b"whole")
os.fdatasync(temporary)
os.link(f"/proc/self/fd/{temporary}", "linked", dst_dir_fd=os.open(root, os.O_PATH | os.O_DIRECTORY), follow_symlinks=True)
"""


@needs_compiler
def test_files_below_the_root_fail_and_the_clock_is_wrong(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "known").write_bytes(b"known")
    FaultCounters(tmp_path / "control")
    library = preload.build(tmp_path)
    added = preload.environment(library, control=tmp_path / "control", journal=tmp_path / "journal", root=root)
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "control"), str(elsewhere)]
    done = subprocess.run(command, env={**os.environ, **added}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "eio EIO EIO ok",
        "full ENOSPC ok ENOSPC",
        "sync EIO ok ok",
        "clock 36 36",
        "hang False",
        "hang True",
    ]
    names, written = preload.unsynced((tmp_path / "journal").read_text())
    assert str(root / "linked") in names and str(root / "new") in names
    assert written[str(root / "new")] == 0 and str(root / "known") not in written


def test_the_numbers_have_one_order() -> None:
    found = re.search(r"enum \{(.*?), FIELDS \}", preload.SOURCE.read_text())
    assert found is not None
    assert [name.strip().lower().rstrip("_") for name in found[1].split(",")] == list(FIELDS)


NAMES = st.sampled_from(["/r/a", "/r/b", "/r/sub/c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("+"), NAMES),
        st.tuples(st.just("w"), NAMES),
        st.tuples(st.just("="), st.one_of(NAMES, st.sampled_from(["/r", "/r/sub"]))),
    ),
    max_size=20,
)


@given(STEPS)
def test_what_was_synced_is_safe_and_nothing_else(steps: list[tuple[str, str]]) -> None:
    lines = [f"w 7 {name}" if word == "w" else f"{word} {name}" for word, name in steps]
    names, written = preload.unsynced("\n".join(lines))
    for name in ("/r/a", "/r/b", "/r/sub/c"):
        since = [
            word for word, other in steps if other in (name, os.path.dirname(name)) and (word, other) != ("=", name)
        ]
        is_named = "+" in since and "=" not in since[len(since) - since[::-1].index("+") :]
        assert (name in names) == is_named
        own = [word for word, other in steps if other == name and word in "w="]
        assert (name in written) == (own[-1:] == ["w"])


def test_a_power_cut_takes_only_what_was_not_synced(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        for name, content in (("safe", b"s" * 10), ("torn", b"t" * 10), ("new", b"n")):
            (tmp_path / name).write_bytes(content)
        journal = tmp_path / "journal"
        journal.write_text(f"w 4 {tmp_path}/torn\n+ {tmp_path}/new\nw 0 {tmp_path}/safe\n= {tmp_path}/safe\n")
        preload.lose_unsynced(journal, seed)
        assert (tmp_path / "safe").read_bytes() == b"s" * 10 and journal.read_text() == ""
        outcomes.add((len((tmp_path / "torn").read_bytes()), (tmp_path / "new").exists()))
    lengths = {length for length, _ in outcomes}
    assert lengths <= set(range(4, 11)) and {4, 10} < lengths, "lost, kept, and torn"
    assert {is_there for _, is_there in outcomes} == {True, False}
