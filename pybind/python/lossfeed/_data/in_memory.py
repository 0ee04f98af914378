"""Arrays in memory as datasets: pairs, longer tuples and dicts of them, and torch's TensorDataset."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._base.errors import SettingsError
from .._base.memory import DTYPES, as_bytes, check_dense, dtype_name, is_array, is_tensor, torch_loaded
from .data import Data
from .structure import NO_TARGET, Structure


def of_arrays(tree: Any) -> Data:
    """A pair, a longer tuple or a dict of arrays."""
    named = tree.items() if isinstance(tree, dict) else zip("xy" if len(tree) == 2 else map(str, range(len(tree))), tree)
    parts = {str(name): _array(str(name), value) for name, value in named}
    (first, some), *others = parts.items()
    for name, value in others:
        if len(value) != len(some):
            raise SettingsError(
                f"{first} has {len(some)} samples and {name} has {len(value)}: they must have equally many"
            )
    if len(some) == 0:
        raise SettingsError(f"the dataset is empty: {' and '.join(parts)} have 0 samples")
    values = list(parts.values())
    columns = [(as_bytes(value), (dtype_name(value), tuple(int(n) for n in value.shape[1:]))) for value in values]
    if type(tree) is tuple and len(tree) == 2:
        return Data(_native.array_source(columns[:1], *columns[1], len(some)))
    row = dict(zip(tree, (value[0] for value in values))) if isinstance(tree, dict) else [value[0] for value in values]
    structure = Structure(row)
    fields, target = structure.divided(columns)
    column, spec = target or (bytes(len(some)), NO_TARGET)
    return Data(_native.array_source(fields, column, spec, len(some)), (), structure)


def _array(name: str, value: Any) -> Any:
    """One of the arrays, as it can be read where it lies."""
    if value.ndim == 0:
        raise SettingsError(f"{name} is a scalar: its first dimension must count the samples")
    check_dense(name, value)
    if is_tensor(value) and value.device.type != "cpu":
        raise SettingsError(f"{name} is on {value.device}: pass CPU tensors, the loader brings batches to the device")
    if is_array(value) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if dtype_name(value) not in DTYPES:
        raise SettingsError(
            f"{name} has dtype {dtype_name(value)}, which cannot travel in a batch: use one of {', '.join(DTYPES)}"
        )
    return value.detach().contiguous() if is_tensor(value) else value


def tensors_of(data: Any) -> Any:
    """The tensors of torch's TensorDataset, which are read without asking it; anything else as it is."""
    torch = torch_loaded()
    return data.tensors if torch is not None and type(data) is torch.utils.data.TensorDataset else data


def are_arrays(data: Any) -> bool:
    """Whether it is a tuple or dict of arrays."""
    if type(data) not in (tuple, dict) or not data:
        return False
    return all(is_array(a) or is_tensor(a) for a in (data.values() if type(data) is dict else data))
