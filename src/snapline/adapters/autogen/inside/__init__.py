"""Code that runs in AutoGen's environment: the standard library and autogen-core only, nothing of ours but this folder and its two neighbours."""
