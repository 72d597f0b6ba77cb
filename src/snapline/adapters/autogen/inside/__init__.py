"""Code that runs in AutoGen's environment.

This package may import only the standard library, autogen-core, its own modules, and `pipe_protocol.py`."""
