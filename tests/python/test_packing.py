"""Items become bytes quickly, by native code, and carefully, by Python: the careful way is the twin. What is not made as
item 0 was is refused by the quick way without a word, and the careful one says what is wrong with it."""

import pickle
import threading
from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from test_structures import FIXED, Made, N, make_ragged

import lossfeed as lf

Point = namedtuple("Point", "x y label")


@pytest.fixture(params=["table", "capsules"])
def tensors(request, monkeypatch):
    """Tensors are found by DLPack's table of functions, or as before torch 2.10 by a capsule for each."""
    if request.param == "capsules":
        monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None, raising=False)


def adaptor_of(make, **options):
    return lf.open(Made(make), **options)._adaptors[0]


def careful(structure, item, i=0):
    """Bytes of data and target, or the words about an item that cannot travel."""
    try:
        data, target = structure.pack(item, i)
    except lf.SampleError as error:
        return str(error)
    return bytes(data), bytes(target)


def quick(structure, item):
    """The same by native code; None for what it leaves to the careful way."""
    rows, add = structure.rows(1, 60)
    more = add(item)
    assert (more is None and len(rows) == 0) or (more is True and len(rows) == 1)
    return None if more is None else rows[0]


def delivered(adaptor, i=0):
    """What the dataset's item comes to in the end: as :func:`careful` says it."""
    (answer,) = adaptor([i])
    return answer if len(answer) == 2 else answer[0]


@pytest.mark.parametrize("make", [*FIXED.values(), make_ragged], ids=[*FIXED, "ragged"])
def test_items_made_as_item_0_was_are_packed_at_once(make, tensors):
    structure = adaptor_of(make, varying=make is make_ragged).structure
    rows, add = structure.rows(N, 60)
    for i in range(N):
        assert add(make(i))
    assert [rows[i] for i in range(N)] == [careful(structure, make(i)) for i in range(N)] and len(rows) == N
    with pytest.raises(IndexError):
        rows[N]


KINDS = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]


def any_array(rng, kind, shape):
    """An array or tensor of any layout."""
    made = rng.integers(0, 2 if kind is np.bool_ else 100, (*shape, 2)).astype(kind)
    way = rng.integers(0, 8)
    if way == 0:
        made = np.asfortranarray(made)
    elif way == 1:
        made = made[..., ::-1]
    elif way == 2:
        made = np.moveaxis(np.moveaxis(made, 0, -1).copy(), -1, 0)
    elif way == 3:
        made = np.repeat(made, 2, axis=0)[::2]
    elif way == 4:
        made = np.broadcast_to(made[..., :1], made.shape)
    # The last dimension goes: every second element, or one that lies behind another.
    made = made[..., rng.integers(0, 2)]
    if rng.random() < 0.5:
        return made
    made = np.abs(made) if any(step < 0 for step in made.strides) else made
    made = torch.from_numpy(made.copy() if not made.flags.writeable or rng.random() < 0.3 else made)
    if kind is np.float32 and rng.random() < 0.3:
        made = made.requires_grad_()
    return made.t() if made.ndim == 2 and made.shape[0] == made.shape[1] and rng.random() < 0.5 else made


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_are_the_bytes_that_care_makes_of_them(seed, tensors):
    rng = np.random.default_rng(seed)

    def grow(depth):
        kind = rng.integers(0, 7 if depth else 4)
        if kind < 3:
            return ("array", KINDS[rng.integers(len(KINDS))], tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4))))
        if kind == 3:
            return (("int", "float", "bool", "text", "list")[rng.integers(5 if seed % 2 else 3)],)
        # An array first: a list that begins with a number is an array itself.
        return (("dict", "list", "tuple")[kind % 3], [("array", np.uint8, (2,)), *(grow(depth - 1) for _ in range(rng.integers(0, 3)))])

    varying = seed % 3 == 0
    tree = (("dict", "tuple")[seed % 2], [grow(3) for _ in range(4)])

    def build(node, rng, bend):
        """An item of the tree; of each part it is otherwise with the chance `bend`."""
        if node[0] == "array":
            _, kind, shape = node
            bent = rng.random() < bend
            kind = KINDS[rng.integers(len(KINDS))] if bent and rng.random() < 0.5 else kind
            if bent or varying:
                shape = tuple(int(n) for n in rng.integers(0 if varying else 1, 4, len(shape) + (bent and rng.integers(0, 2))))
            return any_array(rng, kind, shape)
        if len(node) == 1:
            values = {"int": 7, "float": 0.25, "bool": True, "text": "é", "list": [1, 2]}
            return values[node[0]] if rng.random() >= bend else list(values.values())[rng.integers(5)]
        parts = [build(part, rng, bend) for part in node[1]]
        if rng.random() < bend / 4:
            parts = parts[:-1]
        if node[0] == "dict":
            return {f"k{k}": part for k, part in enumerate(parts)}
        return parts if (node[0] == "list") != (rng.random() < bend) else tuple(parts)

    structure = adaptor_of(lambda i: build(tree, np.random.default_rng(seed), 0), varying=varying).structure
    taken = 0
    for i in range(400):
        item = build(tree, np.random.default_rng((seed, i)), 0.0 if i % 4 else 0.05)
        found, wanted = quick(structure, item), careful(structure, item)
        assert found is None or found == wanted, item
        taken += found is not None
        assert found is not None or i % 4 == 0, item
    assert taken > 300


