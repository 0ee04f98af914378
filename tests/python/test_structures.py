"""Samples that are no pairs of arrays: dicts, tuples, nests, several lengths, text. torch's DataLoader is the twin."""

import pickle
from collections import UserDict, namedtuple

import numpy as np
import pytest
import torch
from PIL import Image
from test_journal import replay
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, TensorDataset

import lossfeed as lf
from lossfeed._data.structure import Structure

N = 20
Point = namedtuple("Point", "x y label")


class Made:
    """A map-style dataset of what `make` makes of an id."""

    def __init__(self, make, n=N):
        self.make, self.n, self.reads = make, n, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        self.reads.append(i)
        return self.make(i)


def make_dict(i):
    return {
        "pixels": torch.full((2, 3), i, dtype=torch.uint8),
        "mask": np.arange(4) < i % 5,
        "width": i + 0.5,
        "flag": i % 2 == 0,
        "labels": i % 3,
    }


def make_nest(i):
    inner = {"a": torch.full((3,), i, dtype=torch.float64), "b": [np.int32(i), torch.tensor([[i]], dtype=torch.int16)]}
    return (inner, (torch.full((1,), -i, dtype=torch.bfloat16), i)), {"class": i % 4, "box": torch.full((4,), i / 8)}


def make_ragged(i):
    tokens = torch.arange(i % 7) * (i + 1)
    return {"tokens": tokens, "grid": np.full((i % 3 + 1, 5 - i % 4), i, dtype=np.float32), "name": f"sample {i}", "label": i}


FIXED = {
    "dict": make_dict,
    "nest": make_nest,
    "three": lambda i: (torch.full((2,), i), np.float32([i, -i]), i),
    "one": lambda i: torch.full((2, 2), float(i)),
    "list of one": lambda i: [torch.full((2,), i)],
    "named": lambda i: Point(torch.full((2,), i), np.full(3, i, dtype=np.uint8), i),
    "text": lambda i: {"text": f"number {i}", "raw": bytes([i] * (i + 1)), "label": i},
    "user's dict": lambda i: UserDict(ids=torch.full((3,), i), label=i),
    "picture": lambda i: {"image": np.asarray(Image.new("RGB", (4, 3), (i, 2 * i, 0))), "label": i},
    "pair of trees": lambda i: ({"a": torch.full((2,), i)}, i),
    "number": lambda i: {"label": i},
}


def same(ours, theirs):
    """Whether two trees hold the same."""
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
        assert ours.is_contiguous()
    elif isinstance(theirs, (dict, UserDict)):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        assert getattr(theirs, "_fields", None) == getattr(ours, "_fields", None)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert type(ours) is type(theirs) and ours == theirs


