"""Six ordinary training scripts, written for torch's DataLoader: with the import changed and nothing else they give
torch's losses, step by step. Then each gains loss-fed sampling, by three to six lines.

Where a script shuffles, torch's own sampler does, from a generator, so that both loaders have one order.
"""

import difflib
import random
import textwrap

import numpy as np
import pytest
import torch

import lossfeed as lf

PICTURES = """
    torch.manual_seed(0)
    x, y = torch.rand(96, 3, 8, 8), torch.randint(0, 5, (96,))
    train, held_out = random_split(TensorDataset(x, y), [80, 16], generator=torch.Generator().manual_seed(1))
    order = RandomSampler(train, generator=torch.Generator().manual_seed(2))
    train_loader = DataLoader(train, batch_size=16, sampler=order, num_workers=WORKERS, drop_last=True)
    test_loader = DataLoader(held_out, batch_size=5, shuffle=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    model(x[:1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        for images, labels in train_loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        correct = 0
        with torch.no_grad():
            for images, labels in test_loader:
                correct += (model(images).argmax(1) == labels).sum().item()
        losses.append(correct / len(test_loader.dataset))
"""

DICTS = """
    class Tables(Dataset):
        def __len__(self):
            return 60
        def __getitem__(self, i):
            rng = np.random.default_rng(i)
            return {"numbers": rng.normal(size=6).astype(np.float32), "kind": i % 4, "label": float(i % 7) / 7, "name": f"row {i}"}

    torch.manual_seed(0)
    loader = DataLoader(Tables(), batch_size=8, num_workers=WORKERS)
    embedding, model = nn.Embedding(4, 3), nn.Linear(9, 1)
    optimizer = torch.optim.Adam([*embedding.parameters(), *model.parameters()], lr=0.01)
    for epoch in range(2):
        for step, batch in enumerate(loader):
            batch_on_device = {k: v.to("cpu") for k, v in batch.items() if isinstance(v, torch.Tensor)}
            features = torch.cat([batch_on_device["numbers"], embedding(batch["kind"])], dim=1)
            loss = F.mse_loss(model(features).squeeze(1), batch["label"].float())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
            assert batch["name"][0] == f"row {8 * step}" and len(batch["name"]) == len(batch["label"])
"""

TEXT = """
    class Sentences(Dataset):
        def __len__(self):
            return 50
        def __getitem__(self, i):
            return [(i * k) % 29 + 1 for k in range(1, i % 6 + 2)], i % 2

    def collate(samples):
        lengths = torch.tensor([len(tokens) for tokens, _ in samples])
        padded = pad_sequence([torch.tensor(tokens) for tokens, _ in samples], batch_first=True)
        return padded, lengths, torch.tensor([label for _, label in samples])

    torch.manual_seed(0)
    loader = DataLoader(Sentences(), batch_size=8, collate_fn=collate, num_workers=WORKERS)
    embedding, model = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*embedding.parameters(), *model.parameters()], lr=0.5)
    for epoch in range(3):
        for tokens, lengths, labels in loader:
            pooled = embedding(tokens).sum(1) / lengths[:, None]
            loss = F.cross_entropy(model(pooled), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
"""

IMBALANCED = """
    torch.manual_seed(0)
    y = torch.cat([torch.zeros(90, dtype=torch.int64), torch.ones(10, dtype=torch.int64)])
    x = torch.randn(100, 4) + y[:, None]
    weights = (1.0 / torch.bincount(y).float())[y]
    sampler = WeightedRandomSampler(weights, 100, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=sampler, num_workers=WORKERS)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for inputs, targets in loader:
            assert 0.1 < targets.float().mean() < 0.9
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
"""

BUCKETS = """
    class Pairs(Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, i):
            length = i // 10 + 2
            return torch.arange(length, dtype=torch.float32), torch.full((length,), float(i)), torch.tensor(float(i % 3))

    torch.manual_seed(0)
    buckets = [list(range(start, start + 5)) for start in range(0, 40, 5)]
    loader = DataLoader(Pairs(), batch_sampler=buckets, num_workers=WORKERS)
    weight = nn.Parameter(torch.tensor(0.1))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    for epoch in range(2):
        for anchor, other, distance in loader:
            loss = ((weight * (anchor - other)).norm(dim=1) - distance).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
"""

