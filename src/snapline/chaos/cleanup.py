"""Finds processes that a killed run has left. The kernel ends processes with their parent, so there should be none."""

from pathlib import Path

MARK = b"snapline.chaos.fault_wrapper"


def leftovers(processes: Path = Path("/proc")) -> list[str]:
    """Return descriptions of processes whose run has ended, with the command that ends them."""
    descriptions = []
    for folder in processes.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if MARK in words and parent == "1":
            place, node = (word.decode() for word in words[words.index(MARK) + 1 :][:2])
            descriptions.append(f"process {folder.name}, {node} of {place}: kill -9 {folder.name}")
    return sorted(descriptions)
