"""`snapline advise` on a fleet of real processes: what it says is what the fleet has measured."""

import math
from pathlib import Path

import msgspec
import pytest
from tests.integration.processes import snapline, together
from tests.integration.running import running

from snapline.protocols.advice import FleetAdvice, RunningFigures, advise, declared_mtbf

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("bcs", marks=pytest.mark.slow)])
async def test_a_fleet_is_advised_from_its_own_figures(data_dir: Path, protocol: str) -> None:
    stop = data_dir.with_name("stop")
    period = "1.0" if protocol == "bcs" else "0.2"
    async with running(
        data_dir, "paced_bank:fleet", {"stop": str(stop), "protocol": protocol, "period": period}
    ) as fleet:
        await fleet.until_epochs(2)
        where = ("--data-dir", data_dir, "--over", "1.5")
        young = await snapline("advise", *where, "-o", "json")
        await fleet.recovered_from("h2")
        await fleet.until_more_epochs(2)
        asked = ("advise", *where)
        seen, said, shown = await together(
            (*asked, "-o", "json"), (*asked, "--mtbf", "24h", "-o", "json"), (*asked, "-o", "table")
        )
        stop.touch()
        await fleet.end()
    assert young.code == seen.code == said.code == shown.code == 0, (young, seen, said, shown)

    assert young.json["interval"] is None and "No failure in " in str(young.json["missing"])
    assert len(young.rows("intervals")) == 5

    about = msgspec.convert(seen.json["evidence"], dict[str, object])
    assert (about["protocol"], about["agents"], about["hosts"]) == (protocol, 9, 3)
    assert seen.json["missing"] == []
    mtbf = msgspec.convert(seen.json["mtbf"], dict[str, float])
    assert mtbf["failures"] == 1 and mtbf["mean_s"] == pytest.approx(mtbf["observed_s"])

    figures = msgspec.convert(said.json["evidence"], RunningFigures)
    assert figures.price_s is not None and 0 < figures.price_s < 1 and len(figures.recoveries_s) == 1
    assert figures.interval_s is not None and figures.duration_s is not None and figures.duration_s > 0
    assert (figures.moved is not None) and 0 < figures.moved <= 1
    again = advise(figures, declared_mtbf(24 * 3600.0))
    told = {name: value for name, value in said.json.items() if name in FleetAdvice.__struct_fields__}
    assert told["protocol"] == again.protocol and told["why"] == again.why
    assert again.interval is not None and math.isclose(again.interval.mtbf_s, 86_400.0)
    assert shown.out.startswith(("Keep ", "Run it with "))
    assert "price_s" in shown.out and "turns_per_s" in shown.out
