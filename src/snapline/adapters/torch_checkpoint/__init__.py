"""Sharded checkpoints of torch jobs on snapline's store: `SnaplineWriter` and `SnaplineReader` for torch.distributed.checkpoint (docs/torch.md)."""

try:
    import torch.distributed.checkpoint  # noqa: F401  looked for, not used
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.torch_checkpoint needs torch: install snapline[torch]", name=error.name
    ) from error

from snapline.adapters.torch_checkpoint.checkpoint_reader import SnaplineReader
from snapline.adapters.torch_checkpoint.checkpoint_writer import SnaplineWriter

__all__ = ["SnaplineReader", "SnaplineWriter"]
