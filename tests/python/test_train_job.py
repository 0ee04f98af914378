"""`lossfeed train`: short runs of the real thing."""

import io
import json
import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="the demonstration job trains with PyTorch")
pytest.importorskip("sklearn", reason="scikit-learn brings the digits")

import lossfeed.train as train  # noqa: E402
from lossfeed.train import model  # noqa: E402
from lossfeed.train import run as runs  # noqa: E402


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


def events(work_dir, expect=0, **options):
    out = io.StringIO()
    given = {"work_dir": str(work_dir), "latency": 0, "bandwidth": 0, "json": True, "workers": 1, "device": "cpu", **options}
    assert train.main(given, out) == expect
    return [json.loads(line) for line in out.getvalue().splitlines()]


def of(kind, found):
    return [e for e in found if e["event"] == kind]


@pytest.fixture(scope="module")
def comparison(work_dir):
    return events(work_dir, epochs=4, seeds=1, compare="uniform+minio,shade,importance,cost-aware,echo,replay")


def test_the_job_learns_the_digits_whichever_way_it_is_fed(comparison):
    final = {r["recipe"]: r["accuracy"] for r in of("run", comparison)}
    assert set(final) == {"uniform+minio", "shade", "importance", "cost-aware", "echo", "replay"}
    assert all(accuracy > 0.85 for accuracy in final.values()), final


def test_recipes_are_compared_at_equal_steps_from_equal_weights(comparison):
    assert {(r["steps"], r["samples"]) for r in of("run", comparison)} == {(4 * 42, 4 * 42 * 32)}
    # The first epoch is a plain shuffled pass for all of them; with the same weights and order they end it alike.
    first = {e["recipe"]: e["accuracy"] for e in of("epoch", comparison) if e["epoch"] == 0}
    assert len({round(first[r], 6) for r in ("importance", "cost-aware")}) == 1


def test_hits_and_fetches_add_up_to_what_was_delivered(comparison):
    for e in of("epoch", comparison):
        # An epoch is drained before the next begins, so every request belongs to a delivered sample. A sample that is
        # missed twice in a batch is fetched once; under uniform no sample comes twice.
        misses = e["samples"] - round(e["hit_ratio"] * e["samples"])
        assert 0.8 * misses <= e["fetched_samples"] <= misses, e
        assert e["fetched_samples"] == misses or e["recipe"] != "uniform+minio", e
        assert e["fetched_bytes"] == 140 * e["fetched_samples"], "every digit's PNG has 140 bytes"


def test_uniform_with_a_no_evict_cache_hits_its_share_from_the_second_epoch_on(comparison):
    hits = [e["hit_ratio"] for e in of("epoch", comparison) if e["recipe"] == "uniform+minio"]
    assert hits[0] == 0
    assert hits[1:] == pytest.approx([0.2] * 3, abs=0.01)


def test_cost_aware_fetches_least_and_still_sees_every_sample(comparison):
    run = {r["recipe"]: r for r in of("run", comparison)}
    assert run["cost-aware"]["fetched_samples"] < 0.8 * run["uniform+minio"]["fetched_samples"]
    assert run["cost-aware"]["coverage_ever"] > 0.99
    assert run["cost-aware"]["ess"] < 0.95 and run["uniform+minio"]["ess"] == 1.0


def test_a_buffer_fetches_a_quarter_of_every_batch_once_it_is_full(comparison):
    fetched = {r: [e["fetched_samples"] for e in of("epoch", comparison) if e["recipe"] == r] for r in ("echo", "replay")}
    for first, *others, last in fetched.values():
        assert first > 42 * 8 and others == [42 * 8] * 2, fetched
        # The stream's second pass meets samples of the first that are still there.
        assert 0.8 * 42 * 8 < last < 42 * 8, fetched


def test_pictures_are_shifted_and_mirrored_unless_one_asks_otherwise(work_dir):
    # The digits' shards as a data set of one's own.
    folder = str(next(work_dir.glob("digits-*")))
    seen = {}
    for augment in (None, "none", "crop", "crop-flip"):
        found = events(work_dir, data=folder, steps=3, seeds=1, batch_size=32, compare="uniform", augment=augment)
        seen[augment] = (of("job", found)[0]["augment"], of("epoch", found)[0]["loss"])
    assert seen[None] == seen["crop-flip"] and seen["none"][0] == "none" and seen["crop"][0] == "crop"
    assert len({loss for _, loss in seen.values()}) == 3, "each is another stream of pictures"
    assert of("job", events(work_dir, steps=1, seeds=1, compare="uniform"))[0]["augment"] == "none"


def test_steps_end_a_run_in_the_middle_of_an_epoch(work_dir):
    found = events(work_dir, steps=50, seeds=1, compare="uniform")
    assert [e["steps"] for e in of("epoch", found)] == [42, 8]
    assert of("run", found)[0]["steps"] == 50


