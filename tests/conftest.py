"""For all tests: properties are checked by what they say, not by how long a busy machine takes for them."""

from hypothesis import settings

settings.register_profile("snapline", deadline=None)
settings.load_profile("snapline")
