"""The replicas, as the library sees them."""

import zlib

from pysyncobj.node import Node  # type: ignore[import-untyped]  # the library has no types


class RaftNode(Node):  # type: ignore[misc]  # as above: its base is Any
    """Replica with its permanent id and its address.

    The library iterates over sets of nodes. Their hash is equal in every process, so a seed reproduces a run.
    """

    def __init__(self, id: str, address: str) -> None:
        """Name a replica.

        Args:
            id: its name in the static list of members, such as `"c1"`; equal ids are the same replica.
            address: `host:port` of its gRPC server.
        """
        super().__init__(id, address=address)
        self._hash = zlib.crc32(id.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.id == other.id

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"RaftNode({self.id!r}, {self.address!r})"