def whole(batch):
    """A batch as the samples are made."""
    return (batch.data, batch.target) if type(batch) is lf.Batch else batch.data


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("make", FIXED.values(), ids=FIXED)
def test_batches_are_what_torchs_default_collate_makes(make, cache, workers):
    ours = lf.Loader(Made(make), 8, num_workers=workers, cache=cache)
    for _ in range(3):
        theirs = DataLoader(Made(make), 8)
        for batch, expected in zip(ours, theirs, strict=True):
            same(whole(batch), expected)
            assert batch.ids.tolist() == list(range(N))[8 * batch.number :][:8]
    if cache:
        sized = Structure(make(0)).like_torch and not any(isinstance(leaf, str) for leaf in pytree.tree_leaves(make(0)))
        assert ours.stats()["fetched_samples_total"] == (N if sized else 2 * N), "what has no size is kept the second time"


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_travel_unchanged_in_random_orders(seed):
    rng = np.random.default_rng(seed)
    kinds = [np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_]

    def grow(depth):
        kind = rng.integers(0, 6 if depth else 2)
        if kind == 0 or kind == 1:
            varies = rng.random() < 0.5
            shape = tuple(rng.integers(1, 4, rng.integers(0, 4)))
            return ("array", kinds[rng.integers(len(kinds))], shape, varies)
        if kind == 2:
            return ("text",)
        return (("dict", "list", "tuple")[kind % 3], [grow(depth - 1) for _ in range(rng.integers(1, 4))])

    tree = ("dict", [grow(3) for _ in range(3)])

    def make(i):
        rows = np.random.default_rng((seed, i))

        def build(node):
            if node[0] == "array":
                _, kind, shape, varies = node
                lengths = tuple(int(rows.integers(0, 4)) for _ in shape) if varies else shape
                made = rows.integers(0, 2 if kind is np.bool_ else 100, lengths).astype(kind)
                # Strided the wrong way round, as a view of something else would be.
                return np.asfortranarray(made) if rows.random() < 0.5 else torch.from_numpy(np.ascontiguousarray(made))
            if node[0] == "text":
                return "é" * int(rows.integers(0, 9))
            parts = [build(part) for part in node[1]]
            if node[0] == "dict":
                return {f"k{k}": part for k, part in enumerate(parts)}
            return parts if node[0] == "list" else tuple(parts)

        return build(tree)

    seen = []

    def collate(items):
        seen.extend(items)
        return {"n": len(items)}

    loader = lf.Loader(Made(make, 40), 7, shuffle=True, seed=seed, collate_fn=collate, cache=4000, policy="lru")
    for _ in range(4):
        seen.clear()
        ids = [int(i) for batch in loader for i in batch.ids]
        assert sorted(ids) == list(range(40)) and len(seen) == 40
        for i, item in zip(ids, seen, strict=True):
            wanted, spec = pytree.tree_flatten(make(i))
            found, made = pytree.tree_flatten(item)
            assert made == spec
            for a, b in zip(found, wanted, strict=True):
                if isinstance(b, str):
                    assert a == b
                else:
                    assert np.array_equal(np.asarray(a), np.asarray(b)) and np.asarray(a).dtype == np.asarray(b).dtype
    assert loader.stats()["cache_bytes"] <= 4000


def naive_pad(arrays, value):
    largest = tuple(max(a.shape[d] for a in arrays) for d in range(arrays[0].ndim))
    out = np.full((len(arrays), *largest), value, dtype=arrays[0].dtype)
    for row, a in zip(out, arrays, strict=True):
        row[tuple(slice(0, n) for n in a.shape)] = a
    return out


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_lengths_are_filled_up_to_the_longest_of_the_batch(framework, workers):
    data = lf.open(Made(make_ragged), varying=True)
    pad = {"tokens": -100, "grid": 0.25}
    for batch in lf.Loader(data, 6, pad=pad, framework=framework, num_workers=workers, seed=1, shuffle=True):
        items = [make_ragged(int(i)) for i in batch.ids]
        for key, value in pad.items():
            wanted = naive_pad([np.asarray(item[key]) for item in items], value)
            assert np.array_equal(np.asarray(batch[key]), wanted) and np.asarray(batch[key]).dtype == wanted.dtype
        assert batch["name"] == [item["name"] for item in items]
        assert np.asarray(batch.target).tolist() == np.asarray(batch["label"]).tolist() == batch.ids.tolist()
    tokens = pad_sequence([item["tokens"] for item in items], batch_first=True, padding_value=-100)
    assert torch.equal(torch.as_tensor(batch["tokens"]), tokens)


def test_nested_tensors_hold_each_sample_as_it_is():
    made = Made(lambda i: {"tokens": torch.arange(i % 4 + 1.0), "pairs": torch.full((i % 3 + 1, 2), i), "label": i})
    for batch in lf.Loader(lf.open(made, varying=True), 8, pad="nested"):
        assert batch["tokens"].layout is torch.jagged
        for key in ("tokens", "pairs"):
            for row, i in zip(batch[key].unbind(), batch.ids.tolist(), strict=True):
                assert torch.equal(row, made.make(i)[key])


