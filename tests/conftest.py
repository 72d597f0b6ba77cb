"""For all tests: properties are checked by what they say, not by how long a busy machine takes for them.

Some tests fork this process, others have gRPC in it: it must be told so before gRPC is imported (`storage/capture/forked.py`).
"""

from hypothesis import settings

from snapline.storage.capture import forked

forked.prepare()

settings.register_profile("snapline", deadline=None)
settings.load_profile("snapline")
