"""A client whose clock is wrong, or jumps: nothing that it does depends on it. Its times are those of a clock that only goes on, and hosts decide by their own."""

import ast
import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.fake_fleet import fleet_and_client

ROOT = Path(__file__).resolve().parents[2] / "src" / "snapline"
ROOMS = ("client", "gateway", "messages")
"""All that runs in a client's process and is ours, besides what all share."""

WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def asks_of_the_wall(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in WALL.get(owner, ()):
                yield f"{owner}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from [f"time.{name.name}" for name in node.names if name.name in WALL["time"]]


def test_no_client_looks_at_a_clock_that_may_be_wrong() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for name in asks_of_the_wall(path.read_text())
    }
    assert not found, "time-outs, keys and cursors would depend on it: use the loop's time, or time.monotonic"


def test_what_would_look_at_it_is_found() -> None:
    planted = "from time import time_ns\ntime.time(); loop.time(); datetime.datetime.now(); datetime.now(UTC); time.monotonic()"
    assert sorted(asks_of_the_wall(planted)) == ["datetime.now", "datetime.now", "time.time", "time.time_ns"]


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int real(clockid_t clock, struct timespec *told) {
    static int (*found)(clockid_t, struct timespec *);
    if (!found) found = dlsym(RTLD_NEXT, "clock_gettime");
    return found(clock, told);
}
int clock_gettime(clockid_t clock, struct timespec *told) {
    static const long wrong_s[] = {18000, -18000, 0, 86400, -7};
    struct timespec on;
    int done = real(clock, told);
    real(CLOCK_MONOTONIC, &on);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        told->tv_sec += wrong_s[(on.tv_sec * 10 + on.tv_nsec / 100000000) % 5];
    return done;
}
int gettimeofday(struct timeval *told, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    told->tv_sec = found.tv_sec, told->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *told) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (told) *told = found.tv_sec;
    return found.tv_sec;
}
"""
"""A clock that is hours ahead, or behind, and jumps ten times a second; the one that only goes on is right."""

PROGRAM = """
import sys, time
import snapline
before = time.time()
with snapline.SyncClient.connect(sys.argv[1]) as client:
    for number in range(1, 60):
        receipt = client.send("a", ("Paid", {"amount": number}), key=f"k{number}")
        assert (receipt.number, receipt.is_repeated) == (number, False), receipt
        time.sleep(0.02)
        again = client.ask("a", ("Paid", {"amount": number}), key=f"k{number}")
        assert again.number == number and again.message["fields"]["number"] == number, again
        print(round(time.time() - before), flush=True)
    try:
        client.send("a", ("Paid", {"amount": 0}), key="k1")
    except snapline.InputRefusedError:
        print("refused")
"""


@pytest.mark.slow
async def test_a_clock_that_jumps_by_hours_changes_nothing_for_a_real_client(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: it makes the library that makes a clock wrong")
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    compiling = await asyncio.create_subprocess_exec(
        compiler, "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "shim.c"), "-ldl"
    )
    assert await compiling.wait() == 0
    async with fleet_and_client() as (fleet, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, fleet.address),
            env={**os.environ, "LD_PRELOAD": str(shim)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, complaints = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, complaints.decode()
        *seconds, last = told.decode().split()
        assert last == "refused" and {abs(int(each)) > 3000 for each in seconds} == {True, False}, "the clock is wrong"
        assert len(fleet.books.taken["a"]) == 59
