"""Opening a dataset, wherever it lies."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from .._base import literals
from .._base.checks import choice, flag, renamed, whole
from .._base.errors import SettingsError
from .._base.memory import is_array, is_stream, is_tensor, require_numpy
from .._base.signals import of_signal
from .._base.spelling import spelled
from . import layouts, manifests, members
from .adaptor import Adaptor, guarded
from .array_files import are_files, is_file, of_files
from .data import Data
from .in_memory import are_arrays, of_arrays, tensors_of
from .pictured import Pictured, Pictures
from .open_options import OF_PATHS, OpenOptions, place
from .process_pool import Processes, Start, structure_of
from .raw_records import of_records
from .resize import Resize, find as find_resize
from .structure import TARGET_KEYS


@spelled
def open(
    data: Any,
    labels: Any = "auto",
    *,
    mode: literals.Mode = "auto",
    resize: tuple[int, int] | int | None = None,
    crop: tuple[int, int] | int | None = None,
    latency: float = 0.0,
    bandwidth: int | str | None = None,
    connections: int = 64,
    timeout: float | None = None,
    index_cache: str | os.PathLike[str] | None = None,
    store_options: dict[str, str] | None = None,
    retry_timeout: float = 120.0,
    checksums: bool = False,
    coalesce: bool = True,
    hedge: bool = True,
    disk: str | os.PathLike[str] | None = None,
    disk_bytes: int | str | None = None,
    pool: str | None = None,
    pool_bytes: int | str = "4GiB",
    pool_ttl: float = 86400.0,
    thread_safe: bool | None = None,
    processes: int = 0,
    varying: bool = False,
    target: str | None = None,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    chaos: int | None = None,
    dtype: Any = None,
    header: int = 0,
    stride: int | None = None,
    record: Any = None,
) -> Data:
    """Opens a dataset. ``pybind/docs/data.md`` tells more of each keyword.

    Args:
        data: a path or URL of class folders, tar shards (``"train-{0000..0146}.tar"``) or Parquet files: local,
            ``s3://``, ``gs://``, ``az://``, ``http(s)://``, ``file://``, ``hf://datasets/OWNER/NAME``. Or ``(x, y)``, a
            longer tuple or a dict of arrays or CPU tensors; ``.npy``, ``.npz`` or ``.safetensors`` files, alone or as such a tuple
            or dict; files of raw records (``dtype``); a map-style Python dataset. Images are uint8 (height, width,
            channels), labels int64.
        labels: None: images without labels, of a folder or a list of paths. One a path: whole numbers, names of classes
            or real numbers. ``"folders"``: folders are classes, whatever they are called.
        mode: ``"auto"`` (channels as the first image has them), ``"rgb"`` or ``"gray"``.
        resize: ``(height, width)`` or one int: every image is resized to it.
        crop: ``(height, width)`` or one int, at most ``resize``: images cover ``resize``, and their centre is taken.
        latency: seconds every request takes at least.
        bandwidth: bytes a second at most, int or text.
        connections: requests in flight at most, 1 to 4096.
        timeout: seconds one request may take; None: 30.
        index_cache: a folder that keeps the indexes of tar shards. Processes that open them at one time read each once.
        store_options: the object store's options, by their object_store names; they come before the environment.
        retry_timeout: seconds for which a failing store is asked again before :class:`lossfeed.OutageError`.
        checksums: read everything once, and compare every later read with its CRC-32.
        coalesce: one request for samples that lie near each other.
        hedge: send a late request once more, one in twenty at most.
        disk, disk_bytes: a local folder that keeps what was fetched, and its size, 64 MiB to 2 TiB.
        pool, pool_bytes, pool_ttl: a Redis or Valkey server that keeps what was fetched for several machines, as in
            ``"redis://host:6379"``; bytes of this dataset there, and seconds until a sample leaves.
        thread_safe: several threads may call the Python dataset at once. None: by its attribute ``thread_safe``.
        processes: worker processes that read the Python dataset for the cache.
        varying: arrays of the Python dataset differ in length.
        target: the key of the target in a Python dataset's dicts, or in raw records. None: the first of labels, label,
            target, targets and y.
        fields: members of a tar's samples (``("jpg;png", "cls")``, ``{"image": "jpg;png", "caption": "txt"}``) or
            columns of Parquet or a manifest; files of a folder that have one stem (``"jpg"``, ``"masks/*.png"``).
        chaos: a seed: requests fail on purpose, and what is delivered stays the same.
        dtype: a NumPy dtype: the layout of a raw record. ``record`` is its former name.
        header: bytes before a file's first record.
        stride: bytes from record to record; None: a record's size.

    Raises:
        SourceError: it does not exist, or cannot be read. OutageError: the store does not answer.
        SampleError: the first sample cannot be decoded, or an item has an unsupported type.
        SettingsError: an option is invalid, or does not fit this kind of data.
    """
    asked = OpenOptions(
        mode=mode,
        resize=resize,
        crop=crop,
        latency=latency,
        bandwidth=bandwidth,
        connections=connections,
        timeout=timeout,
        index_cache=index_cache,
        store_options=store_options,
        retry_timeout=retry_timeout,
        checksums=checksums,
        coalesce=coalesce,
        hedge=hedge,
        disk=disk,
        disk_bytes=disk_bytes,
        pool=pool,
        pool_bytes=pool_bytes,
        pool_ttl=pool_ttl,
        thread_safe=thread_safe,
        processes=processes,
        varying=varying,
        target=target,
        fields=fields,
        labels=labels,
        chaos=chaos,
        dtype=renamed("record", record, "dtype", dtype),
        header=header,
        stride=stride,
    )
    given = asked.given()
    if isinstance(data, Data):
        if given:
            raise SettingsError(f"{', '.join(given)}: this dataset is open already: give keywords when you open it")
        return data
    made = _open(data, asked)
    if asked.resize is None and not made._adaptors:
        _notice_sizes(made)
    return made._made_by(again, data, given)


def again(data: Any, keywords: dict[str, Any]) -> Data:
    return open(data, **keywords)


def _open(data: Any, asked: OpenOptions) -> Data:
    """A dataset of `data`."""
    given, varying, target = asked.given(), asked.varying, asked.target
    thread_safe, processes = asked.thread_safe, asked.processes
    if asked.dtype is not None:
        other = sorted(given.keys() - {"dtype", "header", "stride", "target"})
        if other:
            raise SettingsError(f"{', '.join(other)}: with dtype= files are read as they are: leave them out")
        return of_records(data, asked.dtype, asked.header, asked.stride, target)
    for name in ("header", "stride"):
        if name in given:
            raise SettingsError(f"{name}={given[name]!r} goes with dtype=, which says what a record is")
    mode = choice("mode", asked.mode, "auto", "rgb", "gray")
    resized = find_resize(asked.resize, asked.crop)
    if thread_safe is not None:
        flag("thread_safe", thread_safe)
    flag("varying", varying)
    if isinstance(labels := asked.labels, str) and labels not in ("auto", "folders"):
        raise SettingsError(f"labels={labels!r}: give None, 'folders', or one a path of a list")
    listed = _listed(data, asked)
    if listed is not None:
        _only_for_datasets(thread_safe, processes)
        if varying or target is not None:
            raise SettingsError("varying= and target= are for Python datasets: leave them out")
        return layouts.opened(listed, mode, resized, asked.of_files(f"{listed.url!r}"))
    if isinstance(data, (str, os.PathLike)) and (varying or target is not None):
        raise SettingsError("varying= and target= are for Python datasets: leave them out")
    if isinstance(data, (str, os.PathLike)) and not are_files(data):
        _only_for_datasets(thread_safe, processes)
        return _of_path(place("data", data), mode, resized, asked)
    for name in given:
        if name in OF_PATHS:
            value = "…" if name in ("store_options", "pool") else repr(given[name])
            raise SettingsError(
                f"{name}={value} is for paths and URLs of images; this data is in memory, in files of "
                "arrays, or a Python dataset: leave it out"
            )
    if mode == "auto" and not (resized or thread_safe or processes or varying or target):
        data = tensors_of(data)
    files = are_files(data)
    if files or are_arrays(data):
        if resized is not None or mode != "auto":
            raise SettingsError("mode, resize and crop are for images; arrays are delivered as they are: leave them out")
        if varying or target is not None:
            raise SettingsError(
                "varying= and target= are for Python datasets: rows of an array have one shape, and the target of a dict of "
                f"arrays is its first key of {', '.join(TARGET_KEYS)}"
            )
        _only_for_datasets(thread_safe, processes)
        return of_files(data) if files else of_arrays(data)
    return python_data(data, mode, resized, thread_safe, whole("processes", processes, 0, 1024), varying, target)


def _of_path(location: str, mode: str, resized: Resize | None, asked: OpenOptions) -> Data:
    """Folders of images, shards, Parquet files."""
    _refuse_strangers(location)
    if os.path.isdir(location):
        layouts.ask(location, asked.labels == "folders")
    source = _native.open_source(location, **asked.of_path(location, mode, resized))
    splits = [name for name in source.classes if name.lower() in layouts.SPLITS]
    if len(splits) > 1 and asked.labels != "folders":
        raise SettingsError(layouts.which_split(_native.without_secrets(location), splits))
    return Data(source, (), members.structure_of(asked.fields, source))


def _listed(data: Any, asked: OpenOptions) -> layouts.Listed | None:
    """The table of a list of paths, a manifest, a flat folder or files of one stem; None for other data."""
    labels = asked.labels
    said = f"labels={repr(labels) if labels is None or isinstance(labels, str) else '…'}"
    if isinstance(data, (str, os.PathLike)):
        location = place("data", data)
        location = location.removeprefix("file://")
        shown = repr(_native.without_secrets(location))
        folder = os.path.isdir(location)
        if folder and labels is not None and not isinstance(labels, str):
            raise SettingsError(
                f"{said} is for lists of paths, lf.open(paths, labels), and {shown} is a folder: give it None or "
                "'folders'"
            )
        if said == "labels='folders'":
            if asked.fields is not None:
                raise SettingsError(f"{said} with fields=, which name the parts of a sample: give one of them")
            if are_files(data) or (manifests.is_manifest(location) and not folder):
                raise SettingsError(f"{said} is for class folders, and {shown} is none: leave it out")
        if folder and not _has_shards(location):
            if asked.fields is not None:
                return layouts.stems(location, asked.fields)
            if labels is None:
                return layouts.flat(location)
        elif manifests.is_manifest(location) and "://" not in location:
            return manifests.read(location, asked.fields, labels)
        if labels is None or not isinstance(labels, str):
            raise SettingsError(
                f"{said} is for local folders of images, manifests and lists of paths, and {shown} is none: leave it "
                "out"
            )
        return None
    if said == "labels='folders'":
        raise SettingsError(f"{said} is for class folders, and this is a {type(data).__name__}: leave it out")
    if layouts.is_list(data) or not isinstance(labels, str):
        paths = data.tolist() if hasattr(data, "tolist") else data
        if not layouts.are_names(paths):
            raise SettingsError(
                f"{said} is for local folders of images, manifests and lists of paths, and this is a "
                f"{type(data).__name__} of something else: leave it out"
            )
        if asked.fields is not None:
            raise SettingsError("fields= is for folders, shards and manifests, and this is a list of paths: leave it out")
        return layouts.of_list(paths, labels)
    return None


def _has_shards(folder: str) -> bool:
    with contextlib.suppress(OSError):
        return any(name.endswith(layouts.SHARDS) for name in os.listdir(folder))
    return False


def _notice_sizes(data: Data) -> None:
    """Says once a process that images differ in size, with what makes one size of them."""
    global _noticed
    if _noticed:
        return
    sizes = data._native.sizes(_SIZES)
    if len(set(sizes)) > 1:
        _noticed = True
        least, most = min(sizes), max(sizes)
        warnings.warn(
            f"images of {data._native.describe()} differ in size (height x width {'{} x {}'.format(*least)} and "
            f"{'{} x {}'.format(*most)} among {len(sizes)}), and a batch needs one size. The loader's crop makes it, "
            "lf.Loader(data, …, transform=lf.ImageTransform(crop=224, scale=(0.08, 1.0))); then ignore this. So does "
            "lf.open(…, resize=256, crop=224)",
            UserWarning,
            stacklevel=4,  # the caller of lf.open
        )


_noticed = False
#: Images whose headers are looked at.
_SIZES = 16

#: Endings of what is no image, shard or Parquet file, and what to do with such files.
_STRANGERS = {
    (".csv", ".tsv", ".jsonl", ".ndjson"): "is a manifest, which is read of this machine alone: copy it here",
    (".json", ".txt"): "is text: open a manifest (CSV with a header, or .jsonl), or a dataset of what it holds",
    (".h5", ".hdf5", ".mat"): "is an HDF5 file or one of MATLAB: open a Dataset that reads it, with processes= if it is slow",
    (".arrow", ".feather", ".lmdb", ".tfrecord", ".tfrecords", ".beton", ".mds"): "is another library's: open a Dataset that reads it",
    (".pt", ".pth", ".pkl", ".pickle"): "is a pickle: load it, and open what it holds",
    (".zip", ".7z", ".rar"): "is an archive that is no tar: unpack it, or write shards with `lossfeed pack`",
    layouts.IMAGES: "names images: give their folder, with labels=None if it has no classes, or lf.open(paths, labels)",
}  # fmt: skip


def _refuse_strangers(place: str) -> None:
    """Names files that are known not to be what can be opened."""
    for endings, what in _STRANGERS.items():
        # A URL's query says nothing of the kind of file.
        named = place.partition("?")[0] if "://" in place else place
        if named.lower().endswith(endings) and not os.path.isdir(place):
            raise SettingsError(f"{_native.without_secrets(named)!r} {what}")


def _only_for_datasets(thread_safe: bool | None, processes: int) -> None:
    for name, value, default in (("thread_safe", thread_safe, None), ("processes", processes, 0)):
        if value != default or type(value) is not type(default):
            raise SettingsError(f"{name}={value!r} is for Python datasets: leave it out")


def _is_split(value: Any) -> bool:
    """Whether a dict with it is one of datasets, as Hugging Face's DatasetDict."""
    plain = isinstance(value, (list, tuple, dict, str, bytes)) or is_array(value) or is_tensor(value)
    return not plain and (isinstance(value, Data) or is_stream(value) or hasattr(value, "__getitem__"))


