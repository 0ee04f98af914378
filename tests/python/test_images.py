"""Images as the model reads them: against torch's own arithmetic, in every layout, with draws that belong to the
sample."""

import numpy as np
import pytest
import torch

import lossfeed as lf

N, H, W = 48, 10, 12


@pytest.fixture(scope="module")
def arrays():
    x = np.random.default_rng(3).integers(0, 256, (N, H, W, 3), dtype=np.uint8)
    return x, np.arange(N)


def batches(data, transform, **keywords):
    keywords = {"batch_size": 16, "num_workers": 0, "shuffle": False, "stats": False, "framework": "torch", **keywords}
    with lf.Loader(data, transform=transform, **keywords) as loader:
        epochs = []
        for _ in range(2):
            epochs += [(b.data.clone(), b.ids.clone(), b.data.is_contiguous(), b.data.stride()) for b in loader]
        return epochs


def all_data(data, transform, **keywords):
    return torch.cat([b[0] for b in batches(data, transform, **keywords)])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), ("float16", 2e-3), (torch.bfloat16, 2e-2)])
def test_normalising_is_torchs(arrays, dtype, tolerance):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    made = all_data(arrays, lf.ImageTransform(dtype, mean=mean, std=torch.tensor(std)))[:N]
    pixels = torch.from_numpy(arrays[0]).permute(0, 3, 1, 2).double() / 255
    shape = (1, 3, 1, 1)
    expected = (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    assert str(made.dtype).endswith(str(dtype).removeprefix("torch."))
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=tolerance * 3)


def test_layouts_hold_the_same_values_in_the_order_they_name(arrays):
    named = {layout: batches(arrays, lf.ImageTransform(layout=layout))[0] for layout in ("NCHW", "NHWC", "channels_last")}
    nchw = named["NCHW"][0]
    assert nchw.shape == (16, 3, H, W) and named["NCHW"][2]
    assert torch.equal(named["NHWC"][0].permute(0, 3, 1, 2), nchw) and named["NHWC"][2]
    assert torch.equal(named["channels_last"][0], nchw)
    assert named["channels_last"][3] == (H * W * 3, 1, W * 3, 3), "torch's channels-last, without a copy"


def test_numpy_gets_arrays_of_the_same_bits(arrays):
    for layout in ("NCHW", "channels_last"):
        transform = lf.ImageTransform("float16", layout=layout, padding=2, flip=0.5)
        with lf.Loader(arrays, 16, seed=0, num_workers=0, framework="numpy", transform=transform, stats=False) as loader:
            array = next(iter(loader)).data
            assert array.dtype == np.float16 and array.shape == (16, 3, H, W)
        with lf.Loader(arrays, 16, seed=0, num_workers=0, framework="torch", transform=transform, stats=False) as loader:
            assert np.array_equal(next(iter(loader)).data.numpy(), array)


def test_every_crop_is_a_window_of_the_padded_image_mirrored_or_not(arrays):
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=(8, 9), padding=3, flip=0.5)
    padded = np.pad(arrays[0], ((0, 0), (3, 3), (3, 3), (0, 0)))
    seen = set()
    for data, ids, *_ in batches(arrays, transform):
        for image, i in zip(data.numpy(), ids.tolist(), strict=True):
            windows = {
                padded[i, top : top + 8, left : left + 9][:, ::step].tobytes(): (top, left, step)
                for top in range(H + 6 - 8 + 1)
                for left in range(W + 6 - 9 + 1)
                for step in (1, -1)
            }
            seen.add(windows[image.tobytes()])
    tops, lefts, steps = zip(*seen, strict=True)
    assert len(set(tops)) > 5 and len(set(lefts)) > 5 and set(steps) == {1, -1}
    centre = all_data(arrays, lf.ImageTransform("uint8", layout="NHWC", crop=8, random_crop=False))
    assert np.array_equal(centre[:N].numpy(), arrays[0][:, 1:9, 2:10])
    assert torch.equal(centre[:N], centre[N:]), "nothing is drawn"


@pytest.mark.parametrize("keywords", [{"num_workers": 3}, {"cache": 1.0, "num_workers": 2}, {"cache": 0.5}])
def test_draws_belong_to_the_sample_whatever_workers_and_cache_do(arrays, keywords):
    transform = lf.ImageTransform(padding=2, flip=0.5)
    first = batches(arrays, transform, seed=5, shuffle=True)
    again = batches(arrays, transform, seed=5, shuffle=True, **keywords)
    for (x, ids, *_), (y, other, *_) in zip(first, again, strict=True):
        assert torch.equal(ids, other) and torch.equal(x, y)
    other = batches(arrays, transform, seed=6, shuffle=False)
    base = batches(arrays, transform, seed=5, shuffle=False)
    assert not torch.equal(base[0][0], other[0][0]), "another seed"
    assert not torch.equal(base[0][0], base[3][0]), "another epoch"


@pytest.mark.parametrize("form", ["encoded", "decoded"])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_from_files_are_cached_before_chance_and_drawn_again(tmp_path, form, workers):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (40, 9, 9, 3), dtype=np.uint8)
    for i, p in enumerate(pixels):
        (tmp_path / f"{i % 2}").mkdir(exist_ok=True)
        image.fromarray(p).save(tmp_path / f"{i % 2}" / f"{i:03}.png")
    order = [*range(0, 40, 2), *range(1, 40, 2)]
    transform = lf.ImageTransform("uint8", layout="NHWC", flip=0.5)
    with lf.Loader(
        lf.open(str(tmp_path)), 8, transform=transform, cache=1.0, cache_form=form, num_workers=workers, stats=False, framework="numpy"
    ) as loader:
        flipped = []
        for epoch in range(3):
            for batch in loader:
                for made, i in zip(batch.data, batch.ids, strict=True):
                    plain = pixels[order[i]]
                    assert np.array_equal(made, plain) or np.array_equal(made, plain[:, ::-1])
                    flipped.append(not np.array_equal(made, plain))
        stats = loader.stats()
    assert stats["misses_total"] == 40 and stats["hits_total"] == 80
    assert 30 < sum(flipped) < 90, "drawn again in every epoch"


