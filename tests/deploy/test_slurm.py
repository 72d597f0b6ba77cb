"""What is read of Slurm's programs, and what is made of what they refuse. No Slurm is needed: small programs stand in its place."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.deploy.slurm_launcher import Element, Slurm, SlurmLauncher, parse_elements, split_name
from snapline.errors import ExternalFailureError, UsageError

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True) | st.integers(0, 2000).map(lambda n: f"h{n}")


def listed(fleet: str, name: str, state: str = "RUNNING", job: str = "7", restarts: int = 0) -> str:
    stem, index = split_name(name)
    return f"{job}|4|{index}|snapline:{fleet}:{stem}|{state}|n1|{restarts}|None|\n"


@given(NAMES)
def test_a_process_is_found_again_by_the_name_and_index_of_its_element(name: str) -> None:
    found = parse_elements(listed("bank", name, restarts=2), "bank")
    assert list(found) == [name]
    assert (found[name].restarts, found[name].run) == (2, f"job 4_{split_name(name)[1]}, run 2 on n1")


def test_hosts_are_the_indices_of_one_array() -> None:
    assert [split_name(name) for name in ("h1", "h2", "h256", "c3")] == [("h", 1), ("h", 2), ("h", 256), ("c", 3)]
    assert split_name("coordinator")[0] == "coordinator" and split_name("h3-again")[0] == "h3-again"


def test_other_fleets_and_other_jobs_are_passed_over() -> None:
    others = listed("bank-2", "h1") + "9|9|1|snapline|RUNNING|n1|0|None|\n8|8|N/A|build|PENDING||0|Priority|\n"
    assert list(parse_elements(others + listed("bank", "h2"), "bank")) == ["h2"]


def test_of_two_for_one_name_the_one_that_ends_does_not_count() -> None:
    ending, waiting = listed("bank", "h1", "COMPLETING", job="7"), listed("bank", "h1", "PENDING", job="8")
    for text in (ending + waiting, waiting + ending):
        assert parse_elements(text, "bank")["h1"].job == "8"
    assert parse_elements(ending, "bank")["h1"].job == "7", "it is still there"


def script(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("sbatch: error: invalid partition specified: nowhere", UsageError),
        ("sbatch: unrecognized option '--tiem=1'", UsageError),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", ExternalFailureError),
    ],
)
async def test_what_sbatch_refuses_is_the_users_to_mend_and_the_rest_is_the_worlds(
    said: str, kind: type[Exception], tmp_path: Path
) -> None:
    slurm = Slurm("bank", {"sbatch": script(tmp_path, f'echo "{said}" >&2; exit 1')})
    with pytest.raises(kind) as refused:
        await slurm.submit("h", [1], [], "true")
    assert type(refused.value) is kind and str(refused.value).count("sbatch: ") == 1


async def test_without_slurm_one_sentence_says_what_is_needed() -> None:
    with pytest.raises(UsageError, match=r"squeue cannot be run here .*: this needs a machine of a Slurm cluster"):
        await Slurm("bank", {"squeue": "/nowhere/squeue"}).elements()


async def test_many_who_ask_at_once_share_a_look_that_began_after_they_had_asked(tmp_path: Path) -> None:
    """An older one would not show what was submitted meanwhile, and it would be submitted twice."""
    count = tmp_path / "count"
    text = f'echo x >> {count}; N=$(wc -l < {count}); echo "7|4|$N|snapline:bank:h|RUNNING|n1|0|None|"'
    slurm = Slurm("bank", {"squeue": script(tmp_path, text)})
    first = asyncio.create_task(slurm.elements())
    while not count.exists():
        await asyncio.sleep(0.001)
    later = await asyncio.gather(*(slurm.elements() for _ in range(5)))
    assert [list(found) for found in (await first, *later)] == [["h1"], *[["h2"]] * 5]


async def test_an_array_is_cancelled_by_its_elements_alone(tmp_path: Path) -> None:
    """The id of one of them is that of the whole array."""
    slurm = Slurm("bank", {"scancel": script(tmp_path, f"echo $* > {tmp_path}/asked")})
    await slurm.cancel([Element("4", "4", 3, "h", "RUNNING", "n1", 0, "None")])
    assert (tmp_path / "asked").read_text() == "--quiet 4_3\n"


def test_jobs_of_a_fleet_of_the_same_name_in_another_folder_are_passed_over(tmp_path: Path) -> None:
    """Else `down` of one would end both. Jobs of earlier releases say no folder."""
    ours, theirs = tmp_path / "a|b", tmp_path / "theirs"
    ours.mkdir()
    (tmp_path / "link").symlink_to(ours)
    text = "".join(
        listed("bank", name).rstrip("\n") + f"snapline {folder}|\n" for name, folder in (("h1", ours), ("h2", theirs))
    )
    text += listed("bank", "h3").rstrip("\n") + "(null)|\n"
    for folder in (ours, tmp_path / "link"):
        assert list(parse_elements(text, "bank", str(folder))) == ["h1", "h3"]


async def test_a_job_says_the_folder_of_its_fleet(tmp_path: Path) -> None:
    slurm = Slurm("bank", {"sbatch": script(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/asked')}, folder="/data/a b")
    await slurm.submit("h", [1], [], "true")
    assert "--comment=snapline /data/a b" in (tmp_path / "asked").read_text().splitlines()


SMALL = """for word; do case $word in
--ntasks=1) exit 0;;
--ntasks=3) echo "allocation failure: Requested node configuration is not available" >&2; exit 1;;
--ntasks=4) echo "allocation failure: Node count specification invalid" >&2; exit 1;;
esac; done"""


async def test_more_processes_than_the_cluster_has_room_for_are_refused_before_anything_is_submitted(
    tmp_path: Path,
) -> None:
    slurm = Slurm("bank", {"sbatch": script(tmp_path, SMALL)})
    await slurm.check(2, [])
    await slurm.check(4, [])  # a limit of one large job, and none of four small ones
    with pytest.raises(UsageError, match=r"no room for 3 processes at once.*fewer --hosts"):
        await slurm.check(3, ["--exclusive"])


async def test_who_wants_whole_nodes_is_asked_for_as_many(tmp_path: Path) -> None:
    slurm = Slurm("bank", {"sbatch": script(tmp_path, f'echo "$*" >> {tmp_path}/asked')})
    await slurm.check(5, ["--exclusive"])
    await slurm.check(5, [])
    assert [" --nodes=5 " in line for line in (tmp_path / "asked").read_text().splitlines()] == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "text",
    [
        'echo "squeue: error: Parse error in file x line 1: y" >&2; echo "squeue: fatal: Unable to process configuration file" >&2; exit 1',
        'echo "squeue: error: s_p_parse_file: cannot stat file x: No such file, retrying in 1sec" >&2; exec sleep 60',
    ],
)
async def test_a_configuration_that_cannot_be_read_is_the_users_to_mend(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm("bank", {"squeue": script(tmp_path, text)})
    with pytest.raises(UsageError, match=r"configuration cannot be read: .*(Parse error|cannot stat file).*SLURM_CONF"):
        await slurm.call("squeue", limit_s=2.0)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"configuration cannot be read: .*nowhere is not there"):
        await slurm.elements()


async def test_a_controller_that_is_away_is_the_worlds(tmp_path: Path) -> None:
    slurm = Slurm("bank", {"squeue": script(tmp_path, "exec sleep 60")})
    with pytest.raises(ExternalFailureError, match=r"has not answered within 0\.5 s: does `scontrol ping`"):
        await slurm.call("squeue", limit_s=0.5)


@pytest.mark.parametrize(("addresses", "open_at"), [("127.0.0.1 localhost", ""), ("127.0.0.1 10.9.9.9", "10.9.9.9")])
async def test_nodes_that_are_not_this_machine_need_certificates(addresses: str, open_at: str, tmp_path: Path) -> None:
    text = f'for each in {addresses}; do echo "NodeName=n NodeAddr=$each NodeHostName=n"; done'
    program = script(tmp_path, f'case "$*" in *show*) {text};; esac')
    slurm = Slurm("bank", {"scontrol": program, "sbatch": program})
    assert await slurm.open_address() == open_at
    await SlurmLauncher("bank", data_dir="/data", slurm=slurm, trust=("--insecure",)).check(1)
    bare = SlurmLauncher("bank", data_dir="/data", slurm=slurm)
    if open_at:
        with pytest.raises(UsageError, match=r"at 10\.9\.9\.9 would speak in plaintext.*--tls DIR.*--insecure"):
            await bare.check(1)
    else:
        await bare.check(1)
