"""docs/examples.md: the support team answers as shown, once a person has granted a large refund."""

import json
import time
from pathlib import Path

import pytest
from tests.kit.shown_page import shown

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

from snapline.examples.payments import Book, read_entries
from snapline.examples.support_team import ALONE_MOST, price_of

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.slow, pytest.mark.timeout(120)]

COMPLAINTS = 3


def test_the_support_team_refunds_each_complaint_of_the_page_once(tmp_path: Path) -> None:
    with shown("docs/examples.md", tmp_path) as page:
        service, fleet = page.take("support_team:fleet").splitlines()
        page.left.clear()  # `tests/examples/test_examples_page.py` runs the others
        page.start(service)
        page.start(fleet)
        team = page.background[-1]
        deadline_s = time.monotonic() + 60
        while team.poll() is None and time.monotonic() < deadline_s:
            listed = "".join(page.shell("snapline approval list --data-dir team -o json")[1])
            for each in json.loads(listed)["approvals"] if listed else []:
                assert price_of(each["details"]["order"]) > ALONE_MOST
                page.shell(f"snapline approval grant {each['id']} --data-dir team")
        assert team.poll() == 0
    paid = {order: len(entries) for order, entries in Book(read_entries(tmp_path / "payments.jsonl")).standing.items()}
    assert paid == {f"order-{order}": 1 for order in range(1, COMPLAINTS + 1)}