class Odd(np.ndarray):
    """Says other bytes than it holds."""

    def tobytes(self, *_):
        return bytes(self.nbytes)


class Tagged(torch.Tensor):
    pass


class Keyed(namedtuple("Keyed", "x y label")):
    """Parts that are looked up in a way of its own."""

    def __getitem__(self, k):
        return super().__getitem__(2 - k)


def structured():
    rows = np.zeros(3, np.dtype([("flag", np.uint8), ("value", np.float32)]))
    rows["value"] = [1, 2, 3]
    return rows["value"]


def resized():
    made = torch.ones(3)
    made.untyped_storage().resize_(0)
    return made


def mapped(tmp_path):
    np.arange(3, dtype=np.float32).tofile(tmp_path / "rows")
    return np.memmap(tmp_path / "rows", np.float32, "r")


def test_arrays_of_every_making_are_what_care_makes_of_them(tmp_path, tensors):
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    taken = [
        torch.arange(9.0)[::3], torch.ones(1).expand(3), torch.ones(3, requires_grad=True), np.arange(9, dtype=np.float32)[::-3],
        read_only, mapped(tmp_path), structured(), np.frombuffer(bytes(13), np.float32, 3, 1), torch.ones(3, 2).t()[0],
        np.broadcast_to(np.float32(3), 3), torch.zeros(6, dtype=torch.float32).as_strided((3,), (0,)),
    ]  # fmt: skip
    left = [
        torch.ones(3).to(torch.cfloat).conj().imag, torch.nn.Parameter(torch.ones(3)), torch.ones(3).as_subclass(Tagged),
        np.ones(3, ">f4"), np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0]), np.ones(3, np.float32).view(Odd),
        torch.ones(3).to_sparse(), torch.ones(3, device="meta"), torch._efficientzerotensor(3), torch.ones(3).to_mkldnn(),
        torch.ones(3, dtype=torch.float64), np.ones(3, np.complex64), np.ones((3, 1), np.float32), np.ones(2, np.float32),
        np.ones(3, object), np.array(["a", "b", "c"]), np.zeros(3, "M8[s]"), np.ones(3, np.uint16), torch.ones(3, dtype=torch.uint16),
        torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bool), [1.0] * 3, 1.0, None, "abc", b"abc", bytearray(12),
        memoryview(np.ones(3, np.float32)), Image.new("L", (3, 1)), np.ones((1,) * 9 + (3,), np.float32), UserDict(a=1),
    ]  # fmt: skip
    for first in (torch.zeros(3), np.zeros(3, np.float32)):
        structure = adaptor_of(lambda i: {"a": first, "label": i}).structure
        for value in taken:
            assert quick(structure, {"a": value, "label": 5}) == careful(structure, {"a": value, "label": 5}) != None  # noqa: E711
        for value in left:
            assert quick(structure, {"a": value, "label": 5}) is None, value
        assert quick(structure, {"a": resized(), "label": 5}) is None, "nothing is there to be read"
    # What can travel all the same does, and the mark of a negative is no reason to leave it out.
    negative = torch.tensor([1 + 2j, 3 - 1j, 0j]).conj().imag
    adaptor = adaptor_of(lambda i: {"a": negative if i else torch.zeros(3)})
    assert np.frombuffer(delivered(adaptor, 1)[0], np.float32).tolist() == [-2.0, 1.0, 0.0]
    assert "masked array" in delivered(adaptor_of(lambda i: {"a": np.ma.ones(3) if i else np.ones(3)}), 1)
    assert "sparse" in delivered(adaptor_of(lambda i: {"a": torch.eye(3).to_sparse() if i else torch.eye(3)}), 1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.float64, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.cfloat, torch.cdouble], ids=str)
def test_every_dtype_and_shape_without_elements_travels(dtype, tensors):
    structure = adaptor_of(lambda i: {"a": torch.ones(2, 3).to(dtype), "b": torch.ones(()).to(dtype), "label": i}, varying=True).structure
    for a in (torch.ones(0, 3), torch.ones(2, 0), torch.arange(12).view(4, 3), torch.arange(12).view(3, 4).t(), torch.ones(5, 1).expand(5, 7)):
        item = {"a": a.to(dtype), "b": torch.zeros(()).to(dtype), "label": -1}
        assert quick(structure, item) == careful(structure, item) != None  # noqa: E711


