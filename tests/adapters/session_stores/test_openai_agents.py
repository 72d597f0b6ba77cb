"""Sessions of OpenAI's Agents SDK in our store: what the SDK's own session answers, and what is left where a process is killed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adapters.session_stores import sdk  # skips where the SDK is not there

assert sdk.REASON

from agents import Runner, Session, SQLiteSession
from agents.memory import SessionSettings

from snapline.adapters.openai_agents import SnaplineSessions
from snapline.chaos.crash_child import CrashNote
from snapline.chaos.crash_kit import CrashKit
from snapline.storage.store.object_segments import ObjectStreamInUseError

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(600)]

CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add_items"), st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=200)), max_size=4)
        ),
        st.tuples(st.just("get_items"), st.one_of(st.none(), st.integers(0, 6))),
        st.tuples(st.just("pop_item")),
        st.tuples(st.just("clear_session")),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS)
async def test_it_answers_as_the_sdks_own_session(calls: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    theirs, folder = SQLiteSession("one"), tmp_path_factory.mktemp("sessions")
    for part in (calls[: len(calls) // 2], calls[len(calls) // 2 :]):
        with SnaplineSessions.open(folder) as sessions:  # opened again in the middle
            ours = sessions.session("one")
            for name, *arguments in part:
                assert await getattr(ours, name)(*arguments) == await getattr(theirs, name)(*arguments)
            assert await ours.get_items() == await theirs.get_items()
    theirs.close()


async def test_sessions_are_apart_and_threads_may_share_them(tmp_path: Path) -> None:
    with SnaplineSessions.open(tmp_path) as sessions:
        made = [sessions.session(f"{number}") for number in range(8)]
        assert isinstance(made[0], Session)
        rounds = [session.add_items([{"n": number}]) for number in range(10) for session in made]
        await asyncio.gather(*rounds)
        for session in made:
            assert sorted(item["n"] for item in await session.get_items()) == list(range(10))
        limited = sessions.session("0", SessionSettings(limit=3))
        assert await limited.get_items() == (await made[0].get_items())[-3:]
        await made[0].clear_session()
        assert await made[0].get_items() == [] and len(await made[1].get_items()) == 10
        with pytest.raises(ObjectStreamInUseError):
            SnaplineSessions.open(tmp_path)


async def test_the_runner_goes_on_with_it(tmp_path: Path) -> None:
    with SnaplineSessions.open(tmp_path) as sessions:
        result = await Runner.run(sdk.cashier(["rent"]), "pay the rent", session=sessions.session("one"))
        assert result.final_output == "paid 1"
    with SnaplineSessions.open(tmp_path) as sessions:
        result = await Runner.run(sdk.cashier(["rent", "power"]), "and power", session=sessions.session("one"))
        assert result.final_output == "paid 2", "what the first run did is in the conversation"
        kinds = [item.get("type", item.get("role")) for item in await sessions.session("one").get_items()]
    assert kinds == ["user", "function_call", "function_call_output", "message"] * 2


INVOICES = ("rent", "power", "water")


async def conversation(folder: Path, note: CrashNote) -> list[Any]:
    """A dialogue of three questions, each kept when its run has ended."""
    with SnaplineSessions.open(folder / "store") as sessions:
        session = sessions.session("one")
        while [item.get("role") for item in await session.get_items(1)] not in ([], ["assistant"]):
            await session.pop_item()  # of a run that was killed: it is asked again
        asked = [item["content"] for item in await session.get_items() if item.get("role") == "user"]
        note.found(*asked)
        for number, invoice in enumerate(INVOICES, 1):
            if invoice not in asked:
                note.began(invoice)
                await Runner.run(sdk.cashier(INVOICES[:number]), invoice, session=session)
                note.kept(invoice)
        return [item.get("type", item.get("role")) for item in await session.get_items()]


def test_a_conversation_resumes_wherever_it_is_killed(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(conversation, points=200)
    assert report.kills >= len(report.points)