def test_batches_of_equal_lengths_need_no_rule_and_others_are_refused_with_it():
    lengths = [[0, 7, 14], [2, 9, 16]]
    data = lf.open(Made(lambda i: {"tokens": torch.full((i % 7 + 1,), i), "label": i}), varying=True)
    for batch, ids in zip(lf.Loader(data, batch_sampler=lengths), lengths, strict=True):
        assert batch["tokens"].tolist() == [[i] * (i % 7 + 1) for i in ids]
    with pytest.raises(lf.SampleError, match=r"tokens has shape \(1,\) in row 0 of a batch and \(2,\) in row 1.*pad="):
        next(iter(lf.Loader(data, 3)))
    pairs = lf.open(Made(lambda i: (torch.arange(i % 3 + 1), i)), varying=True)
    x, y = next(iter(lf.Loader(pairs, 4, pad={"x": 0})))
    assert x.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 0, 0]] and y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_gets_the_samples_as_the_dataset_gives_them_and_no_word_is_needed_for_lengths(workers):
    def make(i):
        return {"ids": list(range(i % 5 + 1)), "score": i / 2, "ok": i % 2 == 1, "name": f"n{i}", "x": np.ones(i + 1), "label": i}

    def collate(items):
        assert [type(items[0][key]) for key in ("ids", "score", "ok", "name", "label")] == [list, float, bool, str, int]
        longest = max(len(item["ids"]) for item in items)
        return {
            "ids": torch.tensor([item["ids"] + [0] * (longest - len(item["ids"])) for item in items]),
            "labels": torch.tensor([item["label"] for item in items]),
            "names": [item["name"] for item in items],
            "sums": [float(item["x"].sum()) + item["score"] + item["ok"] for item in items],
        }

    theirs = DataLoader(Made(make), 6, collate_fn=collate)
    for batch, expected in zip(lf.Loader(Made(make), 6, collate_fn=collate, num_workers=workers), theirs, strict=True):
        same(batch.data, expected)
        assert batch.target is batch["labels"] and dict(**batch).keys() == expected.keys()


def test_a_collate_fn_over_pairs_may_return_anything():
    made = Made(lambda i: (torch.full((2,), i), i))
    for returned in (lambda rows: {"a": len(rows)}, lambda rows: [len(rows)] * 3, lambda rows: len(rows)):
        batch = next(iter(lf.Loader(made, 4, collate_fn=returned)))
        same(batch.data, returned([None] * 4))
    ragged = Made(lambda i: (torch.arange(i % 4), i))
    x, y = next(iter(lf.Loader(ragged, 4, collate_fn=lambda rows: ([len(x) for x, _ in rows], [y for _, y in rows]))))
    assert (x, y) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_a_full_cache_of_samples_of_all_lengths_holds_its_limit_and_delivers_what_was_read():
    made = Made(lambda i: {"tokens": torch.full((i % 40 + 1,), i), "label": i}, 400)
    loader = lf.Loader(lf.open(made, varying=True), 16, shuffle=True, seed=3, cache=20_000, policy="lru", pad=0)
    for _ in range(4):
        for batch in loader:
            for row, i in zip(batch["tokens"], batch.ids.tolist(), strict=True):
                assert row.tolist() == [i] * (i % 40 + 1) + [0] * (len(row) - i % 40 - 1)
        stats = loader.stats()
        assert stats["cache_bytes"] <= 20_000
    assert stats["hits_total"] > 0 and stats["residents"] > 20
    assert stats["hits_total"] + stats["misses_total"] == 1600


