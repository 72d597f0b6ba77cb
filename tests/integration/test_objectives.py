"""What a fleet of real processes promises, and how its misses are told: in `status`, and once in the log."""

from pathlib import Path

import pytest
from tests.integration.processes import snapline
from tests.integration.running import running

from snapline.deploy.data_directory import LOGS_FOLDER

pytestmark = pytest.mark.timeout(120)


async def test_missed_objectives_are_told(data_dir: Path) -> None:
    """Epochs are made by hand, so the work at risk grows until somebody makes one; no recovery takes a millisecond."""
    stop = data_dir.with_name("stop")
    arguments = {"stop": str(stop), "period": "0", "rpo": "0.5", "rto": "0.001"}
    async with running(data_dir, "paced_bank:fleet", arguments) as fleet:
        before = await fleet.until(lambda now: "rpo" in now.loss.missed)
        assert (before.loss.rpo_ns, before.loss.rto_ns) == (500_000_000, 1_000_000) and "rto" not in before.loss.missed
        assert before.loss.at_risk_ns is not None and before.loss.at_risk_ns > before.loss.rpo_ns
        await fleet.client.create_snapshot()
        await fleet.recovered_from("h2")
        after = await fleet.until(lambda now: now.loss.missed == ("rpo", "rto"))
        assert [x.kind for x in after.concerns if not x.hosts] == ["rpo", "rto"]
        shown = await snapline("status", "--data-dir", data_dir, "-o", "table")
        log = "".join([path.read_text() for path in (data_dir / LOGS_FOLDER).glob("coordinator*.log")])
        stop.touch()
        await fleet.end_by_hand()
    assert shown.code == 0, shown
    assert "! the last recovery from a failure took " in shown.out and "rto_s is 0.001 s" in shown.out
    assert "(RPO 500 ms, missed)" in shown.out and "(RTO 1.00 ms, missed)" in shown.out
    assert log.count("rpo_s is 0.5 s") == log.count("rto_s is 0.001 s") == 1, log
