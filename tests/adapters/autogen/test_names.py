"""Ids of AutoGen's agents and ours: one for one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from snapline.adapters.autogen import agent_name, autogen_id
from snapline.ids import check_id

KINDS = st.from_regex(re.compile(r"[\w\-.]+", re.ASCII), fullmatch=True).filter(lambda kind: len(kind) < 20)
KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


@given(KINDS, KEYS)
def test_an_id_comes_back(kind: str, key: str) -> None:
    name = agent_name(f"{kind}/{key}")
    assert check_id(name[:128]) and autogen_id(name) == f"{kind}/{key}"


@given(KINDS, KEYS, KINDS, KEYS)
def test_no_two_agents_have_one_name(kind: str, key: str, other_kind: str, other_key: str) -> None:
    one, other = f"{kind}/{key}", f"{other_kind}/{other_key}"
    assert (agent_name(one) == agent_name(other)) == (one == other)


def test_an_agent_of_ours_is_none_of_autogens() -> None:
    assert autogen_id("autogen") == "" and autogen_id("kicker") == ""
