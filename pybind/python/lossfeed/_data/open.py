"""Opening a dataset, wherever it lies."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from .._base import literals
from .._base.checks import choice, differs, flag, seconds, whole
from .._base.errors import SettingsError
from .._base.memory import is_array, is_stream, is_tensor, require_numpy
from .._base.signals import of_signal
from .._base.sizes import parse_bytes
from .._base.spelling import spelled
from . import members
from .adaptor import Adaptor, guarded
from .array_files import are_files, is_file, of_files
from .data import Data, parse_bandwidth
from .in_memory import are_arrays, of_arrays, tensors_of
from .process_pool import Processes, Start, structure_of
from .raw_records import of_records
from .resize import Resize, find as find_resize
from .structure import TARGET_KEYS


@spelled
def open(
    data: Any,
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
    thread_safe: bool | None = None,
    processes: int = 0,
    varying: bool = False,
    target: str | None = None,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    chaos: int | None = None,
    record: Any = None,
    header: int = 0,
    stride: int | None = None,
) -> Data:
    """Opens a dataset.

    Args:
        data: one of

            * a path or URL: a class-per-folder directory, a tar shard, shards as ``"train-{0000..0146}.tar"`` or
              ``"train-*.tar"``, Parquet files (``"train-*.parquet"``); ``file://``, ``s3://``, ``gs://``, ``az://``,
              ``http(s)://``, and ``hf://datasets/OWNER/NAME@REVISION/PATTERN`` for the Hugging Face Hub (``HF_TOKEN`` for
              what is not public). Images (JPEG, PNG, WebP, TIFF, BMP, GIF,
              PNM; of several frames the first) are delivered as uint8 (height, width, channels), labels as int64;
            * ``(x, y)``: two arrays or CPU tensors of equal length, delivered in their own dtypes. Contiguous arrays
              are read in place: do not change them while a loader reads them. A longer tuple, or a dict of arrays,
              makes samples that are tuples or dicts of their rows;
            * files of arrays: ``("x.npy", "y.npy")``, a dict of ``.npy`` files, an ``.npz`` (not compressed) or a
              ``.safetensors`` file, whose samples are dicts. Rows are read as they are needed, so the files may be larger
              than memory;
            * a map-style Dataset (``__len__`` and ``__getitem__``, ``__getitems__`` if it has one). Its items are
              pairs ``(x, y)``, or any tree of dicts, tuples and lists; item 0 defines the structure of all. Arrays,
              tensors and numbers have one dtype and shape (see ``varying``), lists of numbers are arrays, PIL images
              become uint8 (height, width, channels), text and other objects are pickled. Background threads call it,
              one at a time unless it is ``thread_safe``. ``__getitems__`` gets all missing samples of a batch in one
              call; ``__getitem__`` is called for each, and a stopped pass ends between two calls.
        mode: ``"auto"`` (channels as the first image has them), ``"rgb"`` or ``"gray"``.
        resize: ``(height, width)``, or one int for both: every image is resized to it, bilinear with antialiasing.
            Without it all images must have one size, unless the loader's transform makes one of all
            (:class:`lossfeed.ImageTransform` with ``resize`` or ``scale``).
        crop: ``(height, width)``, or one int for both, at most ``resize``: images keep their aspect ratio, are scaled
            to cover ``resize``, and cropped to this size at the centre. ``resize=256, crop=224`` is torchvision's
            ``Resize(256), CenterCrop(224)``; a ``crop`` equal to ``resize`` takes all that fits.
        latency: minimum seconds a request takes, to make a local source behave like a remote one. bandwidth: maximum
            bytes per second, an int or text (``"100MB"``).
        connections: limit of in-flight requests. timeout: seconds one request may take; None for 30.
        index_cache: directory that keeps the index of tar shards between runs. Parquet files have their own.
        store_options: options of the object store (region, endpoint, credentials) by their object_store names. They come
            before the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``). For S3 ``profile`` names a profile of AWS's
            files, as ``AWS_PROFILE`` does; for ``http(s)://`` ``whole_bytes`` is what may be kept in memory of shards
            whose server gives no parts (1 GiB). If no credentials are given and the machine provides none, the store is
            read anonymously. An ``http(s)://`` URL may have a query that signs it.
        retry_timeout: seconds to retry a store that does not answer (no connection, no response, 5xx, 429), counted
            from the first failure and shared by all its requests. A store that has never answered gets 10 s, or
            ``timeout`` if that is above 30. 0: no retry. Then OutageError is raised, whatever the loader's ``on_error``
            is.
        checksums: compute a CRC-32 of every sample now, and verify every later read. Reads the whole dataset once; with
            ``index_cache`` the sums of shards are kept there.
        coalesce: fetch neighbouring samples of a store's shard with one request, if the bytes between them cost less
            than another request. False: one request for each sample. ``stats()["store_requests_total"]`` and
            ``["store_vain_bytes_total"]`` count both.
        hedge: a request to a store whose answer is late (later than 19 of 20 others and than twice the median) is sent
            again, and the first answer counts. At most one in twenty, and none while the store fails.
            ``stats()["store_requests_total"]`` counts both.
        disk: folder on a disk of this machine (``~`` is your home) that keeps fetched samples, within ``disk_bytes``,
            also after a restart: cache misses are read there before the store is asked. Datasets and processes may
            share it. Changed objects and damaged records are fetched again. Writing happens in the background, and
            stops when the disk is full.
        disk_bytes: limit of the folder ``disk``: 64 MiB to 2 TiB, as an int or text (``"50GB"``).
        thread_safe: True lets several threads call a Python dataset at once; False never does. None asks its
            attribute ``thread_safe``. A dataset that seeks and reads through one handle is not thread-safe; one handle
            a thread (``threading.local``) is. Calls of an unsafe dataset, and of its subsets, never overlap, also from
            several loaders.
        processes: number of worker processes that read a slow Python dataset, each with its own copy, started as by
            torch's ``DataLoader``. They end with the returned Data. 0: none.
        varying: True for a Python dataset whose arrays vary in length. Batches then need the loader's ``pad=`` or
            ``collate_fn=``, or equal lengths; a loader with a ``collate_fn`` or ``batch_sampler`` detects it. Such
            samples are cached at their second delivery, when their size is known.
        target: the key of the target, for a Python dataset of dicts: it becomes ``batch.target``, which losses use.
            None takes the first of labels, label, target, targets and y that items have.
        fields: the parts of samples in tar shards that have several members (``a.jpg``, ``a.json``, ``a.cls``):
            ``("jpg;png", "json", "cls")`` makes tuples of them, ``{"image": "jpg;png", "caption": "txt"}`` dicts.
            Semicolons separate alternatives; every sample must have each part. The first picture is decoded as images
            are, the first name that ends in ``cls`` (``fine.cls``) is the target; of the others a batch has a list, of
            text (txt, text, transcript), of what JSON says (json), of arrays (npy), else of bytes. All parts are read
            with one request and cached together, so a sample's members must be consecutive. Of Parquet files ``fields``
            names columns: pictures (structs of bytes and path, as Hugging Face writes them, or bytes called image, jpg,
            webp, …), text, JSON, bytes, numbers, lists of numbers (joined by the loader's ``pad=``). The target is the
            column that Hugging Face's description calls a class label, or a whole number called label, target or y.
            Without ``fields`` a picture and a label are pairs, and other rows dicts of all columns. Rows have no
            checksums and no disk tier, because pages are read.
        chaos: a seed: requests to the store fail on purpose, for tests. They are refused, lost, late, cut off, from
            another version, or without an answer until ``timeout``; with ``checksums`` bits are wrong too. Retries hide
            all of it, so deliveries stay the same. A local path is read like a store.
        record: layout of a record, for files of fixed-size records (a path, a pattern, or a list of them): a NumPy
            dtype, as ``[("label", "u1"), ("data", "u1", (3, 32, 32))]`` for CIFAR-10's binary version. Samples are
            dicts by field, or, with ``target=`` and one field beside it, pairs; arrays if the dtype has no fields.
            Records are read on demand. uint16 and uint32 become int64.
        header: bytes before the first record of each file.
        stride: bytes from one record's start to the next, if not a record's size: fewer make overlapping windows, as in
            ``record=("u2", 1025), stride=2048`` over a file of tokens. An incomplete record at a file's end is then
            ignored.

    Raises:
        SourceError: it does not exist, or cannot be read. OutageError, a SourceError: the store does not answer.
        SampleError: the first sample cannot be decoded, or an item has an unsupported type.
        SettingsError: an option is invalid, or does not fit this kind of data.
    """
    asked = dict(locals())
    del asked["data"]
    given = {name: value for name, value in asked.items() if differs(value, (open.__kwdefaults__ or {})[name])}
    if isinstance(data, Data):
        if given:
            raise SettingsError(f"{', '.join(given)}: this dataset is open already: give keywords when you open it")
        return data
    return _open(data, given, **asked)._made_by(again, data, given)


def again(data: Any, keywords: dict[str, Any]) -> Data:
    return open(data, **keywords)


def _open(
    data: Any,
    given: dict[str, Any],
    *,
    mode: Any,
    resize: Any,
    crop: Any,
    thread_safe: Any,
    processes: Any,
    varying: Any,
    target: Any,
    record: Any,
    header: Any,
    stride: Any,
    **of_paths: Any,
) -> Data:
    """A dataset of `data`; `given` are the keywords that somebody gave."""
    if record is not None:
        other = sorted(given.keys() - {"record", "header", "stride", "target"})
        if other:
            raise SettingsError(f"{', '.join(other)}: with record= files are read as they are: leave them out")
        return of_records(data, record, header, stride, target)
    for name, value in (("header", header), ("stride", stride)):
        if name in given:
            raise SettingsError(f"{name}={value!r} goes with record=, which says what a record is")
    mode = choice("mode", mode, "auto", "rgb", "gray")
    resized = find_resize(resize, crop)
    if thread_safe is not None:
        flag("thread_safe", thread_safe)
    flag("varying", varying)
    if isinstance(data, (str, os.PathLike)) and (varying or target is not None):
        raise SettingsError("varying= and target= are for Python datasets: leave them out")
    if isinstance(data, (str, os.PathLike)) and not are_files(data):
        _only_for_datasets(thread_safe, processes)
        return _of_path(_place("data", data), mode, resized, **of_paths)
    for name in of_paths:
        if name in given:
            value = "…" if name == "store_options" else repr(given[name])
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


def _of_path(
    place: str,
    mode: str,
    resized: Resize | None,
    *,
    latency: Any,
    bandwidth: Any,
    connections: Any,
    timeout: Any,
    index_cache: Any,
    store_options: Any,
    retry_timeout: Any,
    checksums: Any,
    coalesce: Any,
    hedge: Any,
    disk: Any,
    disk_bytes: Any,
    fields: Any,
    chaos: Any,
) -> Data:
    """Folders of images, shards, Parquet files."""
    _refuse_strangers(place)
    source = _native.open_source(
        place,
        mode=mode,
        resize=None if resized is None else resized.to,
        crop=None if resized is None else resized.crop,
        latency_s=seconds("latency", latency),
        bandwidth_bytes_per_s=parse_bandwidth(bandwidth),
        connections=whole("connections", connections, 1, 65536),
        index_cache=_index_cache(index_cache),
        store_options=_store_options(place, store_options),
        timeout_s=None if timeout is None else seconds("timeout", timeout),
        retry_timeout_s=seconds("retry_timeout", retry_timeout),
        checksums=flag("checksums", checksums),
        coalesce=flag("coalesce", coalesce),
        hedge=flag("hedge", hedge),
        disk=_disk(disk, disk_bytes),
        fields=members.names(fields),
        chaos=None if chaos is None else whole("chaos", chaos, 0, 2**64 - 1),
    )
    if len(_SPLITS.intersection(source.classes)) > 1:
        warnings.warn(
            f"the classes of {place!r} are {', '.join(source.classes)}, which look like splits: open one of them, "
            f"lf.open({os.path.join(place, source.classes[0])!r})",
            UserWarning,
            stacklevel=5,  # whoever opens it
        )
    return Data(source, (), members.structure_of(fields, source))


#: Names of folders that are no classes, where there are two of them.
_SPLITS = {"train", "training", "val", "valid", "validation", "eval", "test", "testing"}

#: Endings of what is no image, shard or Parquet file, and what to do with such files.
_STRANGERS = {
    (".csv", ".tsv", ".json", ".jsonl", ".txt"): "is a table or text: read it, and open its columns as arrays or its rows as a dataset",
    (".h5", ".hdf5", ".mat"): "is an HDF5 file or one of MATLAB: open a Dataset that reads it, with processes= if it is slow",
    (".arrow", ".feather", ".lmdb", ".tfrecord", ".tfrecords", ".beton", ".mds"): "is another library's: open a Dataset that reads it",
    (".pt", ".pth", ".pkl", ".pickle"): "is a pickle: load it, and open what it holds",
    (".zip", ".7z", ".rar"): "is an archive that is no tar: unpack it, or write shards with `lossfeed pack`",
    (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pbm"):
        "is one image: give the folder of class folders",
}  # fmt: skip


def _refuse_strangers(place: str) -> None:
    """Names files that are known not to be what can be opened."""
    for endings, what in _STRANGERS.items():
        # A URL's query says nothing of the kind of file.
        named = place.partition("?")[0] if "://" in place else place
        if named.lower().endswith(endings) and not os.path.isdir(place):
            raise SettingsError(f"{_native.without_secrets(named)!r} {what}")


def _disk(folder: str | os.PathLike[str] | None, size: int | str | None) -> tuple[str, int] | None:
    if folder is None and size is None:
        return None
    if folder is None or size is None:
        raise SettingsError("disk= and disk_bytes= need each other: give a folder and a limit such as '50GB'")
    return os.path.expanduser(_place("disk", folder)), parse_bytes("disk_bytes", size)


def _index_cache(folder: str | os.PathLike[str] | None) -> str | None:
    """The folder of indexes, made if need be: one that cannot be written would be asked in vain at every start."""
    if folder is None:
        return None
    place = _place("index_cache", folder)
    try:
        os.makedirs(place, 0o700, exist_ok=True)
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise SettingsError(f"index_cache={place!r} is not a writable folder: {why}; name another") from None
    return place


def _place(name: str, value: Any) -> str:
    """A path or URL as text that the engine takes."""
    try:
        place = os.fspath(value)
    except TypeError:
        raise SettingsError(f"{name}={value!r} is no path: give text or a pathlib.Path") from None
    if not isinstance(place, str):
        raise SettingsError(f"{name} is bytes: give text, with os.fsdecode")
    if any("\ud800" <= c <= "\udfff" for c in place):
        shown = _native.without_secrets(place.encode(errors="backslashreplace").decode())
        raise SettingsError(f"{name}='{shown}' is not UTF-8: rename it")
    return place


def _store_options(place: str, given: dict[str, str] | None) -> list[tuple[str, str]]:
    if given is not None and not isinstance(given, Mapping):
        raise SettingsError(f"store_options is a {type(given).__name__}: give a dict, as in {{'region': 'eu-central-1'}}")
    if given and ("://" not in place or place.startswith("file://")):
        raise SettingsError(
            f"store_options={sorted(map(str, given))} for {_native.without_secrets(place)!r}, which is not an object "
            f"store: remove them, or give a URL (s3://, gs://, az://, http://)"
        )
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise SettingsError(f"store_options={{{name!r}: {type(value).__name__}}}: names and values are text")
    return [(name, str(value)) for name, value in (given or {}).items()]


def _only_for_datasets(thread_safe: bool | None, processes: int) -> None:
    for name, value, default in (("thread_safe", thread_safe, None), ("processes", processes, 0)):
        if value != default or type(value) is not type(default):
            raise SettingsError(f"{name}={value!r} is for Python datasets: leave it out")


def _is_split(value: Any) -> bool:
    """Whether a dict with it is one of datasets, as Hugging Face's DatasetDict."""
    plain = isinstance(value, (list, tuple, dict, str, bytes)) or is_array(value) or is_tensor(value)
    return not plain and (isinstance(value, Data) or is_stream(value) or hasattr(value, "__getitem__"))


def _names_an_image(item: Any) -> bool:
    """Whether it is the name of an image file, or a pair of one and a label."""
    name = item[0] if isinstance(item, tuple) and item else item
    *_, images = _STRANGERS
    return isinstance(name, (str, os.PathLike)) and str(name).lower().endswith(images) and os.path.isfile(name)


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
    if type(data) in (list, tuple) and _names_an_image(data[0] if data else None):
        raise SettingsError(
            f"item 0 is {data[0]!r}, a file name, which would be read as text: open a folder of class folders, or a "
            f"dataset whose __getitem__ returns "
            "(PIL.Image.open(path), label)"
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
        adaptor = Processes(data, mode, size, processes, varying, target, whole, start)
    else:
        how = mode, size, thread_safe, varying, target, whole
        apart = guarded(data) and not thread_safe and not whole
        adaptor = Adaptor(data, *how, structure_of(data, how) if apart else None)
    structure = adaptor.structure
    if mode != "auto" or size is not None:
        if not any(leaf.dtype == "uint8" and len(leaf.shape) == 3 for leaf in structure.leaves):
            raise SettingsError("mode, resize and crop are for datasets of PIL images: leave them out")
    native = _native.dataset_source(
        adaptor,
        adaptor.readers,
        adaptor.turns,
        len(data),
        structure.fields,
        bool(structure.tail),
        structure.target,
        f"dataset {type(data).__name__}",
        classes_of(data),
    )
    return Data(native, (adaptor,), None if structure.plain else structure)
