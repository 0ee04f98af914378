"""Small samples cost requests, not bytes: how many are made, and that nothing else depends on it."""

import gzip
import io
import itertools
import pathlib
import sys
import tarfile
import warnings

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FAULTS, QUICK, FaultStore  # noqa: E402


def png(i, size=(6, 5)):
    out = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG", compress_level=0)
    return out.getvalue()


def shard(images):
    """A tar of these, with a file beside each third, so that gaps differ."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:

        def add(name, body):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))

        for i, image in enumerate(images):
            add(f"c{i % 2}/{i:05}.png", image)
            if i % 3 == 0:
                add(f"c{i % 2}/{i:05}.txt", b"x" * (i * 37 % 9000))
    return out.getvalue()


def test_opening_and_an_epoch_in_order_take_few_requests():
    samples = 5000
    image = png(0, size=(32, 32))
    # Without tags, whose hash the server would compute anew for every answer.
    with FaultStore({"train.tar": shard([image] * samples)}, tags=False) as store:
        # With one connection a wait that is worth far more than what lies between neighbours, however slow this machine
        # is.
        data = lf.open(store.url + "/train.tar", latency=0.01, connections=1)
        # One of them asks for size and date.
        assert len(data) == samples and store.requests["train.tar"] <= 20
        loader = lf.Loader(data, 64, shuffle=False, num_workers=0, stats=False)
        before = store.requests["train.tar"]
        assert sum(len(batch.ids) for batch in loader) == samples
        requests, stats = store.requests["train.tar"] - before, loader.stats()
        assert stats["store_requests_total"] == requests <= 0.1 * samples
        assert stats["fetched_samples_total"] == samples and stats["fetched_bytes_total"] == samples * len(image)
        # Headers, padding and the files beside some of the images.
        assert 0 < stats["store_vain_bytes_total"] < 2 * stats["fetched_bytes_total"]


@pytest.mark.parametrize("faulty", [False, True])
def test_nothing_but_the_number_of_requests_depends_on_what_comes_together(tmp_path, faulty):
    images = [png(i) for i in range(200)]
    faults = [name for name in QUICK if FAULTS[name].owes == "heals"] if faulty else []
    runs = {}
    for coalesce in (True, False):
        path = tmp_path / f"run-{coalesce}.csv.gz"
        with FaultStore({"train.tar": shard(images)}, faults, rate=0.05, seed=4, in_a_row=1) as store:
            data = lf.open(store.url + "/train.tar", coalesce=coalesce, retry_timeout=60, latency=0.002, connections=4)
            loader = lf.Loader(
                data, 32, cache="20%", sampler="cost-aware", num_workers=0, seed=3, journal=path, framework="numpy", stats=False
            )
            seen = []
            for epoch in range(2):
                loader.set_epoch(epoch)
                for batch in loader:
                    loader.score_losses(np.asarray(batch.ids, dtype=np.float32) % 7 + 0.5, batch)
                    rows = (batch.ids, batch.weight, batch.target, batch.data)
                    seen.append([np.array(row).tobytes() for row in rows])
            stats = loader.stats()
            loader.close()
            # What came while the shard was opened is on time.
            timed = ("_us_total", "store_", "stall", "on_time_", "late_total")
            books = {k: v for k, v in stats.items() if not any(word in k for word in timed)}
            runs[coalesce] = seen, books, gzip.decompress(path.read_bytes()), stats["store_requests_total"]
            assert not faulty or sum(store.counts.values()) > 3
    (seen, books, journal, requests), (seen_alone, books_alone, journal_alone, requests_alone) = runs[True], runs[False]
    assert seen == seen_alone and journal == journal_alone
    assert books == books_alone
    assert requests < requests_alone


def test_a_folder_of_files_has_no_neighbours():
    objects = {f"data/c{i % 2}/{i:03}.png": png(i) for i in range(40)}
    with FaultStore(objects) as store:
        data = lf.open(store.s3_url + "/data", store_options=store.store_options)
        loader = lf.Loader(data, 8, shuffle=False, num_workers=0, stats=False)
        assert sum(len(batch.ids) for batch in loader) == 40
        stats = loader.stats()
        assert stats["store_requests_total"] == 40 and stats["store_vain_bytes_total"] == 0


def test_what_is_not_a_store_makes_no_requests(tmp_path):
    path = tmp_path / "train.tar"
    path.write_bytes(shard([png(i) for i in range(20)]))
    loader = lf.Loader(str(path), 8, num_workers=0, stats=False)
    assert sum(len(batch.ids) for batch in loader) == 20
    assert loader.stats()["store_requests_total"] == 0
    with pytest.raises(lf.SettingsError, match="coalesce"):
        lf.open(str(path), coalesce="yes")
    with pytest.raises(lf.SettingsError, match="coalesce=False is for paths and URLs"):
        lf.open((np.zeros((4, 2)), np.zeros(4)), coalesce=False)


def test_a_sampler_that_is_told_what_requests_cost_wants_neighbours():
    samples = 2000
    image = png(0, size=(32, 32))
    requests, blocks = {}, {}
    with FaultStore({"train.tar": shard([image] * samples)}, tags=False) as store:
        for block in (1, "auto"):
            data = lf.open(store.url + "/train.tar", latency=0.01, connections=4)
            sampler = {"name": "echo", "fresh": 0.5, "lag": 8, "block": block}
            # Without reading ahead, which finds neighbours among all that it holds, and holds all of these.
            loader = lf.Loader(
                data, 64, sampler=sampler, cache="10%", read_ahead=0, num_workers=0, seed=2, framework="numpy", stats=False
            )
            seen = [int(i) for _ in range(2) for batch in loader for i in batch.ids]
            assert len(seen) == 2 * samples and len(set(seen)) > 0.9 * samples
            requests[block], blocks[block] = loader.stats()["store_requests_total"], loader.stats()["block_samples"]
            loader.close()
    assert blocks[1] == 0 and blocks["auto"] >= 16, "the gauge is of blocks that are found"
    assert 8 * requests["auto"] <= requests[1] and requests[1] > 0.8 * samples, requests


def labelled(samples, way):
    """A shard of pictures of ten classes, or of none, in an order of chance or class by class."""
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % 10 if way != "sorted" else np.arange(samples) * 10 // samples
    image, out = png(0, size=(8, 8)), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i, label in enumerate(labels if way == "sorted" else rng.permutation(labels)):
            info = tarfile.TarInfo(f"{i:05}.png" if way == "unlabelled" else f"c{label}/{i:05}.png")
            info.size = len(image)
            archive.addfile(info, io.BytesIO(image))
    return out.getvalue()


def test_auto_takes_neighbours_together_where_their_labels_are_mixed(tmp_path, caplog):
    """And nowhere else: not without labels, not in sorted data, not where all has room in the prefetch window."""
    warnings.simplefilter("ignore", lf.TrainingWarning)
    samples, epochs = 1500, 3

    def run(way, sampler="auto", window=50_000):
        path = tmp_path / f"{way}.tar"
        path.exists() or path.write_bytes(labelled(samples, way))
        data = lf.open(str(path), latency=0.002, **({"fields": ["png"]} if way == "unlabelled" else {}))
        keywords = {"cache": "20%", "read_ahead": window, "num_workers": 1, "seed": 3, "stats": False}
        random = lf.ImageTransform("float32", padding=1, flip=0.5)
        caplog.clear()
        with lf.Loader(data, 50, shuffle=True, sampler=sampler, transform=random, **keywords) as loader:
            summary = loader.summary()
            ids = [batch.ids.tolist() for _ in range(epochs) for batch in loader]
            requests = loader.stats()["store_requests_total"]
        advice = [record for record in caplog.records if "lossfeed pack" in record.message]
        assert "auto chose replay" in summary or sampler != "auto"
        return ids, requests, summary, len(advice)

    alone = {"name": "auto", "block": 1}
    mixed, apart = run("mixed"), run("mixed", alone)
    assert "whose labels are mixed" in mixed[2] and "new samples" not in apart[2]
    assert mixed[1] < apart[1] / 4 and mixed[3] == apart[3] == 0, (mixed[1], apart[1])
    assert mixed[0] == run("mixed", {"name": "auto", "block": "auto"})[0] != apart[0]
    ordered = run("sorted")
    assert ordered[0] == run("sorted", alone)[0] and "`lossfeed pack` mixes them" in ordered[2] and ordered[3] == 1
    nameless = run("unlabelled")
    assert nameless[0] == run("unlabelled", alone)[0] and "new samples" not in nameless[2] and nameless[3] == 0
    within = run("sorted", window=50_000_000)
    assert within[0] == ordered[0] and "new samples" not in within[2] and within[3] == 0


@pytest.mark.parametrize(
    ("fresh", "block", "lag", "batch"), [(0.25, 4, 8, 3), (0.25, 4, 3, 1), (0.5, 7, 16, 4), (0.1, 16, 5, 6), (0.25, 1, 8, 3)]
)
def test_every_batch_of_replay_has_the_datasets_mean_over_seeds(fresh, block, lag, batch):
    """Whatever the blocks in which new samples come: the deviations of batches over seeds are those of chance."""
    runs, warm, steps, ids = 160, 60, 140, np.arange(60)
    loss = (0.02 + ((ids * 11) % 23) ** 2 / 60.0).astype(np.float32)
    sampler = {"name": "replay", "fresh": fresh, "block": block, "lag": lag}
    means = np.zeros((runs, steps))
    for run in range(runs):
        keywords = {"num_workers": 0, "framework": "numpy", "stats": False, "cache": "25%", "seed": 77_000 + run}
        with lf.Loader((ids.astype(np.float32), ids), batch, sampler=sampler, **keywords) as loader:
            for step, given in zip(range(steps), itertools.chain.from_iterable(itertools.repeat(loader))):
                loader.score_losses(loss[given.ids], given)
                means[run, step] = (given.weight * loss[given.ids]).mean()
    means = means[:, warm:]
    z = (means.mean(axis=0) - loss.mean()) / (means.std(axis=0, ddof=1) / np.sqrt(runs))
    # 1 but for chance; 1.4 to 2.5 where blocks began at one phase for every seed.
    assert np.sqrt((z**2).mean()) < 1.25, z
