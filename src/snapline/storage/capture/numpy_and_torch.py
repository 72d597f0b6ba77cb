"""Access to NumPy and torch without importing them. If a process has arrays or tensors, it has already imported their library, and all
other processes save the time for the import.

Each tensor is moved to the CPU and viewed as plain bytes in C order. So types that NumPy does not have (bfloat16, the 8-bit floats) need no
special treatment. The dtype, the shape and the values of a tensor are saved. The device, `requires_grad`, the autograd graph and the
strides are not saved, and tensors are restored on the CPU. Instances of subclasses such as `Parameter`, and sparse or quantized tensors,
are refused, because they would be restored differently.
"""

import math
import sys
from typing import Any

import msgspec

from snapline.errors import EncodingError
from snapline.storage.disk.record import Buffer


def is_tensor(value: object) -> bool:
    """Return whether `value` is a torch tensor or an instance of a subclass."""
    return is_tensor_class(type(value))


def is_tensor_class(kind: type) -> bool:
    """Return whether `kind` is torch's tensor class or a subclass of it."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # None while torch is being imported
    return tensor is not None and issubclass(kind, tensor)


def check_tensor(tensor: Any) -> None:
    """Raise an error if the tensor would be restored differently.

    Raises:
        NotImplementedError: If the tensor would be restored differently. The message describes the problem.
    """
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        raise NotImplementedError(
            f"torch tensors of type {type(tensor).__qualname__}: use .detach(), or its state_dict()"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotImplementedError("sparse or quantized torch tensors: save their parts")
    if tensor.device.type == "meta":
        raise NotImplementedError("torch tensors on the meta device: they have no values")


def size_of(tensor: Any) -> int:
    """Return the size of a tensor in bytes.

    Raises:
        NotImplementedError: If the tensor cannot be saved.
    """
    check_tensor(tensor)
    return int(tensor.numel()) * int(tensor.element_size())


def head_of(tensor: Any) -> bytes:
    """Return the encoded dtype and shape, which are stored before the bytes of the tensor."""
    return msgspec.msgpack.encode((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor in C order, as a flat ndarray of uint8. The array is a view if the tensor is contiguous and on the CPU,
    and otherwise a copy.

    Raises:
        NotImplementedError: If the tensor cannot be saved.
    """
    check_tensor(tensor)
    torch = sys.modules["torch"]
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        flat = plain.as_strided(
            (plain.numel(),), (1,)
        )  # If there is at most one element, its strides may have any value.
        return flat.view(torch.uint8).numpy()
    except RuntimeError as error:  # For example, the device may be gone.
        raise NotImplementedError(f"a torch tensor that cannot be read: {error}") from error


def make_tensor(dtype: str, shape: tuple[int, ...], content: Buffer) -> Any:
    """Return a tensor that uses the writable memory of `content` directly.

    Raises:
        EncodingError: If torch is not installed, or if it does not have this dtype.
        TypeError, ValueError: If the dtype, the shape and the content do not match.
    """
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError as error:
        raise EncodingError("the state holds a torch tensor: install torch, as on the host that saved it") from error
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise EncodingError(f"the state holds a torch tensor of dtype {dtype!r}, which this torch does not have")
    size_bytes = memoryview(content).nbytes
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != size_bytes:
        raise ValueError(f"a tensor of shape {shape} and dtype {dtype} does not take {size_bytes} bytes")
    if size_bytes == 0:  # `frombuffer` refuses empty buffers
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(content, dtype=kind).reshape(shape)


def numpy_if_loaded() -> Any:  # the module
    """Return the module NumPy if it is loaded completely, and otherwise None. While another thread is importing NumPy, the module has no
    `ndarray` yet."""
    module = sys.modules.get("numpy")
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
