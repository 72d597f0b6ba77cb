"""docs/ui.md: each view that it starts serves the screens of its table, and the exported file stands alone."""

import re
from pathlib import Path

import httpx
import pytest
from tests.kit.shown_page import PIP, ShownPage, shown

pytestmark = pytest.mark.timeout(180)

ANY_PORT = {"snapline ui serve": "snapline ui serve --listen 127.0.0.1:0"}


def test_views_of_the_page_serve_what_it_says(tmp_path: Path) -> None:
    with shown("docs/ui.md", tmp_path, PIP | ANY_PORT) as page:
        check_screens(page, page.run("pip install")[-1][0])
        file = tmp_path / "fleet.html"
        page.run("ui export")
        text = file.read_text()
        assert "order-desk" in text and "<script" not in text and not re.search(r'(?:src|href)="https?:', text)
        (traced,) = page.run("--trace traced/traces")[-1]
        assert "ping" in httpx.get(f"{traced}/space-time", timeout=30).text
        (reports,) = page.run("--reports")[-1]
        assert "quiet" in httpx.get(f"{reports}/simulation", timeout=30).text


def check_screens(page: ShownPage, address: str) -> None:
    """Each path that the table names answers, and nothing can be changed."""
    paths = re.findall(r"^\| \*\*.*?`(/[\w-]+)`", page.text, re.MULTILINE)
    assert len(paths) > 4
    with httpx.Client(base_url=address, timeout=30) as http:
        assert "order-desk" in http.get("/").text
        for path in [*sorted(set(paths) - {"/simulation"}), "/epochs/latest", "/recovery"]:
            answer = http.get(path.replace("/N", "/latest"))
            assert answer.status_code == 200 and "<h1" in answer.text, path
        assert [http.get(path).status_code for path in ("/act", "/simulation")] == [404, 404], "each has its option"
