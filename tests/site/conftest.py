"""The site is built once for all tests that look at it."""

from pathlib import Path

import pytest
from tests.site.site_files import IS_THERE, build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not IS_THERE:
        pytest.skip("needs MkDocs with Material: `make test-site`")
    return build(tmp_path_factory.mktemp("site"))
