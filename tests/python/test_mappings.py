"""A batch of dicts is a mapping that can be written to: a dict is the twin, and what trainers do to one keeps its samples."""

import copy
import pickle
import random
from collections.abc import Mapping, MutableMapping

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert
from torch.utils.data._utils.pin_memory import pin_memory

import lossfeed as lf

N = 24


def item(i):
    return {"ids": torch.arange(4) + i, "box": {"at": np.full(2, i, dtype=np.float32)}, "name": f"n{i}", "labels": i % 3}


def made(**keywords):
    return lf.Loader([item(i) for i in range(N)], 8, **{"score": "loss", "num_workers": 0} | keywords)


@pytest.fixture
def batch():
    loader = made()
    found = next(iter(loader))
    found_in[id(found)] = loader
    yield found
    found_in.clear()


found_in = {}


def scores_its_samples(batch, like):
    """Whether `batch` is scored as the samples of `like`, whose loader is known."""
    loader = found_in[id(like)]
    assert isinstance(batch, lf.Batch) and batch.ids.tolist() == like.ids.tolist() and len(batch) == len(like)
    loader.cross_entropy(torch.zeros(8, 3), batch)
    assert loader.stats()["scores_total"] + loader.stats()["scores_repeated_total"] >= 8
    assert torch.isfinite(loader.importance()[like.ids]).all()
    return True


def test_its_class_is_known_by_its_public_name(batch):
    assert isinstance(batch, Mapping) and isinstance(batch, MutableMapping) and isinstance(batch, lf.Batch)
    others = [next(iter(lf.Loader(data, 4))) for data in ([(1.0, 2)] * 8, [(1, 2, 3)] * 8, [np.ones(3)] * 8)]
    for one in (batch, *others):
        assert repr(type(one)) == "<class 'lossfeed.Batch'>" and type(pickle.loads(pickle.dumps(one))).__name__ == "Batch"
    assert not any(isinstance(one, Mapping) for one in others)


def told(answer):
    """An answer in which arrays and tensors can be compared: by which they are."""
    if isinstance(answer, dict):
        return {key: told(value) for key, value in answer.items()}
    if isinstance(answer, (tuple, list)):
        return [told(value) for value in answer]
    return id(answer) if hasattr(answer, "shape") else answer


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_to_it_is_done_to_its_dict(seed, framework):
    draw = random.Random(seed)
    batch = next(iter(made(framework=framework)))
    if seed % 4 == 3:
        batch = pickle.loads(pickle.dumps(batch))
    twin, target, ids = dict(batch.data), batch.target, batch.ids
    names = [*twin, "new", "other", "data", "weight"]
    steps = {
        "set": lambda b, k, v: b.__setitem__(k, v),
        "del": lambda b, k, v: b.__delitem__(k),
        "pop": lambda b, k, v: b.pop(k),
        "pop or": lambda b, k, v: b.pop(k, v),
        "pop as": lambda b, k, v: b.pop(k, None),
        "setdefault": lambda b, k, v: b.setdefault("new", v),
        "update": lambda b, k, v: b.update({k: v}, more=v),
        "update pairs": lambda b, k, v: b.update([(k, v)]),
        "or": lambda b, k, v: dict(b | {k: v}),
        "ror": lambda b, k, v: {k: v} | b,
        "ior": lambda b, k, v: b.__ior__({k: v}) and None,
        "get": lambda b, k, v: b.get(k, v),
        "in": lambda b, k, v: k in b,
        "list": lambda b, k, v: (list(b), len(b.keys()), len(b.items()), list(b.values())),
        "star": lambda b, k, v: {**b},
        "call": lambda b, k, v: (lambda **given: given)(**b),
        "copy": lambda b, k, v: dict(b.copy()),
        "keep": lambda b, k, v: b.copy().clear(),
    }
    for _ in range(40):
        step, key, value = draw.choice(list(steps)), draw.choice(names), object()
        answers = []
        for one in (batch, twin):
            try:
                answers.append(told(steps[step](one, key, value)))
            except KeyError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], step
        assert told(dict(batch)) == told(twin) and batch.ids is ids
        # The target is what is under its key, and stays when the key goes.
        target = twin.get("labels", target)
        assert batch.target is target
    batch.clear()
    assert dict(batch) == {} and batch and len(batch) == 8