def test_the_samplers_that_train_on_the_cache_take_samples_of_all_lengths():
    made = Made(lambda i: {"tokens": torch.full((i % 9 + 1,), i), "label": i % 4}, 200)
    for sampler in ("replay", "echo", "importance"):
        loader = lf.Loader(lf.open(made, varying=True), 16, sampler=sampler, cache=9_000, pad=0, seed=1)
        for _ in range(4):
            for batch in loader:
                loader.cross_entropy(torch.randn(len(batch), 4), batch)
                assert [int(row[0]) for row in batch["tokens"]] == batch.ids.tolist()
        assert loader.stats()["hits_total"] > 0, sampler


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_leave_the_parts_of_the_others_together(on_error, workers):
    def make(i):
        if i % 5 == 2:
            raise ValueError("bad")
        return make_ragged(i) if i % 5 != 4 else {**make_ragged(i), "extra": 1}

    loader = lf.Loader(lf.open(Made(make), varying=True), 10, on_error=on_error, pad=0, num_workers=workers)
    sizes = []
    for batch in loader:
        sizes.append(len(batch))
        for row, i in enumerate(batch.ids.tolist()):
            assert i % 5 not in (2, 4)
            wanted = make_ragged(i)
            assert batch["name"][row] == wanted["name"] and int(batch["label"][row]) == i
            assert batch["tokens"][row][: i % 7].tolist() == wanted["tokens"].tolist()
            assert float(batch["grid"][row].sum()) == float(wanted["grid"].sum())
    assert sizes == ([6, 6] if on_error == "skip" else [10, 10])


def test_resuming_delivers_exactly_the_rest():
    def make():
        return lf.Loader(lf.open(Made(make_ragged), varying=True), 3, shuffle=True, seed=5, pad=0)

    loader = make()
    all_of_it = [(batch.ids.tolist(), batch["name"]) for batch in loader]
    loader.set_epoch(0)
    it = iter(loader)
    for _ in range(4):
        next(it)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert [(batch.ids.tolist(), batch["name"]) for batch in resumed] == all_of_it[4:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["lru", "minio"])
def test_a_recorded_run_replays_hit_by_hit(policy, workers, tmp_path):
    made = Made(lambda i: {"tokens": torch.full((i % 40 + 1,), i), "label": i}, 300)
    keywords = {"cache": 15_000, "policy": policy, "num_workers": workers, "record": tmp_path / "run.csv"}
    with lf.Loader(lf.open(made, varying=True), 16, shuffle=True, seed=3, pad=0, **keywords) as loader:
        for _ in range(4):
            for _ in loader:
                pass
        hits = loader.stats()["hits_total"]
    run = replay(tmp_path / "run.csv", "--policy", policy)["run"]
    assert hits > 0 and (run["replayed_hits"], run["hits"], run["differing"]) == (hits, hits, 0)


