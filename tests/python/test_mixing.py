"""Images mixed in pairs: mixup and CutMix against timm's and torchvision's formulas in NumPy, with the loader's words for
chance; and what becomes of targets, losses, scores and states."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_crops import Words, mix

import lossfeed as lf

N, SIDE, SEED = 46, (10, 7), 11
BOTH = {"mixup": 0.8, "cutmix": 1.0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (N, *SIDE, 3), dtype=np.uint8), np.arange(N) % 9


def loader(data, transform, **keywords):
    keywords = {"batch_size": 8, "num_workers": 0, "stats": False, "framework": "torch", "seed": SEED, **keywords}
    return lf.Loader(data, transform=transform, **keywords)


def textbook(rows, key, mixup=0.0, cutmix=0.0, chance=1.0, switch=0.5, rank=0):
    """What timm and torchvision draw, with lam anywhere from 0 to 1 and row B - 1 - k as the partner of row k; `rows` are
    (B, height, width, channels), float32. Returns them mixed, lam, and what was drawn."""
    words = Words(mix(key ^ 0x6D6978696E6721), rank)
    happens, cut = words.unit() < chance, words.unit() < (switch if mixup and cutmix else bool(cutmix))
    alpha = cutmix if cut else mixup
    u, v = words.unit(), words.unit()
    # Student's t of 2 alpha degrees of freedom, by Bailey; Beta(alpha, alpha) of it.
    t = math.sqrt(2 * alpha * (u ** (-1 / alpha) - 1)) * math.cos(2 * math.pi * v)
    lam = (1 + t / math.sqrt(2 * alpha + t * t)) / 2
    height, width = rows.shape[1:3]
    y, x = words.below(height), words.below(width)
    if not happens:
        return rows, 1.0, None
    partner = rows[::-1]
    if not cut:
        lam = np.float32(lam)
        return rows * lam + partner * (np.float32(1) - lam), float(lam), "mixup"
    # torchvision's CutMix.make_params; timm's rand_bbox is the same.
    half = 0.5 * math.sqrt(1 - lam)
    top, bottom = max(y - int(half * height), 0), min(y + int(half * height), height)
    left, right = max(x - int(half * width), 0), min(x + int(half * width), width)
    made = rows.copy()
    made[:, top:bottom, left:right] = partner[:, top:bottom, left:right]
    return made, 1 - (bottom - top) * (right - left) / (height * width), "cutmix"


def own_first(made, lam):
    """The same rows by the sample of which more is seen: a batch holds each pair mixed both ways."""
    return (made, lam) if lam >= 0.5 else (made[::-1], 1 - lam)


@pytest.mark.parametrize("asked", [{"mixup": 0.3}, {"cutmix": 1.0}, BOTH, {**BOTH, "mix_chance": 0.5, "switch": 0.8}])
@pytest.mark.parametrize("kind", [{"dtype": "float32"}, {"dtype": "float16", "layout": "NHWC"}, {"dtype": "uint8"}, {"dtype": "float32", "layout": "channels_last"}])
def test_batches_are_the_textbooks_up_to_whose_a_row_is(data, asked, kind):
    kinds = set()
    plain = {} if kind["dtype"] == "uint8" else {"mean": 0.4, "std": 0.3}
    with loader(data, lf.ImageTransform(**kind, **plain, flip=0.5, erase=0.3, **asked)) as mixing, loader(data, lf.ImageTransform(**kind, **plain, flip=0.5, erase=0.3)) as without:
        for epoch in range(4):
            for a, b in zip(mixing, without, strict=True):
                assert torch.equal(a.ids, b.ids) and torch.equal(a.target, b.target)
                key = lf._native.ImageTransform.key(SEED, epoch, a.number)
                last = kind.get("layout") == "NHWC"
                x, y = (v if last else v.permute(0, 2, 3, 1) for v in (a.data, b.data))
                chances = {"mix_chance": "chance"}
                made, lam, how = textbook(y.numpy().astype(np.float32), key, **{chances.get(k, k): v for k, v in asked.items()})
                made, lam = own_first(made, lam)
                if len(a) % 2 and how == "mixup":
                    made[len(a) // 2] = y[len(a) // 2].numpy()  # lam of itself and 1 - lam of itself
                near = {"float32": 1e-6, "float16": 2e-3, "uint8": 0.5 + 1e-4}[kind["dtype"]]
                np.testing.assert_allclose(x.numpy().astype(np.float32), made, atol=near)
                mixes = lam < 1
                assert a.mix.kind == (how if mixes else None)
                own = torch.full((len(a),), lam)
                if len(a) % 2:
                    own[len(a) // 2] = 1
                assert a.mix.lam.dtype == torch.float32 and torch.allclose(a.mix.lam, own)
                assert torch.equal(a.mix.target, b.target.flip(0)) and b.mix is None
                kinds.add(a.mix.kind)
    assert kinds >= {name for name in ("mixup", "cutmix") if name in asked}
    assert None in kinds or "mix_chance" not in asked


def test_lam_is_the_share_of_the_pixels(data):
    """Pictures of one level each: what a CutMix shows of each sample can be counted."""
    pictures = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None, None], (N, *SIDE, 3)).copy()
    with loader((pictures, data[1]), lf.ImageTransform("uint8", layout="NHWC", cutmix=1.0)) as mixing:
        outside = 0
        for _ in range(6):
            for batch in mixing:
                own = (batch.data == batch.ids[:, None, None, None]).float().mean((1, 2, 3))
                partner = (batch.data == batch.ids.flip(0)[:, None, None, None]).float().mean((1, 2, 3))
                assert torch.allclose(own, batch.mix.lam, atol=1e-6) and (own >= 0.5).all()
                shown = batch.mix.lam < 1
                assert torch.allclose((own + partner)[shown], torch.ones(int(shown.sum())))
                outside += bool((batch.data[0, SIDE[0] // 2, SIDE[1] // 2] != batch.ids[0]).any())
    assert outside


@pytest.mark.parametrize("keywords", [{"num_workers": 3}, {"cache": "60%"}, {"framework": "numpy"}, {"cache": "100%", "num_workers": 2}])
def test_neither_threads_nor_the_cache_nor_the_library_change_it(data, keywords):
    transform = lf.ImageTransform("float32", padding=1, flip=0.5, **BOTH)
    with loader(data, transform, shuffle=True) as one, loader(data, transform, shuffle=True, **keywords) as other:
        for _ in range(3):
            for a, b in zip(one, other, strict=True):
                for x, y in ((a.data, b.data), (a.target, b.target), (a.mix.lam, b.mix.lam), (a.mix.target, b.mix.target)):
                    assert np.array_equal(np.asarray(x), np.asarray(y)) and str(x.dtype).split(".")[-1] == str(y.dtype).split(".")[-1]
                assert a.mix.kind == b.mix.kind
                assert np.allclose(np.asarray(a.soft_target(9, 0.1)), np.asarray(b.soft_target(9, 0.1)), atol=1e-7)


def test_ranks_and_seeds_draw_apart(data):
    def lams(**keywords):
        with loader(data, lf.ImageTransform(mixup=1.0), batch_size=4, **keywords) as mixing:
            return [float(batch.mix.lam[0]) for batch in mixing]

    assert lams(rank=0, world_size=2) != lams(rank=1, world_size=2)
    assert lams(seed=1) != lams(seed=2) and lams(seed=2) == lams(seed=2)


def test_a_resumed_pass_mixes_what_was_left_the_same(data):
    transform = lf.ImageTransform(**BOTH)
    with loader(data, transform, shuffle=True) as whole, loader(data, transform, shuffle=True) as cut, loader(data, transform, shuffle=True) as again:
        expected = [(b.data.clone(), b.mix) for b in whole]
        for number, _ in enumerate(cut):
            if number == 2:
                break
        again.load_state_dict(cut.state_dict())
        rest = [b for b in again if b.mix is not None]
        assert len(rest) == len(expected) - 3
        for b, (pixels, mixed) in zip(rest, expected[3:], strict=True):
            assert torch.equal(b.data, pixels) and torch.equal(b.mix.lam, mixed.lam) and torch.equal(b.mix.target, mixed.target)


class Sometimes:
    """Pictures of which some cannot be read."""

    def __init__(self, pictures, bad):
        self.pictures, self.bad = pictures, bad

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i in self.bad:
            raise ValueError("damaged")
        return self.pictures[i], i % 9


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_pairs_are_of_rows_that_arrive(data, on_error):
    dataset = Sometimes(data[0], {3, 17, 18, 45})
    with loader(dataset, lf.ImageTransform(**BOTH), on_error=on_error) as mixing, loader(dataset, lf.ImageTransform(), on_error=on_error) as without:
        sizes = []
        for a, b in zip(mixing, without, strict=True):
            assert torch.equal(a.ids, b.ids)
            sizes.append(len(a))
            rows = b.data.permute(0, 2, 3, 1).numpy()
            made, lam, how = textbook(rows, lf._native.ImageTransform.key(SEED, 0, a.number), **BOTH)
            made, lam = own_first(made, lam)
            np.testing.assert_allclose(a.data.permute(0, 2, 3, 1).numpy(), made, atol=1e-6)
            assert torch.equal(a.mix.target, a.target.flip(0)) and len(a.mix.lam) == len(a)
    assert (sizes == [8, 8, 8, 8, 8, 6]) == (on_error == "substitute")


# ---- losses and scores -----------------------------------------------------------------------------------------------


def mixed_mean(logits, batch, weight=None, **keywords):
    """What recipes write, row by row."""
    own = F.cross_entropy(logits, batch.target, weight, reduction="none", **keywords)
    partner = F.cross_entropy(logits, batch.mix.target, weight, reduction="none", **keywords)
    return (batch.weight * (batch.mix.lam * own + (1 - batch.mix.lam) * partner)).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_lam_of_own_and_the_rest_of_the_partners(data, dtype, weighted, smoothing):
    torch.manual_seed(0)
    classes = torch.rand(9, dtype=dtype) + 0.5 if weighted else None
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-6}
    with loader(data, lf.ImageTransform(**BOTH)) as mixing:
        for batch in mixing:
            logits = torch.randn(len(batch), 9, dtype=dtype, requires_grad=True)
            wide = logits.detach().double().requires_grad_()
            weights = None if classes is None else classes.double()
            total = mixed_mean(wide, batch, weights, label_smoothing=smoothing)
            lam = batch.mix.lam.double()
            share = torch.ones(len(batch)) if weights is None else lam * weights[batch.target] + (1 - lam) * weights[batch.mix.target]
            keywords = {"weight": classes, "label_smoothing": smoothing}
            for reduction, expected in (("mean", total / share.sum()), ("sum", total)):
                for overwrite in (False, True):
                    mine = logits * 1  # what is overwritten is no leaf
                    loss = loader_loss(mixing, mine, batch, reduction=reduction, overwrite_logits=overwrite, **keywords)
                    torch.testing.assert_close(loss.double(), expected, **tolerance)
                    (gradient,) = torch.autograd.grad(loss, logits)
                    (wanted,) = torch.autograd.grad(expected, wide, retain_graph=True)
                    torch.testing.assert_close(gradient.double(), wanted, **tolerance)
            rows = loader_loss(mixing, logits, batch, reduction="none", **keywords)
            torch.testing.assert_close(rows.sum().double(), total, **tolerance)
            if not weighted:
                soft = batch.soft_target(9, smoothing)
                assert torch.allclose(soft.sum(1), torch.ones(len(batch)))
                torch.testing.assert_close(F.cross_entropy(wide, soft.double()), total / len(batch), **tolerance)


def loader_loss(mixing, logits, batch, **keywords):
    return mixing.cross_entropy(logits, batch, **keywords)


def test_what_is_not_seen_does_not_count_even_where_it_is_impossible(data):
    with loader(data, lf.ImageTransform(mixup=1.0, mix_chance=1e-12)) as mixing:
        batch = next(iter(mixing))
        assert batch.mix.kind is None and (batch.mix.lam == 1).all()
        logits = torch.zeros(len(batch), 9)
        differs = batch.mix.target != batch.target
        logits[torch.arange(len(batch)), batch.mix.target] = torch.where(differs, -torch.inf, 0.0)
        logits.requires_grad_()
        loss = mixing.cross_entropy(logits, batch)
        torch.testing.assert_close(loss, F.cross_entropy(logits, batch.target))
        loss.backward()
        assert logits.grad.isfinite().all()


def test_ignored_targets_and_other_targets(data):
    labels = np.where(np.arange(N) % 4 == 0, -100, np.arange(N) % 9)
    with loader((data[0], labels), lf.ImageTransform(mixup=1.0)) as mixing:
        for batch in mixing:
            logits = torch.randn(len(batch), 9)
            lam, mine, theirs = batch.mix.lam, batch.target != -100, batch.mix.target != -100
            expected = mixed_mean(logits, batch) / (lam * mine + (1 - lam) * theirs).sum()
            torch.testing.assert_close(mixing.cross_entropy(logits, batch), expected)
            given = torch.randint(0, 9, (len(batch),))
            torch.testing.assert_close(mixing.cross_entropy(logits, batch, target=given), F.cross_entropy(logits, given))


def test_sequences_and_elementwise_losses_are_mixed_too(data):
    rng = np.random.default_rng(1)
    tokens, values = rng.integers(0, 5, (N, 4)), rng.normal(size=(N, 3)).astype(np.float32)
    with loader((data[0], tokens), lf.ImageTransform(mixup=1.0)) as mixing:
        for batch in mixing:
            logits = torch.randn(len(batch), 5, 4)
            lam = batch.mix.lam[:, None]
            expected = lam * F.cross_entropy(logits, batch.target, reduction="none") + (1 - lam) * F.cross_entropy(logits, batch.mix.target, reduction="none")
            torch.testing.assert_close(mixing.cross_entropy(logits, batch), expected.mean())
    with loader((data[0], values), lf.ImageTransform(mixup=1.0)) as mixing:
        for batch in mixing:
            guess = torch.randn(len(batch), 3, requires_grad=True)
            lam = batch.mix.lam[:, None]
            expected = (lam * (guess - batch.target) ** 2 + (1 - lam) * (guess - batch.mix.target) ** 2).mean()
            loss = mixing.loss("mse", guess, batch)
            torch.testing.assert_close(loss, expected)
            loss.backward()


def test_the_own_targets_part_is_scored_once_and_credited_to_the_own_sample(data):
    with loader(data, lf.ImageTransform(mixup=1.0), score="loss", smoothing=0.0, cache="50%", sampler="importance") as mixing:
        seen = {}
        for batch in mixing:
            logits = torch.randn(len(batch), 9)
            mixing.cross_entropy(logits, batch)
            seen.update(zip(batch.ids.tolist(), F.cross_entropy(logits, batch.target, reduction="none").tolist(), strict=True))
        stats = mixing.stats()
        assert stats["scores_total"] >= N and stats["scores_repeated_total"] == 0
        believed = np.frombuffer(mixing._account.engine().importance(), dtype=np.float32)
        for i, loss in seen.items():
            assert believed[i] == pytest.approx(loss, rel=1e-5)


def test_compiled_steps_do_not_compile_anew_for_each_lam(data):
    with loader(data, lf.ImageTransform(mixup=1.0), drop_last=True) as mixing:
        compiled = []

        def backend(graph, _):
            compiled.append(graph)
            return graph.forward

        torch._dynamo.reset()

        @torch.compile(backend=backend, fullgraph=True)
        def step(logits, batch):
            return mixing.cross_entropy(logits, batch)

        for batch in mixing:
            logits = torch.randn(len(batch), 9)
            torch.testing.assert_close(step(logits, batch), mixed_mean(logits, batch) / len(batch))
        assert len(compiled) == 1
        assert mixing.stats()["scores_total"] == len(mixing) * 8


# ---- batches that go elsewhere ---------------------------------------------------------------------------------------


def test_copies_pickles_and_trees_take_it_along(data):
    with loader(data, lf.ImageTransform(mixup=1.0), drop_last=True, num_workers=0) as mixing:
        passing = iter(mixing)
        one, two = next(passing), next(passing)
        apart = pickle.loads(pickle.dumps(one))
        assert torch.equal(apart.mix.lam, one.mix.lam) and torch.equal(apart.mix.target, one.mix.target)
        assert apart.mix.kind == "mixup" and torch.equal(apart.soft_target(9), one.soft_target(9))
        assert torch.equal(pickle.loads(pickle.dumps(apart)).mix.lam, one.mix.lam)
        doubled = torch.utils._pytree.tree_map(lambda t: t * 2, one)
        assert torch.equal(doubled.mix.lam, one.mix.lam * 2) and torch.equal(doubled.mix.target, one.mix.target * 2)
        assert one.to("cpu").mix.kind == "mixup"
        lam = two.mix.lam.clone()
        assert not torch.equal(one.mix.lam, lam)
        one.copy_(two)
        assert torch.equal(one.mix.lam, lam) and torch.equal(one.mix.target, two.mix.target)
        with loader(data, lf.ImageTransform(), drop_last=True) as without:
            with pytest.raises(lf.SettingsError, match="only one of the batches comes from a loader that mixes images"):
                one.copy_(next(iter(without)))
    with loader(data, lf.ImageTransform(mixup=1.0)) as mixing, copy.deepcopy(mixing) as again:
        assert torch.equal(next(iter(again)).mix.lam, next(iter(mixing)).mix.lam)


def test_soft_targets_without_mixing_are_one_hot_and_refuse_what_is_no_class(data):
    with loader(data, lf.ImageTransform()) as without, loader(data, lf.ImageTransform(), framework="numpy") as arrays:
        for batch, array in zip(without, arrays, strict=True):
            assert torch.equal(batch.soft_target(9), F.one_hot(batch.target, 9).float())
            smooth = batch.soft_target(9, label_smoothing=0.9)
            assert smooth.dtype == torch.float32 and array.soft_target(9, 0.9).dtype == np.float32
            assert torch.allclose(smooth, F.one_hot(batch.target, 9) * 0.1 + 0.1) and np.allclose(array.soft_target(9, 0.9), smooth)
        with pytest.raises(lf.SampleError, match="is none of 4 classes, 0 to 3"):
            batch.soft_target(4)
        with pytest.raises(lf.SampleError, match="is none of 4 classes, 0 to 3"):
            array.soft_target(4)
        for wrong in (0, 2.5):
            with pytest.raises(lf.SettingsError, match="num_classes"):
                batch.soft_target(wrong)
        with pytest.raises(lf.SettingsError, match="label_smoothing=2 must be"):
            batch.soft_target(9, 2)
    with loader((data[0], np.zeros((N, 3), np.float32)), lf.ImageTransform()) as regression:
        with pytest.raises(lf.SettingsError, match="one class index a sample, and these targets are torch.float32 of shape"):
            next(iter(regression)).soft_target(3)


def test_auto_takes_it_for_augmentation(data):
    def chosen(**asked):
        with loader(data, lf.ImageTransform(**asked), cache="50%", sampler="auto") as made:
            return made._account.engine().describe()[3]

    assert chosen(mixup=0.2) == chosen(cutmix=1.0) == "replay" and chosen() == "cost-aware"


def test_a_loop_that_trains_on_one_of_two_targets_is_told_once(data):
    with loader(data, lf.ImageTransform(cutmix=1.0)) as mixing:
        with pytest.warns(lf.TrainingWarning, match="has left batch.mix unread"):
            for _ in mixing:
                pass
        with warnings.catch_warnings(action="error"):
            for _ in mixing:
                pass
    with loader(data, lf.ImageTransform(cutmix=1.0)) as mixing, warnings.catch_warnings(action="error"):
        for batch in mixing:
            mixing.cross_entropy(torch.zeros(len(batch), 9), batch)


def test_its_words_come_back_and_what_finishes_batches_otherwise_is_refused(data):
    said = repr(lf.ImageTransform(mixup=0.2, cutmix=1, mix_chance=0.5))
    assert "mixup=0.2, cutmix=1.0, mix_chance=0.5, switch=0.5" in said and "mix" not in repr(lf.ImageTransform(mixup=0.0))
    with pytest.raises(lf.SettingsError, match="mixup= and cutmix= do not work with collate_fn="):
        loader(data, lf.ImageTransform(mixup=0.2), collate_fn=list)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [{"dtype": "float32"}, {"dtype": "float16", "layout": "NHWC"}, {"dtype": "bfloat16"}, {"dtype": "uint8"}])
def test_cuda_gives_the_cpus_bits_and_the_same_loss(data, kind):
    transform = lf.ImageTransform(**kind, padding=1, flip=0.5, erase=0.5, **BOTH)
    with loader(data, transform, device="cuda") as there, loader(data, transform) as here:
        for _ in range(3):
            for a, b in zip(there, here, strict=True):
                assert torch.equal(a.data.cpu(), b.data) and torch.equal(a.mix.target.cpu(), b.mix.target)
                assert a.mix.lam.is_cuda and torch.equal(a.mix.lam.cpu(), b.mix.lam)
                assert torch.allclose(a.soft_target(9, 0.1).cpu(), b.soft_target(9, 0.1))
                assert a.soft_target(4)[a.target >= 4].isnan().all()
                logits = torch.randn(len(b), 9)
                torch.testing.assert_close(there.cross_entropy(logits.cuda(), a).cpu(), here.cross_entropy(logits, b))
        assert there.stats()["scores_total"] == here.stats()["scores_total"]