def test_a_loop_that_takes_its_labels_out_scores_and_goes_by_them(batch):
    labels = batch.pop("labels")
    assert batch.target is labels and "labels" not in batch
    loader, logits = found_in[id(batch)], torch.randn(8, 3)
    torch.testing.assert_close(loader.cross_entropy(logits, batch), torch.nn.functional.cross_entropy(logits, labels))
    batch["labels"] = 2 - labels
    assert batch.target is batch["labels"]
    torch.testing.assert_close(loader.cross_entropy(logits, batch), torch.nn.functional.cross_entropy(logits, 2 - labels))
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            batch[key] = value.to(torch.int32)
    assert batch.target.dtype == torch.int32 and scores_its_samples(batch, batch)


@pytest.mark.parametrize(
    "of",
    [
        copy.copy,
        lambda b: b.copy(),
        lambda b: b | {"mask": torch.ones(8)},
        lambda b: type(b)(b),
        lambda b: type(b)(list(b.items())),
        lambda b: type(b)({k: v.to("cpu") if isinstance(v, torch.Tensor) else v for k, v in b.items()}),
        lambda b: type(b)({k: v + 0 if isinstance(v, torch.Tensor) else v for k, v in b.items()}),
        lambda b: type(b)({"ids": b["ids"]}),
        lambda b: pin_memory(b) if torch.cuda.is_available() else copy.copy(b),
        default_convert,
        lambda b: torch.utils._pytree.tree_map(lambda v: v, b),
    ],
)
def test_what_is_made_of_it_is_a_batch_of_its_samples(batch, of):
    before = list(batch)
    found = of(batch)
    assert found is not batch and type(found) is type(batch)
    assert scores_its_samples(found, batch)
    found["more"] = 1
    assert list(batch) == before


def test_what_is_no_batchs_is_a_plain_dict(batch):
    kind = type(batch)
    other = next(iter(found_in[id(batch)]))
    for given in (
        {}, {"a": 1}, {k: torch.zeros(3) for k in batch}, {k: v[:4] for k, v in batch.items() if k == "ids"},
        {"ids": torch.cat([batch["ids"], other["ids"]])}, {"ids": batch["ids"] + other["ids"]},
    ):  # fmt: skip
        assert type(kind(given)) is dict and kind(given).keys() == given.keys()
    # Asked for its items before the next batch was delivered.
    del batch["box"]
    doubled = [(k, v * 2 if isinstance(v, torch.Tensor) else v) for k, v in batch.items()]
    third = next(iter(made()))
    assert type(kind(doubled)) is dict and type(kind()) is dict
    with pytest.raises(lf.UsageError, match=r"dict is not a batch of this loader: .*batch.to\(device\)"):
        found_in[id(batch)].cross_entropy(torch.zeros(8, 3), dict(third))


def test_two_are_told_apart_as_objects(batch):
    again = batch.copy()
    assert batch == batch and batch != again and len({batch, again}) == 2


def test_its_dict_may_be_one_that_cannot_be_written_to():
    from types import MappingProxyType

    loader = made(collate_fn=lambda items: MappingProxyType({"n": len(items), "labels": torch.zeros(8).long()}))
    batch = next(iter(loader))
    batch["n"] = 3
    assert batch.pop("labels") is batch.target and dict(batch) == {"n": 3} and type(batch.data) is dict
    batch.data = [1]
    with pytest.raises(TypeError, match="batch.data is a list now"):
        batch.keys()


def test_a_compiled_step_reads_and_writes_it():
    loader, model = made(), torch.nn.Linear(4, 3)

    def step(batch):
        labels = batch.pop("labels")
        out = model(batch["ids"].float())
        return loader.cross_entropy(out, batch, target=labels)

    compiled = torch.compile(step, backend="aot_eager")
    for batch in loader:
        twin = batch.copy()
        torch.testing.assert_close(compiled(batch | {"more": 1}), step(twin))
    assert loader.stats()["scores_total"] == N
