"""Protobuf stays where bytes become structs: codecs, and the servicer, whose calls gRPC makes with messages."""

import re
from pathlib import Path

from tests.house.product import NOT_PRODUCT, in_package

INSIDE = {
    "security/dial_back.py",
    "channels/frame.py",
    "security/rpc_authorization.py",
    "channels/grpc_link.py",
    "messages/wire.py",
    "messages/client_wire.py",
    "coordinator/raft/messages.py",
    "coordinator/raft/raft_streams.py",
    "coordinator/service/users.py",
    "coordinator/service/server.py",
    "coordinator/service/servicer.py",
    "coordinator/state/operations.py",
}


def test_no_protobuf_type_leaves_the_codecs(root: Path, handwritten: list[Path]) -> None:
    product = [path for path in handwritten if path.relative_to(root).parts[0] not in NOT_PRODUCT]
    found = {
        in_package(root, path)
        for path in product
        if re.search(r"^\s*(from|import) (google\.protobuf|snapline\.protos)", path.read_text(), re.MULTILINE)
    }
    assert found - INSIDE == set()
