"""Code that runs in AutoGen's environment: it may import only the standard library, autogen-core, this folder, `names.py` and `frames.py`."""