def test_numbers_are_taken_as_the_kind_they_are():
    structure = adaptor_of(lambda i: {"int": 1, "float": 0.5, "flag": True}).structure
    first = {"int": 1, "float": 0.5, "flag": True}
    takes = {
        "int": [0, -1, 2**63 - 1, -(2**63), np.int64(5), torch.tensor(5), np.array(5)],
        "float": [-0.0, 1e-46, 1e300, float("inf"), float("-inf"), float("nan"), np.float64(2), torch.tensor(2.0, dtype=torch.float64)],
        "flag": [False, np.bool_(True), torch.tensor(False)],
    }
    leaves = {
        "int": [2**63, 2**200, 1.0, True, np.int32(5), np.uint64(5), torch.tensor([5]), "1", None, 1j],
        "float": [1, True, np.float32(2), torch.tensor(2.0), "1", None],
        "flag": [0, 1, 0.0, np.uint8(1), torch.tensor(1), "", None],
    }
    for key in first:
        for value in takes[key]:
            assert quick(structure, {**first, key: value}) == careful(structure, {**first, key: value}), (key, value)
        for value in leaves[key]:
            assert quick(structure, {**first, key: value}) is None, (key, value)


def test_branches_are_taken_as_the_tree_they_are():
    a, b = np.ones(2), torch.zeros(3)
    structure = adaptor_of(lambda i: {"a": a, "b": [b, (a, i)]}).structure
    assert quick(structure, {"b": (b, [a, 2]), "a": a}) == careful(structure, {"a": a, "b": (b, (a, 2))}), "in any order"
    for item in (
        {"a": a}, {"a": a, "b": [b, (a, 2)], "c": 1}, {"a": a, "c": [b, (a, 2)]}, {"a": a, "b": [b]}, {"a": a, "b": [b, (a, 2, 3)]},
        {"a": a, "b": {0: b, 1: (a, 2)}}, {"a": a, "b": b}, OrderedDict(a=a, b=[b, (a, 2)]), UserDict(a=a, b=[b, (a, 2)]), [a, b], None,
        {"a": a, "b": Keyed(b, (a, 2), 3)}, {"a": a, "b": [b, type("L", (list,), {})((a, 2))]}, ValueError("returned"),
    ):  # fmt: skip
        assert quick(structure, item) is None
    structure = adaptor_of(lambda i: Point(a, b, i)).structure
    for item in (Point(a, b, 5), (a, b, 5), [a, b, 5]):
        assert quick(structure, item) == careful(structure, item)
    assert quick(structure, Keyed(5, b, a)) is None and careful(structure, Keyed(5, b, a)) == careful(structure, (a, b, 5))
    assert quick(adaptor_of(lambda i: Keyed(a, b, a)).structure, Keyed(5, b, a)) is None
    numbered = adaptor_of(lambda i: {0: a, (1, 2): b}).structure
    assert quick(numbered, {(1, 2): b, 0: a}) == careful(numbered, {0: a, (1, 2): b}), "keys that are no text"


def test_what_only_python_can_make_bytes_of_is_made_before():
    first = {"text": "none", "tokens": [1, 2, 3], "image": Image.new("RGB", (2, 2)), "label": 0}
    structure = adaptor_of(lambda i: first).structure
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    for item in ({"text": None, "tokens": (4, 5, 6), "image": image, "label": 1}, UserDict(label=1, image=image, tokens=[4, 5, 6], text="é" * 99)):
        assert quick(structure, item) == careful(structure, item) != None  # noqa: E711
    for key, value in {"tokens": [1, 2], "image": Image.new("RGB", (2, 3)), "label": "x", "text": lambda: 1}.items():
        assert quick(structure, {**first, key: value}) is None
    # An exception that is returned is one, even where an item may be any object.
    objects = adaptor_of(lambda i: ValueError("bad") if i == 1 else f"item {i}")
    assert delivered(objects, 1) == "ValueError: bad" and pickle.loads(delivered(objects, 2)[0][8:]) == "item 2"


def test_an_item_that_is_refused_leaves_nothing_behind():
    structure = adaptor_of(lambda i: {"a": np.arange(3), "b": [1.5] * i, "label": i}, varying=True).structure
    rows, add = structure.rows(9, 60)
    good = [{"a": np.arange(k), "b": [0.5] * (k + 1), "label": k} for k in range(5)]
    for item in good:
        assert add({**item, "label": "?"}) is None and add({**item, "b": [[1.0]]}) is None
        assert add(item)
    assert [rows[k] for k in range(5)] == [careful(structure, item) for item in good]


