"""docs/gateway.md: its fleet, gateway and requests run, and statuses are those of its table."""

from pathlib import Path

import httpx
import pytest
from tests.house.pages import ROOT
from tests.kit.shown_page import PIP, free_port, shown

pytestmark = pytest.mark.timeout(180)


def test_requests_of_the_page_are_answered_as_it_says(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with shown("docs/gateway.md", tmp_path, {**PIP, "127.0.0.1:8080": address}) as page:
        page.run("pip install")
        page.run("snapline up")
        page.run("-X POST")
        page.run("outputs/payments")
        with httpx.Client(base_url=f"http://{address}", timeout=30) as http:
            check_statuses(http)


def check_statuses(http: httpx.Client) -> None:
    """Rows of the page's table, and the other answers."""
    key = {"Idempotency-Key": "order-17"}
    again = http.post("/agents/till-3/Paid", json={"amount": 5}, headers=key)
    assert (again.status_code, again.json()["is_repeated"], again.headers["Idempotency-Key"]) == (202, True, "order-17")
    early = http.post("/agents/till-3/Paid?answer=early", json={"amount": 2}).json()
    assert early["message"] == {"type": "Total", "fields": {"amount": 7}}
    refused = {
        400: http.post("/agents/till-3/Paid?answer=maybe", json={"amount": 5}),
        403: http.post("/agents/till-3/Total", json={"amount": 5}),
        404: http.post("/agents/till-4/Paid", json={"amount": 5}),
        415: http.post("/agents/till-3/Paid", content=b"{}"),
        421: http.post("/agents/till-3/Paid", json={"amount": 5}, headers={"Host": "elsewhere.example"}),
        422: http.post("/agents/till-3/Paid", json={"amount": 6}, headers=key),
    }
    assert [each.status_code for each in refused.values()] == list(refused)
    table = (ROOT / "docs" / "gateway.md").read_text()
    for status, answer in refused.items():
        assert answer.json()["status"] == status and f"\n| {status} | " in table
    described = http.get("/openapi.json").json()["paths"]
    assert "/agents/{agent}/Paid" in described and "/agents/{agent}/Total" not in described, list(described)
