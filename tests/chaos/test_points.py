"""Failpoints over processes: two of them, as two books in one folder."""

from pathlib import Path

from snapline.chaos.failpoints import ArmedPoint, FailpointArmer, FailpointReader


def test_passes_count_over_all_processes_and_one_suffers(tmp_path: Path) -> None:
    arming = FailpointArmer(tmp_path)
    one, other = FailpointReader(tmp_path, "h1"), FailpointReader(tmp_path, "c1")
    assert one.due("store.ref.linked") is None
    arming.arm(ArmedPoint(7, "store.ref.linked", 3, "crash"))
    arming.arm(ArmedPoint(8, "store.ref.linked", 4, "pause"))
    assert [one.due("store.ref.linked"), other.due("store.ref.synced"), other.due("store.ref.linked")] == [None] * 3
    assert other.due("store.ref.linked") == "crash" and arming.hits() == {7: "c1"}
    assert one.due("store.ref.linked") == "pause" and arming.hits() == {8: "h1"}
    assert one.due("store.ref.linked") is None and arming.hits() == {}


def test_what_is_disarmed_never_acts(tmp_path: Path) -> None:
    arming, one = FailpointArmer(tmp_path), FailpointReader(tmp_path, "h1")
    arming.arm(ArmedPoint(1, "store.ref.linked", 1, "error"))
    arming.disarm()
    assert one.due("store.ref.linked") is None


def test_a_process_that_starts_again_counts_on(tmp_path: Path) -> None:
    arming = FailpointArmer(tmp_path)
    arming.arm(ArmedPoint(1, "store.ref.linked", 2, "error"))
    assert FailpointReader(tmp_path, "h1").due("store.ref.linked") is None
    assert FailpointReader(tmp_path, "h1").due("store.ref.linked") == "error"