REFUSED = [
    (lambda i: {"a": 1, "b": 2} if i < 9 else {"a": 1, "c": 2}, {}, r"item 9: it has keys \['a', 'c'\], in item 5"),
    (lambda i: {"a": 1} if i < 9 else [1], {}, "item 9: it has a list, in item 5 it had keys"),
    (lambda i: (1, 2, 3) if i < 9 else (1, 2), {}, "item 9: it is a tuple of 2, in item 5 it was of 3 parts"),
    (lambda i: {"a": {"b": 1}} if i < 9 else {"a": 1}, {}, "item 9: a has a int"),
    (lambda i: {"a": 1 if i < 9 else "x"}, {}, "item 9: a is a str, item 5 had an array of int64"),
    (lambda i: {"a": np.ones(3 + i // 9)}, {}, r"item 9: a is float64 \(4,\), item 5 had float64 \(3,\).*varying=True"),
    (lambda i: {"a": np.ones(3) if i < 9 else np.ones((3, 1))}, {"varying": True}, "item 9: a is .* number of dimensions"),
    (lambda i: {"a": np.ones(3) if i < 9 else np.ones(3, np.int8)}, {"varying": True}, "item 9: a is int8"),
    (lambda i: {"a": lambda: 1}, {}, "item 0: a is a function that cannot be pickled"),
    (lambda i: {"a": np.ones(3, np.longdouble)}, {}, "a .ndarray. has dtype float128"),
    (lambda i: {"a": [1, [2]]}, {}, "a .list. is ragged or not numeric"),
]


@pytest.mark.parametrize("make,options,says", REFUSED, ids=[says[:30] for _, _, says in REFUSED])
def test_an_item_that_is_made_otherwise_is_named_with_both(make, options, says):
    with pytest.raises(lf.SampleError, match=says):
        for _ in lf.Loader(lf.open(Made(make), **options), 5, num_workers=0):
            pass


def test_settings_that_do_not_fit_are_refused_with_what_there_is():
    ragged = lf.open(Made(make_ragged), varying=True)
    fixed = Made(make_dict)
    for data, keywords, says in [
        (ragged, {"pad": {"token": 0}}, r"pad={'token': …} is not one of .*\['grid', 'tokens'\]"),
        (ragged, {"pad": {"tokens": 0.5}}, "would become 0"),
        (ragged, {"pad": {"tokens": 2**70}}, "int64"),
        (ragged, {"pad": "jagged"}, "give a padding value, 'nested'"),
        (ragged, {"pad": "nested", "framework": "numpy"}, "NumPy has no nested"),
        (ragged, {"pad": [0]}, "pad="),
        (ragged, {"cache": "20%"}, "sizes of this dataset"),
        (ragged, {"read_ahead": "1MiB"}, "read_ahead= needs samples of known size, and these vary"),
        (ragged, {"cache": 10}, "smaller than one sample"),
        (ragged, {"transform": lf.ImageTransform()}, "pairs"),
        (fixed, {"pad": 0}, "no array of this dataset varies in length.*varying=True"),
        (fixed, {"transform": lf.ImageTransform()}, "pairs"),
    ]:
        with pytest.raises(lf.SettingsError, match=says):
            lf.Loader(data, 4, **keywords)
    with pytest.raises(lf.SettingsError, match="target='text' is no key of this dataset's items"):
        lf.open(fixed, target="text")
    with pytest.raises(lf.SettingsError, match="items are not dicts"):
        lf.open(Made(lambda i: (1, 2)), target="y")
    with pytest.raises(lf.SettingsError, match="no elements.*varying=True"):
        lf.open(Made(make_ragged))
    with pytest.raises(lf.SettingsError, match="for Python datasets"):
        lf.open((np.ones((4, 2)), np.ones(4)), varying=True)


def test_the_target_is_what_is_named_or_goes_by_its_name():
    def target(item, **options):
        return next(iter(lf.Loader(lf.open(Made(lambda i: item), **options), 2))).target

    assert target({"x": 1, "label": 2, "labels": 3}).tolist() == [3, 3]
    assert target({"x": 1, "label": 2}, target="x").tolist() == [1, 1]
    assert target({"x": 1}) is None and target([torch.ones(2)]) is None
    assert target((1, 2, 3)).tolist() == [3, 3]
    assert target({"x": 1, "y": "cat"}) == ["cat", "cat"]
    assert target((1, {"a": 2}))["a"].tolist() == [2, 2]
    data = lf.open(Made(lambda i: {"label": i, "kind": -i}), target="kind")
    batch = next(iter(lf.Loader(data, 2, collate_fn=lambda items: {k: [item[k] for item in items] for k in items[0]})))
    assert batch.target == [0, -1]


def test_losses_go_by_the_target_and_say_so_where_there_is_none():
    loader = lf.Loader(Made(make_dict), 5, sampler="importance", seed=1)
    for batch in loader:
        loss = loader.cross_entropy(torch.randn(len(batch), 3, requires_grad=True), batch)
        loss.backward()
    assert loader.stats()["scores_total"] == N
    nothing = lf.Loader(Made(lambda i: {"x": i}), 5)
    batch = next(iter(nothing))
    with pytest.raises(lf.SettingsError, match="these samples have no known target"):
        nothing.cross_entropy(torch.randn(5, 3), batch)
    nothing.cross_entropy(torch.randn(5, 3), batch, target=batch["x"] % 3)
    assert nothing.stats()["scores_total"] == 5


def test_arrays_may_be_a_dict_or_a_longer_tuple_and_are_read_where_they_lie():
    x, z, y = torch.arange(40).view(20, 2), np.ones((20, 3), np.float32), np.arange(20)
    x[5] = 77
    data = lf.open({"x": x, "z": z, "label": y})
    x[6] = 78
    batch = next(iter(lf.Loader(data, 8)))
    assert batch["x"][5:7].tolist() == [[77, 77], [78, 78]] and batch.target.tolist() == list(range(8))
    assert data.labels.tolist() == list(range(20)) and batch["z"].shape == (8, 3)
    a, b, c = next(iter(lf.Loader((x, z, y), 8)))
    assert torch.equal(a, x[:8]) and b.dtype == torch.float32 and c.tolist() == list(range(8))
    for refused, says in [({"a": x, "b": y[:5]}, "a has 20 samples and b has 5"), ((x, z, np.array(1)), "2 is a scalar")]:
        with pytest.raises(lf.SettingsError, match=says):
            lf.open(refused)
    for data in (TensorDataset(x, torch.from_numpy(z), torch.from_numpy(y)), TensorDataset(x), TensorDataset(x, x)):
        for ours, theirs in zip(lf.Loader(data, 8), DataLoader(data, 8), strict=True):
            same(list(ours), list(theirs))
    assert len(lf.open((x,))) == 20, "rows of one array, and no dataset of one item"


def test_data_of_any_structure_can_be_looked_at_split_and_joined():
    data = lf.open(Made(make_ragged), varying=True)
    assert data.spec == {
        "tokens": ("int64", (None,)), "grid": ("float32", (None, None)), "name": ("object", ()), "label": ("int64", ())
    }
    assert data.target_spec == ("int64", ()) and "tokens" in repr(data)
    item = data[-1]
    assert item["name"] == "sample 19" and item["label"] == 19 and torch.equal(item["tokens"], make_ragged(19)["tokens"])
    both = data.subset([3, 1]) + data.split(5, seed=0)[0]
    assert len(both) == 7 and both[1]["name"] == "sample 1"
    names = [name for batch in lf.Loader(both, 4, pad=0) for name in batch["name"]]
    assert names[:2] == ["sample 3", "sample 1"] and len(names) == 7
    with pytest.raises(lf.SettingsError, match="part 1 has samples of"):
        data + lf.open(Made(make_dict))


def test_worker_processes_read_samples_of_any_structure():
    data = lf.open(Made(make_ragged), varying=True, processes=2)
    for batch in lf.Loader(data, 6, pad=0):
        assert batch["name"] == [f"sample {i}" for i in batch.ids.tolist()]


def test_a_batch_of_dicts_is_read_like_one():
    batch = next(iter(lf.Loader(Made(make_dict), 4)))
    assert list(batch) == list(batch.keys()) == list(make_dict(0)) and "mask" in batch and "masks" not in batch
    assert dict(batch.items()).keys() == dict(**batch).keys() and len(list(batch.values())) == 5 and len(batch) == 4
    assert batch.get("masks") is None and batch["ids"].tolist() == [0, 1, 2, 3] and batch["weight"].tolist() == [1.0] * 4
    with pytest.raises(KeyError, match="'masks' is no key of these samples: they have"):
        batch["masks"]
    again = pickle.loads(pickle.dumps(batch))
    assert again["labels"].tolist() == [0, 1, 2, 0] and isinstance(again, lf.Batch) and len(again) == 4
    doubled = pytree.tree_map(lambda t: t * 2, batch)
    assert type(doubled) is type(batch) and doubled["width"].tolist() == [1.0, 3.0, 5.0, 7.0]
    moved = batch.to("meta")
    assert moved is batch and batch["pixels"].device.type == "meta" and batch.target is batch["labels"]
    three = next(iter(lf.Loader(Made(FIXED["three"]), 4)))
    with pytest.raises(TypeError, match="are not dicts but list"):
        three.keys()
    assert three[2].tolist() == [0, 1, 2, 3] and three["target"] is three.target
    first, second = lf.Loader(Made(make_dict), 10, num_workers=0)
    assert first.copy_(second)["labels"].tolist() == [i % 3 for i in range(10, 20)] and first.target.tolist() == second.target.tolist()