NESTED = """
    class Boxes(Dataset):
        def __len__(self):
            return 30
        def __getitem__(self, i):
            image = torch.full((3, 4, 4), i / 30)
            return image, {"boxes": torch.full((2, 4), i / 10), "labels": torch.tensor([i % 3, (i + 1) % 3])}

    torch.manual_seed(0)
    loader = DataLoader(Boxes(), 6, False, num_workers=WORKERS)
    model = nn.Linear(48, 14)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    iterator = iter(loader)
    for step in range(9):
        try:
            images, targets = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            images, targets = next(iterator)
        out = model(images.flatten(1))
        loss = F.l1_loss(out[:, :8].reshape(-1, 2, 4), targets["boxes"])
        loss = loss + F.cross_entropy(out[:, 8:].reshape(-1, 3), targets["labels"].reshape(-1))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
"""

SCRIPTS = {"pictures": PICTURES, "dicts": DICTS, "text": TEXT, "imbalanced": IMBALANCED, "buckets": BUCKETS, "nested": NESTED}
HEAD = """
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, RandomSampler, TensorDataset, WeightedRandomSampler, random_split
"""


def losses(script, the_import, workers):
    """What a script records."""
    found = {"losses": []}
    text = textwrap.dedent(script.replace("WORKERS", str(workers)))
    exec(f"{HEAD}{the_import}\n{text}", found)
    return found["losses"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_with_another_import_has_torchs_losses_step_by_step(name, workers):
    expected = losses(SCRIPTS[name], "from torch.utils.data import DataLoader", 0)
    found = losses(SCRIPTS[name], "from lossfeed import Loader as DataLoader", workers)
    assert len(expected) > 8 and np.isfinite(expected).all()
    assert found == expected


#: What makes each script loss-fed: the lines that change, and how many they are.
#:
#: The loader's line and the loss's change everywhere. A loop that takes batches apart keeps the batch too (a line, or two
#: where it calls `next`), and a loss of its own is made per sample.
GAINS = {
    "pictures": (
        3,
        [
            ("sampler=order", 'sampler="importance"'),
            ("for images, labels in train_loader:", "for batch in train_loader:"),
            ("loss = F.cross_entropy(model(images), labels)", "loss = train_loader.cross_entropy(model(batch.data), batch)"),
        ],
    ),
    "dicts": (
        3,
        [
            ("batch_size=8,", 'batch_size=8, sampler="importance",'),
            (
                'loss = F.mse_loss(model(features).squeeze(1), batch["label"].float())',
                'loss = loader.loss("mse", model(features).squeeze(1), batch)',
            ),
            # What counts on rows that come in order goes by ids now.
            ('f"row {8 * step}"', 'f"row {batch.ids[0]}"'),
        ],
    ),
    "text": (
        4,
        [
            ("batch_size=8,", 'batch_size=8, sampler="importance",'),
            ("for tokens, lengths, labels in loader:", "for batch in loader:\n            tokens, lengths, labels = batch"),
            ("loss = F.cross_entropy(model(pooled), labels)", "loss = loader.cross_entropy(model(pooled), batch)"),
        ],
    ),
    # One sampler takes the other's place. What the classes count is said to the loss now, and holds whoever is drawn.
    "imbalanced": (
        4,
        [
            ("sampler=sampler", 'sampler="importance"'),
            ("for inputs, targets in loader:", "for batch in loader:"),
            ("            assert 0.1 < targets.float().mean() < 0.9\n", ""),
            (
                "loss = F.cross_entropy(model(inputs), targets)",
                "loss = loader.cross_entropy(model(batch.data), batch, weight=1.0 / torch.bincount(y).float())",
            ),
        ],
    ),
    # Samples of any length come together now: they are filled up with zeros, which this loss does not see.
    "buckets": (
        5,
        [
            ("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n    import lossfeed as lf\n"),
            (
                "loader = DataLoader(Pairs(), batch_sampler=buckets,",
                'loader = DataLoader(lf.open(Pairs(), varying=True), 5, sampler="importance", pad=0,',
            ),
            ("for anchor, other, distance in loader:", "for batch in loader:\n            anchor, other, distance = batch"),
            (
                "loss = ((weight * (anchor - other)).norm(dim=1) - distance).pow(2).mean()",
                "loss = loader.weighted_mean(((weight * (anchor - other)).norm(dim=1) - distance).pow(2), batch)",
            ),
        ],
    ),
    "nested": (
        6,
        [
            ("Boxes(), 6, False,", 'Boxes(), 6, sampler="importance",'),
            ("images, targets = next(iterator)", "batch = next(iterator)"),
            ("images, targets = next(iterator)", "batch = next(iterator)"),
            ("        out = model", "        images, targets = batch\n        out = model"),
            (
                'loss = F.l1_loss(out[:, :8].reshape(-1, 2, 4), targets["boxes"])',
                'loss = F.l1_loss(out[:, :8].reshape(-1, 2, 4), targets["boxes"], reduction="none").mean((1, 2))',
            ),
            (
                'loss = loss + F.cross_entropy(out[:, 8:].reshape(-1, 3), targets["labels"].reshape(-1))',
                'loss = loader.weighted_mean(loss + F.cross_entropy(out[:, 8:].reshape(-1, 2, 3).mT, targets["labels"], '
                'reduction="none").mean(1), batch)',
            ),
        ],
    ),
}
#: How many samples each script delivers.
DELIVERED = {"pictures": 240, "dicts": 120, "text": 150, "imbalanced": 300, "buckets": 80, "nested": 54}


def loss_fed(name):
    """A script with its changes, each made once."""
    script = SCRIPTS[name]
    for old, new in GAINS[name][1]:
        assert old in script, old
        script = script.replace(old, new, 1)
    return script


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_is_loss_fed_by_a_few_lines_more(name, workers, recwarn):
    script = loss_fed(name)
    loader = "train_loader" if name == "pictures" else "loader"
    found = losses(script + f"\n    losses.append({loader})", "from lossfeed import Loader as DataLoader", workers)
    loader = found.pop()
    assert np.isfinite(found).all()
    assert loader.stats()["scores_total"] == DELIVERED[name], "every delivered sample is scored"
    assert loader.epoch_report()["weight_max"] > 1.001, "and by scores it was drawn"
    assert loader._account.uses.weight_read, "its weights went into the loss"
    # On a busy machine a training may wait for its workers, and is told.
    told = [str(w.message) for w in recwarn if issubclass(w.category, lf.TrainingWarning)]
    assert [words for words in told if not words.startswith("training waited")] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_many_lines_change_as_are_said(name):
    before, after = (textwrap.dedent(script).splitlines() for script in (SCRIPTS[name], loss_fed(name)))
    changed = 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        changed += 0 if kind == "equal" else max(b - a, d - c)
    assert changed == GAINS[name][0]


def test_without_drawing_by_scores_the_changed_losses_are_the_scripts_own():
    """What the changed lines compute is what those before them did, where both walk in one order."""
    for name in ("pictures", "dicts", "text", "buckets", "nested"):
        ours = losses(loss_fed(name).replace('sampler="importance"', "sampler=None"), "from lossfeed import Loader as DataLoader", 0)
        script = SCRIPTS[name].replace("sampler=order", "sampler=None")
        theirs = losses(script, "from torch.utils.data import DataLoader", 0)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


# ---- six more, whose datasets and collate_fns draw at random ---------------------------------------------------------

#: Each makes ``data``, and ``keywords`` of the loader beside batch_size, order and workers.
DRAWING = {
    "a folder of pictures with augmentation": """
        class Pictures(Dataset):
            classes = ["a", "b"]
            def __len__(self): return 40
            def __getitem__(self, i):
                x = torch.full((3, 6, 6), float(i))
                x = x.flip(-1) if torch.rand(1) < 0.5 else x
                left = random.randrange(3)
                return x[:, left:left + 4, :4] + np.random.normal(), i % 2
        data, keywords = Pictures(), {}
        """,
    "a segmentation with masks as subclasses": """
        class Mask(torch.Tensor): pass
        class Seg(Dataset):
            def __len__(self): return 32
            def __getitem__(self, i):
                return torch.full((1, 4, 4), float(i)), torch.full((4, 4), i).as_subclass(Mask)
        def collate(items):
            assert all(type(mask) is Mask for _, mask in items)
            flip = torch.rand(len(items)) < 0.5
            return (torch.stack([x.flip(-1) if f else x for (x, _), f in zip(items, flip)]),
                    torch.stack([m.as_subclass(torch.Tensor).flip(-1) if f else m.as_subclass(torch.Tensor) for (_, m), f in zip(items, flip)]))
        data, keywords = Seg(), {"collate_fn": collate}
        """,
    "boxes": """
        class Boxes(Dataset):
            def __len__(self): return 30
            def __getitem__(self, i):
                jitter = torch.rand(1 + i % 3, 4)
                return torch.full((3, 5, 5 + i % 2), float(i)), {"boxes": jitter + i, "labels": torch.arange(1 + i % 3), "name": f"n{i}"}
        data, keywords = Boxes(), {"collate_fn": lambda items: tuple(zip(*items))}
        """,
    "text with a mask drawn in collate_fn": """
        class Text(Dataset):
            def __len__(self): return 36
            def __getitem__(self, i): return {"tokens": list(range(2 + i % 5)), "label": i % 3}
        def collate(items):
            longest = max(len(item["tokens"]) for item in items)
            tokens = torch.tensor([item["tokens"] + [0] * (longest - len(item["tokens"])) for item in items])
            return {"tokens": tokens.masked_fill(torch.rand(tokens.shape) < 0.15, -1), "labels": torch.tensor([item["label"] for item in items])}
        data, keywords = Text(), {"collate_fn": collate}
        """,
    "dicts with metadata": """
        class Rows(Dataset):
            def __len__(self): return 33
            def __getitems__(self, ids): return [self[i] for i in ids]
            def __getitem__(self, i):
                return {"x": np.random.rand(3).astype(np.float32), "path": f"/data/{i}", "size": (i, i + 1), "weight": i / 3}
        data, keywords = Rows(), {}
        """,
    "parts of two datasets": """
        class Noisy(Dataset):
            def __init__(self, base): self.base = base
            def __len__(self): return 25
            def __getitem__(self, i): return self.base + i + torch.rand(2), self.base + i
        data = torch.utils.data.Subset(torch.utils.data.ConcatDataset([Noisy(0), Noisy(100)]), list(range(5, 45)))
        keywords = {}
        """,
}


def drawn(name, kind, workers, shuffle):
    """What a loop gets of two epochs, and its own random numbers beside them."""
    names = {"torch": torch, "np": np, "random": random, "Dataset": torch.utils.data.Dataset}
    exec(textwrap.dedent(DRAWING[name]), names)
    torch.manual_seed(11)
    np.random.seed(12)
    random.seed(13)
    order = {"shuffle": True} if shuffle else {"sampler": torch.utils.data.RandomSampler(names["data"])}
    loader = kind(names["data"], batch_size=4, num_workers=workers, **order, **names["keywords"])
    found, own = [], []
    for _ in range(2):
        for batch in loader:
            data = batch if not isinstance(batch, lf.Batch) else list(batch) if not isinstance(batch.data, dict) else dict(batch.items())
            found.append(torch.utils._pytree.tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, data))
            own.append((torch.rand(1).item(), np.random.rand(), random.random()))
    return torch.utils._pytree.tree_leaves(found), own


@pytest.mark.parametrize("name", DRAWING)
def test_scripts_that_draw_get_torchs_samples_in_the_calling_thread_and_the_same_from_any_number_of_workers(name):
    assert drawn(name, lf.Loader, 0, False) == drawn(name, torch.utils.data.DataLoader, 0, False)
    two = drawn(name, lf.Loader, 2, True)
    assert drawn(name, lf.Loader, 8, True) == two and drawn(name, lf.Loader, "auto", True) == two
    assert two[1] == drawn(name, torch.utils.data.DataLoader, 2, True)[1], "the loop's own numbers"
