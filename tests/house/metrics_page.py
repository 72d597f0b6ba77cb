"""The tables of docs/metrics.md, made from the tables that the product goes by: `python -m tests.house.metrics_page`."""

from pathlib import Path

from snapline.agent_runtime.host.host_metrics import FAMILIES as HOST
from snapline.coordinator.service.coordinator_metrics import FLEET, RAFT
from snapline.telemetry.metrics import PREFIX, PROCESS_INFO, Family
from snapline.telemetry.spans import SPANS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BEGIN, END = "<!-- made by `python -m tests.house.metrics_page` -->\n", "<!-- end -->\n"

TABLES: dict[str, tuple[Family, ...]] = {
    "Of every process": (PROCESS_INFO, *SPANS),
    "Of a coordinator that leads: the fleet": FLEET,
    "Of every coordinator: its replica": RAFT,
    "Of every host": HOST,
}


def tables() -> str:
    """All families, by who says them."""
    lines = []
    for title, families in TABLES.items():
        lines += ["", f"## {title}", "", "| metric | kind | what it says | in Flink |", "| --- | --- | --- | --- |"]
        for each in families:
            labels = f"{{{', '.join(each.labels)}}}" if each.labels else ""
            lines.append(f"| `{PREFIX}{each.name}{labels}` | {each.kind} | {each.text} | {each.flink} |")
    return "\n".join([*lines, "", ""])


def renewed(page: str) -> str:
    """The page with today's tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
