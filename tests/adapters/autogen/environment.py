"""AutoGen's environment. `make test-autogen` builds it."""

import os

import pytest

REASON = "needs AutoGen in an environment of its own: make test-autogen"

PYTHON = os.environ.get("SNAPLINE_AUTOGEN_PYTHON", "")

needed = [pytest.mark.autogen, pytest.mark.timeout(300), pytest.mark.skipif(not PYTHON, reason=REASON)]