def test_a_resumed_run_draws_what_the_first_would_have(arrays):
    transform = lf.ImageTransform(padding=2, flip=0.5)
    keywords = {"batch_size": 8, "num_workers": 2, "seed": 9, "transform": transform, "stats": False, "framework": "torch"}
    with lf.Loader(arrays, **keywords) as loader:
        loader.set_epoch(4)
        passing = iter(loader)
        for _ in range(2):
            next(passing)
        state = loader.state_dict()
        rest = [b.data.clone() for b in passing]
    with lf.Loader(arrays, **keywords) as loader:
        loader.load_state_dict(state)
        assert all(torch.equal(a, b.data) for a, b in zip(rest, loader, strict=True))


def test_scores_and_static_batches_do_not_care(arrays):
    transform = lf.ImageTransform(layout="channels_last", flip=0.5)
    with lf.Loader(arrays, 16, num_workers=0, transform=transform, stats=False, drop_last=True) as loader:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(N))
        static = None
        for batch in loader:
            loader.cross_entropy(model(batch.data), batch).backward()
            static = batch if static is None else static.copy_(batch)
        assert loader.stats()["scores_total"] == 48
        assert static.data.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: lf.ImageTransform("float64"), "dtype='float64' is unknown.*: use float32, float16, bfloat16 or uint8"),
        (lambda: lf.ImageTransform(layout="CHW"), "layout='CHW' is unknown"),
        (lambda: lf.ImageTransform(mean="0.5x"), "mean='0.5x' must be a finite number"),
        (lambda: lf.ImageTransform(std=[0.1, float("nan")]), "must be a finite number, or one for each channel"),
        (lambda: lf.ImageTransform(crop=(8, 8, 3)), r"crop=\(8, 8, 3\) must be \(height, width\)"),
        (lambda: lf.ImageTransform(crop=0), "crop=0 must be"),
        (lambda: lf.ImageTransform(padding=-1), "padding=-1 must be"),
        (lambda: lf.ImageTransform(flip=1.5), "flip=1.5 must be a finite number, 0 to 1"),
        (lambda: lf.ImageTransform(flip=True), "flip=True"),
    ],
)
def test_a_transform_without_sense_is_refused(make, message):
    with pytest.raises(lf.SettingsError, match=message):
        make()


@pytest.mark.parametrize(
    "transform, message",
    [
        (lf.ImageTransform(mean=(0.1, 0.2)), "mean has 2 values for 3 channels: give one, or one a channel"),
        (lf.ImageTransform(std=0), "std holds 0: need finite means, and stds"),
        (lf.ImageTransform(crop=20, padding=3), r"crop=\(20, 20\) does not fit 16 x 18 pixels \(padding included\)"),
        (lf.ImageTransform("uint8", mean=0.5), "dtype uint8 with mean or std"),
        (lf.ImageTransform(padding=70_000), "padding=70000 is beyond 65536"),
        ("flip", "must be a lossfeed.ImageTransform, or a function of batch.data"),
    ],
)
def test_one_that_does_not_fit_is_refused_when_the_loader_is_made(arrays, transform, message):
    with pytest.raises(lf.SettingsError, match=message):
        lf.Loader(arrays, 16, transform=transform)


def test_samples_that_are_no_images_are_refused_with_what_they_are():
    y = np.arange(N)
    for x, said in [(np.zeros((N, 8, 8, 3), np.float32), r"float32 of shape \[8, 8, 3\]"), (np.zeros((N, 8), np.uint8), r"uint8 of shape \[8\]")]:
        with pytest.raises(lf.SettingsError, match=f"this dataset's samples are {said}"):
            lf.Loader((x, y), 16, transform=lf.ImageTransform())
    with pytest.raises(lf.SettingsError, match="NumPy has no bfloat16"):
        lf.Loader((np.zeros((N, 8, 8), np.uint8), y), 16, transform=lf.ImageTransform("bfloat16"), framework="numpy")
    with lf.Loader((np.full((N, 8, 8), 255, np.uint8), y), 16, transform=lf.ImageTransform(), framework="torch", stats=False) as loader:
        gray = next(iter(loader)).data
        assert gray.shape == (16, 1, 8, 8) and (gray == 1).all()
    assert repr(lf.ImageTransform("float16", mean=0.5, flip=0.5)) == "lossfeed.ImageTransform('float16', mean=[0.5], flip=0.5, layout='NCHW')"


def test_images_whose_pixels_are_no_bytes_are_refused_and_not_cut_off():
    image = pytest.importorskip("PIL.Image")
    for mode, dtype in (("I;16", np.uint16), ("I", np.int32), ("F", np.float32)):
        items = [image.fromarray(np.array([[0, 200], [255, 60000]], dtype))] * 3
        assert items[0].mode == mode
        with pytest.raises(lf.SampleError, match=rf"image of mode {mode}, .* numpy.asarray\(image\)"):
            lf.open([(item, 0) for item in items])
        first = image.fromarray(np.zeros((2, 2, 3), np.uint8))
        loader = lf.Loader([(first, 0), (items[1], 1)], 1, stats=False, num_workers=0)
        with pytest.raises(lf.SampleError, match="mode"):
            list(loader)
