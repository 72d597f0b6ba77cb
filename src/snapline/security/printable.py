"""Make untrusted text safe to print on a terminal.

Inputs, agents, hosts, certificates and stores contain untrusted text, which a terminal would interpret. An escape sequence can hide lines
or set a title; a bidirectional mark reverses names. So all output and all log lines pass through `printable`, which makes such characters
visible.
"""

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, direction marks, line and paragraph separators, and lone surrogates, which cannot be encoded."""


def printable(text: str) -> str:
    r"""Return the text with `\x1b` for ESC, and so on.

    JSON stays valid JSON with the same meaning: it has escaped all but the characters that become `\u009b` and the like.
    """
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