def classes_of(dataset: Any) -> list[str]:
    """The class names that a dataset says it has."""
    classes = getattr(dataset, "classes", None)
    return [str(c) for c in classes] if isinstance(classes, (list, tuple)) else []


def length(data: Any) -> int:
    """How many items a dataset has."""
    try:
        return len(data)
    except Exception as cause:
        if of_signal(cause):
            raise
        raise SettingsError(
            f"{type(data).__name__} does not say how many items it has: len() raised {type(cause).__name__}: {cause}"
        ) from cause


def python_data(
    data: Any,
    mode: str,
    size: Resize | None,
    thread_safe: bool | None,
    processes: int,
    varying: bool,
    target: str | None,
    whole: bool = False,
    start: Start = Start(),
    pictures: Pictures | None = None,
) -> Data:
    indexed = all(callable(getattr(data, name, None)) for name in ("__getitem__", "__len__"))
    if isinstance(data, type):
        raise SettingsError(f"{data.__name__} is a class: make a dataset of it, {data.__name__}(…), and open that")
    if isinstance(data, dict) and data and all(map(_is_split, data.values())):
        raise SettingsError(f"{type(data).__name__} has {', '.join(map(repr, data))}: choose a split, splits[{next(iter(data))!r}]")
    if is_stream(data):
        raise SettingsError(
            f"{type(data).__name__} is a stream, whose samples have no ids: give it to the loader, lf.Loader(stream, batch_size=…), "
            "which reads it as torch's DataLoader does"
        )
    if not indexed or isinstance(data, (dict, bytes)):
        streams = ""
        if hasattr(data, "__iter__") and not isinstance(data, (dict, bytes)):
            streams = " (derive a stream from torch's IterableDataset, for lf.Loader; lf.stage takes any iterable of batches)"
        raise SettingsError(
            f"{type(data).__name__} cannot be opened: give a path or URL, a pair (x, y) of arrays, or a map-style "
            f"Dataset with __len__ and __getitem__{streams}"
        )
    if type(data) is list and len(data) == 2 and all(is_array(part) or is_tensor(part) for part in data):
        raise SettingsError(
            "a list of 2 arrays could be a dataset of two items, or samples and targets: give a pair lf.open((x, y)) for "
            "the latter, torch.utils.data.Subset([x, y], [0, 1]) for the former"
        )
    if type(data) is tuple and any(is_array(part) or is_tensor(part) or is_file(part) for part in data):
        made = " and ".join(type(part).__name__ for part in data)
        raise SettingsError(
            f"a tuple of {made}: a pair (x, y) is two arrays or two .npy files, alike; make arrays of both, or open a list "
            "of items"
        )
    if length(data) == 0:
        raise SettingsError(f"the dataset is empty: {type(data).__name__} has 0 items")
    require_numpy("a Python dataset")
    adaptor: Adaptor | Processes
    if processes:
        if thread_safe is not None:
            raise SettingsError(
                f"thread_safe={thread_safe!r} with processes={processes}: each process has its own copy: remove it"
            )
        adaptor = Processes(data, mode, size, processes, varying, target, whole, pictures, start)
    else:
        how = mode, size, thread_safe, varying, target, whole, pictures
        apart = guarded(data) and not thread_safe and not whole
        adaptor = Adaptor(data, *how, structure_of(data, how) if apart else None)
    structure = adaptor.structure
    if mode != "auto" or size is not None:
        if pictures is None and not any(leaf.dtype == "uint8" and len(leaf.shape) == 3 for leaf in structure.leaves):
            raise SettingsError("mode, resize and crop are for datasets of PIL images: leave them out")
    native = _native.dataset_source(
        adaptor,
        adaptor.readers,
        adaptor.turns,
        len(data),
        [] if isinstance(structure, Pictured) else structure.fields,
        bool(structure.tail),
        structure.target,
        f"dataset {type(data).__name__}",
        classes_of(data),
        structure.lengths if isinstance(structure, Pictured) else None,
    )
    if isinstance(structure, Pictured):
        structure.settled(native.fields[0])
    return Data(native, (adaptor,), None if structure.plain else structure)