class Again:
    """A dataset that makes every item in the same memory."""

    def __init__(self, make, n=200):
        self.x, self.make, self.n = np.zeros((2, 8), np.int64), make, n
        self.tensor = torch.from_numpy(self.x)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.x[:] = i
        return self.make(self)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda s: (s.x, int(s.x[0, 0])),
        lambda s: (s.tensor, s.tensor[0, 0]),
        lambda s: {"a": s.x, "b": s.x[0], "c": s.x[:, ::2], "d": s.tensor.t(), "label": s.tensor[0, 0]},
        lambda s: {"a": s.tensor.view(16), "b": torch.from_numpy(s.x), "label": np.asarray(s.x)[0, 0]},
        lambda s: [s.x, s.x.view(np.matrix), UserDict(a=s.tensor), s.tensor.as_subclass(Tagged), s.x[0, 0]],
    ],
)
def test_a_dataset_that_fills_the_same_memory_for_every_item_is_read_right(make, workers):
    for batch in lf.Loader(Again(make), 16, num_workers=workers, shuffle=True, seed=0, cache="1KiB"):
        leaves = [leaf["a"] if isinstance(leaf, UserDict) else leaf for leaf in torch.utils._pytree.tree_leaves((batch.data, batch.target))]
        for leaf in leaves:
            assert (leaf.reshape(16 if len(batch) == 16 else 8, -1) == batch.ids[:, None]).all()


@pytest.mark.parametrize("workers", [0, 4])
def test_several_threads_read_a_dataset_that_bears_it(workers):
    def make(i):
        return {"a": torch.full((3,), i), "b": np.full(i % 5, i, np.float32), "name": f"n{i}", "label": i}

    data = lf.open(Made(make, 600), varying=True, thread_safe=True)
    seen = []
    for batch in lf.Loader(data, 16, num_workers=workers, shuffle=True, seed=1, pad=0):
        ids = batch.ids.tolist()
        seen += ids
        assert batch["a"].tolist() == [[i] * 3 for i in ids] and batch["name"] == [f"n{i}" for i in ids]
        assert all(row.sum() == i * (i % 5) for row, i in zip(batch["b"], ids, strict=True))
    assert sorted(seen) == list(range(600))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_a_bad_item_among_good_ones_is_named_and_the_others_travel(on_error, workers):
    bad = {11: KeyError("gone"), 23: {"a": np.ones(4), "label": 1}, 37: [1], 41: {"a": np.ones(3), "label": 2**70}}

    def make(i):
        if isinstance(bad.get(i), Exception):
            raise bad[i]
        return bad.get(i, {"a": np.full(3, float(i)), "label": i})

    loader = lf.Loader(Made(make, 48), 8, num_workers=workers, on_error=on_error)
    seen = []
    if on_error == "raise":
        with pytest.raises(lf.SampleError, match="dataset item 11 raised.*gone") as raised:
            for _ in loader:
                pass
        assert isinstance(raised.value.__cause__, KeyError)
        return
    for batch in loader:
        seen += batch.ids.tolist()
        assert (batch["a"] == batch.ids[:, None]).all() and (batch["label"] == batch.ids).all()
    assert set(seen) == set(range(48)) - set(bad) and len(seen) == (44 if on_error == "skip" else 48)


def test_a_run_ends_when_it_is_full_or_its_time_is_over():
    item = np.zeros(1 << 20, np.uint8)
    for first, varying in [((item, 1), False), ({"a": item, "label": 1}, True)]:
        structure = adaptor_of(lambda i: first, varying=varying).structure
        rows, add = structure.rows(N, 60)
        assert [add(first) for _ in range(4)] == [True] * 3 + [False] and len(rows) == 4
        rows, add = structure.rows(N, 0.0)
        assert add(first) is False and rows.put(careful(structure, first)) is False and len(rows) == 2
    rows, _ = structure.rows(N, 60)
    assert rows.put(("bad", None, False)) is True and rows.put(("over", KeyboardInterrupt(), True)) is False
    slow, ready = Made(lambda i: (ready.wait(0.05 if i == 2 else 0), (np.uint8(i), i))[1]), threading.Event()
    assert 1 <= len(lf.open(slow)._adaptors[0](list(range(N)))) <= 3, "a slow item is the last one of a call"
    for batch in lf.Loader(Made(lambda i: (np.full(1 << 20, i, np.uint8), i)), 16, num_workers=2):
        assert (batch.data == batch.ids[:, None]).all()


def test_worker_processes_and_getitems_bring_the_same_bytes():
    class Together(Made):
        def __getitems__(self, ids):
            return [self.make(i) for i in ids]

    one = lf.open(Made(make_ragged), varying=True)._adaptors[0]
    several = lf.open(Together(make_ragged), varying=True)._adaptors[0](list(range(N)))
    processes = lf.open(Made(make_ragged), varying=True, processes=2)._adaptors[0]
    for i in range(N):
        assert several[i] == delivered(one, i) == processes([i])[0]
