"""Generated code is what its generator makes of the protos: nobody has edited it, nobody forgot to run it."""

import subprocess
import sys
from pathlib import Path


def test_generating_the_protobuf_code_again_changes_nothing(root: Path, tmp_path: Path) -> None:
    protos = sorted((root / "protos" / "snapline" / "protos" / "v1").glob("*.proto"))
    assert protos
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(root / "protos"), *outputs, *map(str, protos)],
        check=True,
        timeout=60,
    )
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "snapline" / "protos" / "v1").iterdir()}
    folder = root / "src" / "snapline" / "protos" / "v1"
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if "_pb2" in path.name}
    assert sorted(kept) == sorted(fresh)
    different = [name for name in sorted(fresh) if fresh[name] != kept[name]]
    assert not different, f"run `make protos`: {different}"
