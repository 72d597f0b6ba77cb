"""The tables of docs/security.md, made from the table that the product goes by: `python -m tests.house.roles_page`."""

from pathlib import Path

from snapline.channels.doors import DOORS, ROLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- made by `python -m tests.house.roles_page` -->\n", "<!-- end -->\n"


def tables() -> str:
    """Roles, and who may call what."""
    lines = ["", "| role | what it is for |", "| --- | --- |"]
    lines += [f"| `{role}` | {text} |" for role, text in ROLES.items()]
    lines += ["", f"| call | {' | '.join(ROLES)} |", f"| --- |{' :-: |' * len(ROLES)}"]
    for rpc, door in DOORS.items():
        service, _, name = rpc.rpartition("/")
        shown = f"`{service.rpartition('.')[2]}/{name}`"
        marks = ["itself" if role in ("host", "coordinator") and door.is_for_itself else "yes" for role in ROLES]
        cells = [mark if role in door.roles else "" for role, mark in zip(ROLES, marks, strict=True)]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def renewed(page: str) -> str:
    """The page with today's tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
