"""People say what came of effects in doubt, of a fleet whose host was killed in the middle of each; and what is to become of those that have ended."""

from pathlib import Path

import pytest
from tests.integration.fleets import doubters
from tests.integration.running import running

import snapline
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.errors import NotFoundError, UsageError

pytestmark = pytest.mark.timeout(240)


async def test_people_say_of_one_effect_what_came_of_it_and_of_another_that_it_was_not_done(data_dir: Path) -> None:
    folder = data_dir.with_name("service")
    folder.mkdir()
    hold, paid = folder / "hold", folder / "paid"
    hold.touch()
    paid.touch()
    async with running(data_dir, "doubters:fleet", {"folder": str(folder)}, hosts=1) as fleet:
        await fleet.until(lambda now: paid.read_text() == "seat\n")
        async with await snapline.Client.connect(data_dir=data_dir) as client:
            with pytest.raises(UsageError, match="needs nobody's word"):
                await client.resolve_effect("a", "seat", result="early")
            await fleet.recovered_from("h1")
            with pytest.raises(NotFoundError, match="it waits for 'seat'"):
                await client.resolve_effect("a", "hotel", not_done=True)
            assert [(each.key, each.fate) for each in await client.effects()] == [("seat", "needs people")]
            await client.resolve_effect("a", "seat", result="by people")
            await fleet.until(lambda now: paid.read_text() == "seat\nhotel\n")
            with pytest.raises(UsageError, match="effect 'hotel' of agent 'a' has not failed: is called"):
                await client.retry_effect("a", "hotel")
            await fleet.recovered_from("h1")
            hold.unlink()
            await client.retry_effect("a", "hotel")
            for _ in range(2):
                await client.undo_effect("a", "seat")
            with pytest.raises(UsageError, match="was undone"):
                await client.retry_effect("a", "seat")
            await client.send("a", doubters.End())
        await fleet.end()
    assert paid.read_text() == "seat\nhotel\nhotel\nseat back\n"
    store = open_store(data_dir / "store", fleet=doubters.fleet(str(folder)))
    state = store.snapshot("latest").agents["a"].state
    assert isinstance(state, doubters.Books) and state.receipts == ["by people", "receipt of hotel"]
    assert [(each.key, each.fate) for each in store.effects()] == [
        ("seat", "compensated"),
        ("hotel", "done"),
        ("seat/undo", "done"),
    ]
