"""The part of the host core that finds the answers which agents take instead of asking, and counts what they have asked
(`agent_runtime/recorded_answers.py`).
"""

from collections.abc import Iterable

from snapline.agent_runtime.durable import FAILED, REFUSED, GroupEnd, encode_failure
from snapline.agent_runtime.host.host_state import DurableTurn, HostState, LocalAgent
from snapline.agent_runtime.recorded_answers import AskedQuestions, question_of
from snapline.storage.log.answer_files import KEPT_KINDS, RecordedAnswer
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import JournalEntry

MISSING = "NoRecordedAnswer"
"""Name of the error with which a step fails if the fleet runs only on recorded answers and there is none."""


def answers_to(
    shared: HostState, agent: LocalAgent, turn: DurableTurn, ends_at: GroupEnd
) -> dict[int, RecordedAnswer | None]:
    """Return the recorded answers to the turn's open requests by place, as `find_answer` does, without effects. In a race, what has a
    recorded answer came first, so the other requests are left out."""
    requests = [(place, request) for place, request in turn.open_requests() if request.kind != EFFECT]
    if ends_at == "first":
        for place, request in requests:
            answer = find_answer(shared, agent, turn, place, request, is_required=False)
            if answer is not None:
                return {place: answer}
    return {place: find_answer(shared, agent, turn, place, request) for place, request in requests}


def find_answer(
    shared: HostState,
    agent: LocalAgent,
    turn: DurableTurn,
    place: int,
    request: JournalEntry,
    *,
    is_required: bool = True,
) -> RecordedAnswer | None:
    """Return the recorded answer to a request at this place of the turn's journal, or None if the request must be made. If a request must
    not be made and has no answer, the result is a failure. `is_required` is False if another request may have the answer instead."""
    book = shared.answers
    if book is None or request.kind not in KEPT_KINDS or (request.kind == "approval" and book.asks_people):
        return None
    agent.asked = agent.asked or AskedQuestions()
    question = question_of(request)
    is_race = turn.look.ends_at == "first"  # then only one member counts as asked
    earlier = [] if is_race else turn.members[: place - len(turn.journal)]
    occurrence = agent.asked.occurrence(question, turn.journal, earlier)
    answer = book.find(agent.id, question, occurrence)
    if answer is None and book.is_complete and is_required and request.kind != "approval":
        return _missing(shared, agent, request, occurrence)
    return answer


def count_questions(shared: HostState, agent: LocalAgent, entries: Iterable[JournalEntry]) -> None:
    """Count the requests of a durable turn that has ended."""
    if shared.answers is not None:
        agent.asked = agent.asked or AskedQuestions()
        agent.asked.add(agent.id, entries, shared.answers)


def _missing(shared: HostState, agent: LocalAgent, request: JournalEntry, occurrence: int) -> RecordedAnswer:
    which = f" for the {occurrence}th time" if occurrence > 3 else ("", "", " again", " for the third time")[occurrence]
    reason = f"no answer is recorded for what the agent asks{which}, and the fleet runs on recorded answers only"
    shared.note("error", f"agent {agent.id}: {request.kind} {request.name!r}: {reason}")
    outcome, result = FAILED, encode_failure(MISSING, reason)
    if request.kind == EFFECT:
        outcome, result = REFUSED, f"effect {request.name!r} is refused: {reason}".encode()
    return RecordedAnswer(agent.id, *question_of(request), occurrence, outcome, result)
