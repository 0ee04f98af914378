"""Texts for people: a loader's summary, reprs, tables of notebooks, lf.show, the line of logging."""

import json
import logging
import sys

import folder_of_pages
import numpy as np
import pytest
import torch

import lossfeed as lf
from lossfeed._base.sizes import shown
from lossfeed._loader import stats

ARRAYS = np.arange(192, dtype=np.float32).reshape(64, 3), np.arange(64) % 4


def rows(loader):
    """summary() by the names of its rows."""
    return {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in loader.summary().splitlines()}


@pytest.mark.parametrize(
    "keywords, order",
    [
        ({}, "in order; shuffle=True shuffles"),
        ({"shuffle": True}, "shuffled by (seed, epoch)"),
        ({"sampler": [3, 1, 2]}, "your own ids"),
        ({"sampler": "importance", "cache": "50%"}, "sampler importance"),
        ({"sampler": "auto"}, "auto chose uniform: without cache= nothing is gained by drawing unevenly"),
        ({"sampler": "auto", "cache": "100%"}, "auto chose uniform: the cache holds every sample"),
        ({"sampler": "auto", "cache": "50%"}, "auto chose cost-aware: nothing says whether deliveries vary by chance"),
        (
            {"sampler": {"name": "auto", "augmented": False}, "cache": "50%"},
            "auto chose cost-aware: deliveries do not vary by chance",
        ),
        (
            {"sampler": {"name": "auto", "augmented": True}, "cache": "50%"},
            "auto chose replay: the transform draws by chance",
        ),
    ],
    ids=str,
)
def test_a_summary_says_which_order_was_chosen_and_why(keywords, order):
    assert rows(lf.Loader(ARRAYS, 8, **keywords))["order"].startswith(order)


def test_a_summary_of_a_run_says_what_came_of_it():
    loader = lf.Loader(ARRAYS, 8, shuffle=True, cache="50%", num_workers=0, seed=0)
    assert rows(loader).keys() == {"data", "batches", "order", "cache", "reading", "device"}
    for _ in range(2):
        for batch in loader:
            loader.score_losses(torch.ones(8), batch)
    said = rows(loader)
    assert said["data"] == "arrays: 64 rows; float32 (3,)" and said["batches"] == "8 an epoch, of 8 samples"
    assert said["cache"] == "2 KiB, encoded (auto: as stored), policy minio (suits the sampler)"
    assert said["reading"] == "the thread that takes batches" and said["device"] == "cpu, PyTorch tensors"
    assert said["epoch"] == "1, 8 of 8 batches taken" and said["delivered"] == "128 samples in 16 batches"
    assert said["from cache"] == "32 (25%); it holds 32 samples" and said["read"] == "96 samples, 1.12 KiB"
    assert said["waited"].endswith("%") and "of the time" in said["waited"] and said["scores"].startswith("128;")
    loader.close()
    assert rows(loader)["now"] == "closed" and "closed" in repr(loader)
    with lf.Loader(ARRAYS, 8, cache="100%", sampler="auto", num_workers=0) as loader:
        assert rows(loader)["order"] == "auto chose uniform: the cache holds every sample"
    assert rows(loader)["order"] == "auto"


def test_a_summary_names_ranks_pages_of_bad_samples_and_the_last_change(monkeypatch):
    loader = lf.Loader(
        ARRAYS, 8, rank=1, world_size=2, seed=0, cache_form="encoded", policy="lru", cache="1MiB", num_workers=2
    )
    assert rows(loader)["batches"] == "4 an epoch, of 8 samples; rank 1 of 2"
    assert rows(loader)["cache"] == "1 MiB, encoded, policy lru" and rows(loader)["reading"] == "2 threads"
    list(loader)
    numbers = dict(loader._engine.stats()) | {
        "workers_changes_total": 3.0,
        "workers_reason": 3.0,
        "bad_samples_total": 2.0,
    }
    monkeypatch.setattr(stats.Stats, "_numbers", lambda self: dict(numbers))
    said = rows(loader)
    assert said["threads"] == "changed 3 times, last because fewer threads are enough"
    assert said["bad samples"] == "2: see loader.bad_samples()"


def test_codes_are_words_for_readers_and_numbers_for_loggers(monkeypatch):
    loader = lf.Loader(ARRAYS, 8)
    numbers = dict(loader._engine.stats()) | {"workers_reason": 3.0}
    monkeypatch.setattr(stats.Stats, "_numbers", lambda self: dict(numbers))
    found = loader.stats()
    assert "'workers_reason': 3 (fewer threads are enough)" in repr(found)
    reason = found["workers_reason"]
    assert (
        reason == 3.0 and isinstance(reason, float) and f"{reason}" == str(reason) == "3.0" and f"{reason:.0f}" == "3"
    )
    assert json.loads(json.dumps(found))["workers_reason"] == 3.0 and float(reason) + 1 == 4.0


