"""No text of others makes a terminal do anything."""

import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from snapline.security.printable import printable
from snapline.telemetry.log_lines import BoundIds, JsonLines, TextLines

EVIL = "\x1b[2J\r\x07\x9b31m\u202egnp\u2066\u200e\u061c\u2028\x7f\ud800"


def test_controls_and_marks_of_direction_are_written_as_escapes() -> None:
    written = r"\x1b[2J\x0d\x07\u009b31m\u202egnp\u2066\u200e\u061c\u2028\u007f\ud800"
    assert printable(EVIL) == written
    assert printable("Zoë\t→\n👍") == "Zoë\t→\n👍"


@given(st.text())
def test_json_means_the_same_and_everything_can_be_encoded(text: str) -> None:
    written = printable(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(written) == {text: [text]}
    assert all(each.isprintable() or each not in EVIL for each in written) and written.encode()
    assert not set(printable(text)) & set(EVIL) - set("[2J31mgnp")


def test_lines_of_both_forms_are_fit() -> None:
    record = logging.LogRecord("snapline", logging.ERROR, "", 1, "peer %s", (EVIL,), None)
    for form in (TextLines(), JsonLines(BoundIds(host=EVIL))):
        assert not set(form.format(record)) & set(EVIL) - set("[2J31mgnp")