def test_every_option_reaches_the_job(work_dir):
    found = events(work_dir, steps=3, seeds=2, seed=5, batch_size=100, lr=0.01, width=4, cache="64kB", compare="uniform+lru")
    job = of("job", found)[0]
    assert (job["batch_size"], job["lr"], job["width"], job["cache"], job["seeds"]) == (100, 0.01, 4, 64_000, [5, 6])
    assert of("table", found)[0]["rows"][0]["seeds"] == [5, 6]


def test_a_throttled_store_is_waited_for(work_dir):
    # 42 batches of at least one request each, one after the other, 20 ms a request: 0.8 s is the floor, whatever the
    # machine.
    found = events(work_dir, epochs=1, seeds=1, compare="uniform", latency=0.02, workers=0)
    epoch = of("epoch", found)[0]
    assert epoch["seconds"] * epoch["stall_share"] >= 42 * 0.02 * 0.99


def test_a_batch_larger_than_the_data_is_refused_with_both_numbers(work_dir, capsys):
    events(work_dir, expect=2, batch_size=5000)
    assert "5000" in (said := capsys.readouterr().err) and "1347" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_device_that_is_not_there_is_a_line_and_no_traceback():
    for device, why in (("cuda", "finds no CUDA device"), ("cuda:1", "finds no CUDA device"), ("tpu", "use cpu, cuda or cuda:N")):
        command = [sys.executable, "-m", "lossfeed", "train", "--device", device]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 2 and ended.stdout == "", ended
        (line,) = ended.stderr.splitlines()
        assert line.startswith(f"lossfeed train: --device {device}: ") and why in line


def test_unreadable_data_ends_with_a_reason_and_no_traceback(tmp_path, capsys):
    for part in ("train", "test"):
        (tmp_path / f"{part}-0.tar").write_bytes(b"this is no archive" * 100)
    events(tmp_path, expect=1, data=str(tmp_path), steps=1)
    said = capsys.readouterr().err
    assert "lossfeed train:" in said and "Traceback" not in said


def test_class_folders_of_images_train_as_well(tmp_path):
    image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(60):
            noise = torch.randint(0, 100, (9, 12, 3), generator=generator) + 120 * label
            image.frombytes("RGB", (12, 9), bytes(noise.byte().flatten().tolist())).save(tmp_path / "set" / name / f"{i}.png")
    found = events(tmp_path / "work", data=str(tmp_path / "set"), epochs=3, seeds=1, batch_size=16, compare="cost-aware")
    assert of("job", found)[0]["shape"] == [9, 12, 3]
    assert of("run", found)[0]["accuracy"] == 1.0
    assert "held out a tenth of every class" in of("note", found)[0]["text"]


def test_an_interruption_keeps_what_was_finished(work_dir, monkeypatch, capsys):
    real = runs.train
    done = []

    def second_is_interrupted(*args, **kwargs):
        if done:
            raise KeyboardInterrupt
        done.append(real(*args, **kwargs))
        return done[0]

    monkeypatch.setattr(runs, "train", second_is_interrupted)
    found = events(work_dir, expect=130, steps=5, seeds=2, compare="uniform")
    assert (of("table", found)[0]["runs"], of("table", found)[0]["planned"]) == (1, 2)


def test_the_network_fits_every_image_size_and_normalises_by_itself():
    for shape in ((8, 8, 1), (32, 32, 3), (9, 30, 3), (1, 1, 1), (70, 40, 4)):
        mean, std = torch.full((shape[2],), 100.0), torch.full((shape[2],), 50.0)
        net = model.build(shape, 7, 4, mean, std)
        images = torch.full((3, *shape), 150, dtype=torch.uint8)
        assert net(images).shape == (3, 7)
        assert torch.equal(net[0](images), torch.ones(3, shape[2], *shape[:2]))


def test_the_effective_sample_size_and_the_coverage_are_those_of_their_definitions():
    tally = runs._Tally(10, "cpu")
    tally.add(torch.tensor([1, 1, 2]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor(4.0))
    tally.add(torch.tensor([3]), torch.tensor([2.0]), torch.tensor(8.0))
    assert tally.ess() == pytest.approx(8.0**2 / (4 * 18.0))
    assert tally.coverage() == (0.3, 0.3)
    assert tally.loss() == pytest.approx((3 * 4 + 8) / 4)
    tally.begin_epoch()
    assert math.isnan(tally.ess()) and tally.coverage() == (0.0, 0.3)


def test_wrong_labels_are_trained_on_and_counted_among_the_most_used(work_dir):
    """Half of the labels are wrong: they cost accuracy, and half of the samples used most have one, or more."""
    plain, *wrong = [
        of("run", events(work_dir, epochs=3, seeds=1, compare="importance", wrong_labels=share))[0] for share in (0, "50%", 0.5)
    ]
    assert plain["wrong_among_most_used"] is None
    assert wrong[0]["accuracy"] == wrong[1]["accuracy"] < plain["accuracy"]
    assert 0.2 < wrong[0]["wrong_among_most_used"] <= 1.0


def test_a_deeper_network_is_another_one(work_dir):
    losses = [of("epoch", events(work_dir, steps=2, seeds=1, compare="uniform", depth=depth))[0]["loss"] for depth in (1, 3)]
    assert losses[0] != losses[1]
