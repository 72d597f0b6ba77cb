"""Makes untrusted text safe to print on a terminal.

Text from inputs, agents, hosts, certificates and stores is untrusted, and may contain control characters that a terminal interprets. An
escape sequence can hide lines or set the window title, and a bidirectional control character can reverse the display of names. So all
output and all log lines pass through `printable`, which replaces such characters with visible escapes.
"""

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, direction marks, line and paragraph separators, and lone surrogates, which cannot be encoded."""


def printable(text: str) -> str:
    r"""Return the text with unsafe characters replaced by visible escapes, such as `\x1b` for ESC.

    JSON remains valid and keeps its meaning, because its unsafe characters are already escaped or are replaced by valid JSON escapes such
    as `\u009b`.
    """
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
