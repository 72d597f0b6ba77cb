"""The tables of docs/security.md: `python -m tests.house.roles_page`. Roles come from the product, the rest from `tests/access/table.py`, which is carried out there."""

from collections.abc import Callable
from pathlib import Path

from tests.access.table import FILES, GATEWAY, PORTS, PRIVATE, PUBLIC, VIEW, WITHIN, Route

from snapline.security.rpc_authorization import ROLES, RPC_RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- made by `python -m tests.house.roles_page`: {} -->\n", "<!-- end -->\n"


def roles() -> list[str]:
    """Roles, and who may call what."""
    lines = ["", "| role | what it is for |", "| --- | --- |"]
    lines += [f"| `{role}` | {text} |" for role, text in ROLES.items()]
    lines += ["", f"| call | {' | '.join(ROLES)} |", f"| --- |{' :-: |' * len(ROLES)}"]
    for rpc, door in RPC_RULES.items():
        path, _, name = rpc.rpartition("/")
        service = path.rpartition(".")[2]
        shown = (
            f"`{service}/{'*' if name.startswith(service) else name}`"  # the whole name would make the table too wide
        )
        marks = ["itself" if role in ("host", "coordinator") and door.is_self_only else "yes" for role in ROLES]
        cells = [mark if role in door.roles else "" for role, mark in zip(ROLES, marks, strict=True)]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return lines


def ports() -> list[str]:
    """What strangers may do, and what everybody can cost at most."""
    lines = ["", "| port | who proves nothing may | each costs at most |", "| --- | --- | --- |"]
    for name, port in PORTS.items():
        limits = "; ".join(_limit(words, value) for words, (_, value) in port.limits.items())
        lines.append(f"| {name} | {port.strangers} | {limits} |")
    return lines


def _limit(words: str, value: float) -> str:
    """With its unit: `2 MiB of a message`."""
    if words.startswith("bytes "):
        size = f"{value / 1024**2:g} MiB" if value >= 1024**2 else f"{value / 1024:g} KiB"
        return f"{size} {words.removeprefix('bytes ')}"
    if words.startswith("ms "):
        return f"{value / 1000:g} s {words.removeprefix('ms ')}"
    if words.startswith("seconds "):
        return f"{value:g} s {words.removeprefix('seconds ')}"
    return f"{value:,.0f} {words}"


def routes() -> list[str]:
    """Routes whose callers fare alike, in one line; the most of them last, as all others."""
    lines = [
        "",
        "| routes | without the token | where none is asked for: by another name than this machine's | from a page of another site |",
    ]
    lines.append("| --- | --- | --- | --- |")
    for name, rows in (("gateway", GATEWAY), ("view", VIEW)):
        alike: dict[tuple[str, str, str], list[str]] = {}
        for row in rows:
            key = (_answer(row, row.nobody), _answer(row, row.other_name), _answer(row, row.other_site))
            alike.setdefault(key, []).append(f"`{row.route}`")
        *few, most = sorted(alike, key=lambda key: len(alike[key]))
        lines += [f"| {name}: {', '.join(alike[key])} | {' | '.join(key)} |" for key in few]
        lines.append(f"| {name}: all others | {' | '.join(most)} |")
    return lines


def _answer(row: Route, status: int) -> str:
    return "served" if status == 0 or status == row.ok < 400 else f"{status}"


def files() -> list[str]:
    """By who may read them."""
    lines = ["", "| for | files |", "| --- | --- |"]
    for readers in (PRIVATE, WITHIN, PUBLIC):
        found = [f"`{name}` ({row.holds})" for name, row in FILES.items() if row.readers == readers]
        lines.append(f"| {readers} | {', '.join(found)} |")
    return lines


PARTS: dict[str, Callable[[], list[str]]] = {"roles": roles, "ports": ports, "routes": routes, "files": files}


def renewed(page: str) -> str:
    """The page with today's tables."""
    for name, made in PARTS.items():
        begin = BEGIN.format(name)
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE.name} has no place for {name}"
        page = before + begin + "\n".join([*made(), "", ""]) + END + rest.partition(END)[2]
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
