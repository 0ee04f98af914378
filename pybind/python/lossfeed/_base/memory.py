"""Memory shared with NumPy and torch, without copies. Each library is imported only where it is used."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from .errors import SettingsError, UsageError

#: Element types that travel in batches. NumPy has no bfloat16.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
)


def torch_loaded() -> Any | None:
    """torch if this process has imported it, else None. Never imports it."""
    return sys.modules.get("torch")


def require_torch(what: str) -> Any:
    """Imports torch, or says what needs it and how to get it."""
    try:
        import torch
    except ImportError as cause:
        raise UsageError(f"{what} needs PyTorch: pip install 'lossfeed[torch]'") from cause
    return torch


def require_numpy(what: str) -> Any:
    """Imports NumPy, or says what needs it and how to get it."""
    try:
        import numpy
    except ImportError as cause:
        raise UsageError(f"{what} needs NumPy: pip install numpy") from cause
    return numpy


def compiling() -> bool:
    """Whether torch.compile is tracing this call."""
    torch = torch_loaded()
    return torch is not None and torch.compiler.is_compiling()


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    torch = torch_loaded()
    return torch is not None and isinstance(value, torch.Tensor)


def is_stream(value: Any) -> bool:
    """Whether it is torch's IterableDataset, which inherits a ``__getitem__`` that raises, and may have a length."""
    torch = torch_loaded()
    return torch is not None and isinstance(value, torch.utils.data.IterableDataset)


def is_array(value: Any) -> bool:
    """Whether `value` is a NumPy array, without importing NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def check_dense(name: str, value: Any) -> None:
    """Refuses tensors and arrays of which the plain elements would be but a part: sparse, quantised, masked ones."""
    if is_tensor(value):
        import torch

        if value.layout is not torch.strided:
            raise SettingsError(f"{name} is a {value.layout} tensor: make it dense, with to_dense()")
        if value.is_meta:
            raise SettingsError(f"{name} is on the device meta and has no data: give a real tensor")
        if value.is_quantized:
            raise SettingsError(f"{name} is a quantised tensor: convert it with dequantize() or int_repr()")
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise SettingsError(
            f"{name} is a masked array, and batches have no masks: fill it with filled(value), or remove the masked "
            "rows"
        )


def dtype_name(value: Any) -> str:
    """The dtype of a tensor or array as the name both libraries share."""
    return str(value.dtype).removeprefix("torch.") if is_tensor(value) else value.dtype.name


def span(tensor: Any) -> ctypes.Array[ctypes.c_ubyte]:
    """The bytes from a CPU tensor's first element to the end of its last, as an object with the buffer protocol that
    keeps the tensor alive. Strides must not be negative, which torch guarantees."""
    if tensor.numel() == 0:
        return (ctypes.c_ubyte * 0)()
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        address = tensor.data_ptr()
    except RuntimeError as cause:
        raise SettingsError(
            "this tensor cannot be read (torch.func's grad, vjp and vmap hide its data): compute "
            "lossfeed.cross_entropy there, return the per-sample losses (has_aux=True), and pass them to "
            "loader.score_losses"
        ) from cause
    borrowed: ctypes.Array[ctypes.c_ubyte]
    borrowed = (ctypes.c_ubyte * (elements * tensor.element_size())).from_address(address)
    borrowed.owner = tensor  # type: ignore[attr-defined]
    return borrowed


def as_bytes(value: Any) -> Any:
    """The elements of a C-contiguous array or CPU tensor as an object with the buffer protocol."""
    if is_tensor(value):
        # A conjugate, and its imaginary part, may be but marked as what they are.
        return span(value.detach().resolve_conj().resolve_neg().contiguous())
    numpy = require_numpy("an array")
    return memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))


def to_torch(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """`buffer` as a torch tensor; the tensor keeps the buffer alive."""
    import torch

    kind = getattr(torch, dtype)
    if len(buffer) == 0:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(buffer, dtype=kind)
    # A view of the shape it has already would cost as much as the tensor itself.
    return flat if flat.shape == shape else flat.view(shape)


def to_numpy(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """`buffer` as a NumPy array; the array keeps the buffer alive."""
    numpy = require_numpy("a batch as arrays")
    if dtype == "bfloat16":
        raise SettingsError("NumPy has no bfloat16: use framework='torch', or convert the data to float32")
    return numpy.frombuffer(buffer, dtype=dtype).reshape(shape)
