"""Datasets that a loader was given: opened, and opened again for its worker processes."""

from __future__ import annotations

import functools
import os
from typing import Any

from .._base.errors import SettingsError
from .._base.memory import is_array, is_stream, is_tensor
from . import generators, layouts, open as _open
from .adaptor import guarded
from .array_files import are_files
from .data import Data, concat
from .in_memory import are_arrays, tensors_of
from .open_options import OpenOptions
from .pictured import Pictured, Pictures
from .process_pool import Start
from .resize import find as find_resize


def open_for(given: Any, varying: bool, pictures: Pictures | None = None) -> Data:
    """What a loader was given, opened. `varying`: arrays of a Python dataset may differ in length without a word, since
    the user brings a ``collate_fn`` or batches of equal lengths; torch's DataLoader asks for no word either."""
    if isinstance(given, Data):
        return given
    if pictures is not None and python_dataset(given) is not None:
        made = _open.python_data(given, "auto", None, None, 0, True, None, pictures=pictures)
        return made._made_by(_open.again, given, {})
    if not varying or isinstance(given, (str, os.PathLike)) or are_arrays(given) or are_files(given):
        return _open.open(given)
    try:
        fixed = _open.open(given)
    except SettingsError:
        return _open.open(given, varying=True)
    if not fixed._adaptors:
        return fixed
    adaptor = fixed._adaptors[0]
    if fixed._structure is None:
        # Pairs of arrays: three of them tell whether they are of one shape.
        some = {len(given) // 2, len(given) - 1} - {0}
        with generators.kept():
            if all(len(item) == 2 for i in some for item in adaptor.turns.call(functools.partial(adaptor, [i]))):
                return fixed
    return _open.open(given, varying=True)


def python_dataset(data: Any) -> Any:
    """The map-style Python dataset that `data` is, or that was opened without a keyword; None if it is something else."""
    if isinstance(data, Data):
        made, of = data._recipe()
        return python_dataset(of[0]) if made is _open.again and not of[1] else None
    if data is None or isinstance(data, (str, bytes, os.PathLike, type, dict)) or are_files(data) or is_stream(data):
        return None
    if layouts.is_list(data):
        return None
    arrays = tensors_of(data)
    if arrays is not data or are_arrays(data) or type(data) is tuple:
        return None
    if type(data) is list and any(is_array(part) or is_tensor(part) for part in data):
        return None
    return data if all(callable(getattr(data, name, None)) for name in ("__getitem__", "__len__")) else None


def reopened(data: Data, processes: int, whole: bool, start: Start, pictures: Pictures | None = None) -> Data:
    """`data` with its Python datasets read in so many processes, but for those that bear threads or bring processes of
    their own. `whole`: their items travel as they are, pickled. `pictures`: with pictures that are encoded."""
    make, of = data._recipe()
    if make is not _open.again:
        again = [reopened(part, processes, whole, start, pictures) if isinstance(part, Data) else part for part in of]
        if make is concat:
            again = [[reopened(part, processes, whole, start, pictures) for part in of[0]]]
        return make(*again)  # type: ignore[no-any-return]
    dataset, given = of
    if isinstance(dataset, Data):
        return reopened(dataset, processes, whole, start, pictures)
    if not data._adaptors:
        return data
    asked = OpenOptions(**given)
    count = asked.processes or (0 if asked.thread_safe or not guarded(dataset) else processes)
    made_so = pictures is None or isinstance(data._adaptors[0].structure, Pictured)
    if count == asked.processes and not whole and made_so:
        return data
    size = find_resize(asked.resize, asked.crop)
    made = _open.python_data(
        dataset, asked.mode, size, asked.thread_safe if not count else None, count, asked.varying, asked.target, whole,
        start, pictures,
    )
    return made._made_by(_open.again, dataset, given)


def as_given(data: Data) -> bool:
    """Whether nobody said what samples are to be made of: the Python datasets behind it were opened as they are."""
    make, of = data._recipe()
    if make is concat:
        return all(map(as_given, of[0]))
    if make is not _open.again:
        return as_given(of[0])
    return as_given(of[0]) if isinstance(of[0], Data) else not of[1].keys() - {"processes", "thread_safe"}