def test_reprs_say_what_was_chosen_once(tmp_path):
    assert repr(lf.Loader(ARRAYS, 8)) == "<lossfeed.Loader 64 samples in 8 batches of 8, in order, no cache, cpu>"
    shuffled = lf.Loader(ARRAYS, 8, shuffle=True, cache="2GiB", rank=0, world_size=2, seed=0)
    assert (
        repr(shuffled)
        == "<lossfeed.Loader 64 samples in 4 batches of 8, sampler uniform, cache 2 GiB, policy belady, "
        "rank 0 of 2, cpu>"
    )
    folder_of_pages.class_folders(tmp_path / "train", 6)
    data = lf.open(tmp_path / "train")
    assert (
        repr(data) == f"<lossfeed.Data {tmp_path}/train: 6 samples, 3 classes, each uint8 (60, 80, 3), channels last>"
    )
    assert (
        repr(data.subset([0, 1]))
        == f"<lossfeed.Data 2 of the 6 samples of {tmp_path}/train, 3 classes, each uint8 (60, 80, 3), channels last>"
    )
    assert repr(lf.open(ARRAYS)) == "<lossfeed.Data arrays: 64 rows, each float32 (3,)>"


def test_sizes_are_shown_in_the_unit_that_fits():
    assert [shown(n) for n in (0, 1023, 1024, 190_700_000, 2**31, 3 * 2**40)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "182 MiB",
        "2 GiB",
        "3 TiB",
    ]


def test_notebooks_get_tables_whose_texts_are_escaped(tmp_path):
    place = tmp_path / "<b>&train"
    folder_of_pages.class_folders(place, 6)
    loader = lf.Loader(place, 3, transform=lf.ImageTransform(crop=16, resize=16))
    batch = next(iter(loader))
    for thing in (loader, loader.data, batch):
        assert thing._repr_html_().startswith("<table>") and "<b>" not in thing._repr_html_()
    assert "&lt;b&gt;&amp;train" in loader._repr_html_() and "&lt;b&gt;" in loader.data._repr_html_()
    assert '<td style="text-align: left">(3, 3, 16, 16) torch.float32</td>' in batch._repr_html_()
    named = next(iter(lf.Loader({"<i>": ARRAYS[0], "label": ARRAYS[1]}, 4)))
    assert "&lt;i&gt;" in named._repr_html_() and "<i>" not in named._repr_html_()


def test_a_loader_of_a_stream_says_what_it_is():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    with pytest.warns(lf.TrainingWarning):
        loader = lf.Loader(Stream(), 2)
    assert loader.summary() == repr(loader) and "&lt;lossfeed.Loader of a stream" in loader._repr_html_()


def test_what_was_chosen_is_logged_once_and_not_by_default(caplog):
    with caplog.at_level(logging.INFO, "lossfeed"):
        list(lf.Loader(ARRAYS, 8, sampler="auto", cache="100%"))
    (line,) = [r for r in caplog.records if r.getMessage().startswith("order: ")]
    assert (line.name, line.levelname) == ("lossfeed", "INFO")
    assert "auto chose uniform: the cache holds every sample" in line.getMessage() and "minio" in line.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "lossfeed"):
        list(lf.Loader(ARRAYS, 8, sampler="auto", cache="100%"))
    assert not caplog.records


def of_images(images, **more):
    return next(iter(lf.Loader((images, np.arange(len(images)) % 3), len(images), **more)))


def test_show_puts_bytes_in_a_grid_as_they_are():
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (5, 10, 8, 3), np.uint8)
    grid = np.asarray(lf.show(of_images(images)))
    assert grid.shape == (2 * (10 + 12 + 2) - 2, 3 * (8 + 2) - 2, 3)
    for place, image in enumerate(images):
        top, left = place // 3 * 24, place % 3 * 10
        assert (grid[top : top + 10, left : left + 8] == image).all()
    assert grid[10:22, :8].any(), "the class number"
    assert lf.show(of_images(images), columns=2, rows=2).size == (2 * 10 - 2, 2 * 24 - 2)
    first = of_images(images.transpose(0, 3, 1, 2).copy())
    assert (np.asarray(lf.show(first)) == grid).all()
    gray = np.asarray(lf.show(of_images(images[..., :1])))
    assert (gray[:10, :8, 1] == images[0, ..., 0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_show_stretches_floats_from_black_to_white(dtype):
    images = torch.linspace(-2, 3, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8).to(dtype)
    batch = next(iter(lf.Loader((images, torch.rand(4)), 4)))
    grid = np.asarray(lf.show(batch))
    assert grid.shape == (18, 18, 3), "no class numbers: targets are no integers"
    assert grid[0, 0, 0] == 0 and grid[17, 17, 2] == 255
    assert not np.asarray(lf.show(of_images(np.full((1, 4, 4, 3), 7, np.float32))))[:4].any()


def test_show_finds_the_images_of_dicts():
    batch = next(
        iter(lf.Loader({"x": ARRAYS[0][:4], "image": np.full((4, 6, 6, 3), 9, np.uint8), "label": np.arange(4)}, 4))
    )
    assert (np.asarray(lf.show(batch))[:6, :6] == 9).all()


def test_show_refuses_what_it_cannot_show(monkeypatch):
    batch = next(iter(lf.Loader(ARRAYS, 8)))
    with pytest.raises(lf.SettingsError, match="has no images: lf.show needs arrays"):
        lf.show(batch)
    with pytest.raises(lf.SettingsError, match="not list: lf.show"):
        lf.show([1])
    with pytest.raises(lf.SettingsError, match="columns=0"):
        lf.show(of_images(np.zeros((2, 4, 4, 3), np.uint8)), columns=0)
    with pytest.raises(lf.KeywordError, match="did you mean 'columns'"):
        lf.show(batch, colums=3)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(lf.SettingsError, match="pip install pillow"):
        lf.show(of_images(np.zeros((2, 4, 4, 3), np.uint8)))
