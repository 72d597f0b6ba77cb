"""Saves and loads sharded checkpoints of torch jobs in snapline's store (docs/torch.md).

`SnaplineWriter` and `SnaplineReader` implement the storage interfaces of torch.distributed.checkpoint."""

try:
    import torch.distributed.checkpoint  # noqa: F401  looked for, not used
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.torch_checkpoint needs torch: install snapline[torch]", name=error.name
    ) from error

from snapline.adapters.torch_checkpoint.checkpoint_reader import SnaplineReader
from snapline.adapters.torch_checkpoint.checkpoint_writer import SnaplineWriter

__all__ = ["SnaplineReader", "SnaplineWriter"]
