"""What can be carried out here: every word has an answer, and what cannot be is refused in a file and left out of what is drawn."""

from pathlib import Path

import pytest

from snapline.chaos import preload
from snapline.chaos.capabilities import EVERYTHING, Where, check_capabilities, drawn, list_capabilities, problems
from snapline.chaos.process_faults import leftovers
from snapline.errors import UsageError
from snapline.sim.faults.faults import describe_faults
from snapline.sim.scenario import parse_scenario


def test_every_word_has_an_answer() -> None:
    found = list_capabilities()
    assert [each.word for each in found] == [word for _, word, _ in describe_faults()]
    assert all(each.means for each in found)
    never = {each.word for each in found if each.reason_against and each.reason_against != preload.reason_against()}
    assert never == {"hold", "disk: stale-read", "disk: away"}


def test_without_a_compiler_disks_and_clocks_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "reason_against", lambda: "there is no C compiler")
    missing = {each.word for each in list_capabilities() if each.reason_against == "there is no C compiler"}
    assert {"clock", "hang: store", "disk: power-cut", "disk: slow"} < missing
    assert not {"disk: bit-flip", "hang: stop", "crash", "partition: one"} & missing


@pytest.mark.parametrize("word", ['hold = { at = "1s" }', 'disk = { mode = "stale-read" }'])
def test_a_file_that_asks_for_what_cannot_be_is_refused(word: str) -> None:
    scenario = parse_scenario(f'budget = "beyond"\n[fleet]\nhosts = 3\n[[fault]]\n{word}', source="a test")
    with pytest.raises(UsageError, match=r"fault\[0\].* cannot be carried out .*chaos doctor"):
        check_capabilities(scenario)


def test_what_is_drawn_can_be_carried_out() -> None:
    assert not [problem for seed in range(200) for problem in problems(drawn(EVERYTHING, seed))]


ELSEWHERE: tuple[Where, ...] = ("ssh", "podman", "slurm", "ray")


@pytest.mark.parametrize("on", ELSEWHERE)
def test_a_launcher_can_what_its_words_can(on: Where) -> None:
    """Kill, ask to end, freeze, thaw, start; and a store that all share can be damaged. A container is not frozen ten times in a second."""
    found = list_capabilities(on)
    assert [each.word for each in found] == [word for _, word, _ in describe_faults()]
    assert all(each.means for each in found)
    can = {each.word for each in found if not each.reason_against}
    coordinators = {f"coordinator: {kind}" for kind in ("kill-leader", "kill", "lose-quorum", "depose")}
    members = {"membership: leave", "membership: join"}
    assert can == {"crash", "pause", "slow", "disk: bit-flip", *coordinators, *members} - (
        {"slow"} if on == "podman" else set()
    )


@pytest.mark.parametrize("on", ELSEWHERE)
def test_elsewhere_what_is_drawn_can_be_carried_out_and_is_not_nothing(on: Where) -> None:
    found = [drawn(EVERYTHING, seed, on) for seed in range(200)]
    assert not [problem for scenario in found for problem in problems(scenario, on)]
    assert len({fault.kind for scenario in found for fault in scenario.fault}) >= 5 - (on == "podman")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ('partition = { shape = "one" }', "gates stand before"),
        ('crash = { when = "recording" }', "points of the code"),
        ('pause = { failpoint = "store.ref.linked" }', "points of the code"),
        ('disk = { mode = "eio", failpoint = "store.ref.linked" }', "points of the code"),
        ('coordinator = { kind = "unknown-outcome" }', "points of the code"),
        ('clock = { host = "h1" }', "the preloaded library"),
    ],
)
def test_elsewhere_a_file_that_asks_for_more_is_refused_in_one_sentence(fault: str, reason: str) -> None:
    scenario = parse_scenario(f"[fleet]\nhosts = 3\n[[fault]]\n{fault}", source="a test")
    check_capabilities(scenario)
    with pytest.raises(UsageError, match=rf"fault\[0\].* on ssh: {reason}.*chaos doctor --on ssh") as refused:
        check_capabilities(scenario, "ssh")
    assert "\n" not in str(refused.value)


def test_elsewhere_limits_are_refused() -> None:
    scenario = parse_scenario("[fleet]\nhosts = 3\n[limits]\nchannel_credit = 2", source="a test")
    with pytest.raises(UsageError, match="limits cannot be set on ray"):
        check_capabilities(scenario, "ray")


def process(folder: Path, pid: int, parent: int, *words: str) -> None:
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    (folder / str(pid) / "stat").write_text(f"{pid} (python (x)) S {parent} {pid} {pid} 0")


def test_what_an_earlier_run_has_left_is_named(tmp_path: Path) -> None:
    victim = ("python", "-m", "snapline.chaos.fault_wrapper", "/tmp/run/chaos", "h2", "host", "run")
    process(tmp_path, 10, 1, *victim)
    process(tmp_path, 11, 99, *victim)
    process(tmp_path, 12, 1, "python", "-m", "snapline")
    (tmp_path / "self").mkdir()
    assert leftovers(tmp_path) == ["process 10, h2 of /tmp/run/chaos: kill -9 10"]
