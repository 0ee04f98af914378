"""Samples of several members of a tar shard: pictures with text, JSON, arrays, and samples without any picture."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import lossfeed as lf

N = 40
WORDS = ["", "a", "ein Hund läuft", "x" * 3000]


def png(i, size=(12, 10)):
    pixels = np.random.default_rng(i).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return pixels, file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def about(i):
    return {"id": i, "tags": ["t"] * (i % 4), "nested": {"half": i / 2}}


def members(i, order=("png", "json", "txt", "npy", "cls")):
    made = {
        "png": png(i)[1],
        "json": json.dumps(about(i)).encode(),
        "txt": WORDS[i % len(WORDS)].encode(),
        "npy": npy(np.arange(i % 5, dtype=np.float32)),
        "cls": str(i % 3).encode(),
    }
    return [(f"{i:04}.{name}", made[name]) for name in order]


def write(path, files):
    with tarfile.open(path, "w") as shard:
        for name, raw in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            shard.addfile(entry, io.BytesIO(raw))
    return path


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    rng = np.random.default_rng(0)
    for part in range(2):
        files = []
        for i in range(part * N // 2, (part + 1) * N // 2):
            # The members of a sample in any order.
            files += members(i, rng.permutation(["png", "json", "txt", "npy", "cls"]))
        write(folder / f"part-{part}.tar", files)
    return str(folder / "part-{0..1}.tar")


ALL = {"image": "jpg;png", "about": "json", "caption": "txt", "codes": "npy", "label": "cls"}


def check(batch):
    for row, i in enumerate(batch.ids.tolist()):
        assert np.array_equal(batch["image"][row], png(i)[0])
        assert batch["about"][row] == about(i)
        assert batch["caption"][row] == WORDS[i % len(WORDS)]
        assert np.array_equal(batch["codes"][row], np.arange(i % 5, dtype=np.float32))
        assert batch["label"][row] == batch.target[row] == i % 3


@pytest.mark.parametrize("form", ["encoded", "decoded"])
@pytest.mark.parametrize("reading", [{}, {"latency": 0.001}, {"disk": True}, {"checksums": True}])
def test_every_member_comes_with_its_sample_fetched_and_cached(shards, tmp_path, form, reading):
    if "disk" in reading:
        reading = {"disk": tmp_path / "disk", "disk_bytes": "64MiB", "latency": 0.001}
    data = lf.open(shards, fields=ALL, **reading)
    assert (len(data), data.target_spec) == (N, ("int64", ()))
    assert data.spec["image"] == ("uint8", (12, 10, 3)) and data.spec["about"] == ("object", ())
    for cache in ("100%", 30_000):
        with lf.Loader(data, batch_size=7, shuffle=True, seed=3, cache=cache, cache_form=form, num_workers=2) as loader:
            for epoch in range(3):
                loader.set_epoch(epoch)
                seen = []
                for batch in loader:
                    check(batch)
                    seen += batch.ids.tolist()
                assert sorted(seen) == list(range(N))
            assert loader.stats()["hits_total"] >= (2 * N if cache == "100%" else 1)


def test_a_sample_by_itself_is_what_a_batch_has_of_it(shards):
    data = lf.open(shards, fields=ALL)
    for i in (0, 3, N - 1):
        item = data[i]
        assert torch.equal(item["image"], torch.from_numpy(png(i)[0]))
        assert (item["about"], item["caption"], item["label"]) == (about(i), WORDS[i % 4], i % 3)
        assert np.array_equal(item["codes"], np.arange(i % 5, dtype=np.float32))
    parts = data.subset([5, 1]) + data.subset([7])
    batch = next(iter(lf.Loader(parts, batch_size=3)))
    assert [about_it["id"] for about_it in batch["about"]] == [5, 1, 7]


def test_the_parts_are_tuples_or_dicts_in_the_order_of_fields(shards):
    image, text = next(iter(lf.Loader(lf.open(shards, fields=("png", "txt")), batch_size=5)))
    assert image.shape == (5, 12, 10, 3) and text == [WORDS[i % 4] for i in range(5)]
    for batch in lf.Loader(lf.open(shards, fields=["json", "png", "cls"]), batch_size=5):
        first, image, label = batch
        assert [one["id"] for one in first] == batch.ids.tolist() and torch.equal(label, batch.target)
    # A picture and its class are the pair that they are without fields=.
    plain, named = (next(iter(lf.Loader(lf.open(shards, fields=f), batch_size=9))) for f in (None, ("png", "cls")))
    assert torch.equal(plain.data, named.data) and torch.equal(plain.target, named.target)


def test_samples_need_no_picture(shards):
    data = lf.open(shards, fields={"caption": "txt", "about": "json"})
    assert (data.target_spec, data.labels) == (None, None)
    with lf.Loader(data, batch_size=7, shuffle=True, cache="100%", seed=1) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                assert batch["caption"] == [WORDS[i % 4] for i in batch.ids.tolist()]
                assert batch.target is None
        assert loader.stats()["hits_total"] == N
    labelled = lf.open(shards, fields={"codes": "npy", "class": "cls"})
    batch = next(iter(lf.Loader(labelled, batch_size=4)))
    assert batch.target.tolist() == [0, 1, 2, 0] and [len(codes) for codes in batch["codes"]] == [0, 1, 2, 3]


def test_pictures_are_transformed_as_images_alone_are(shards):
    pixels = lf.ImageTransform("float32", mean=0.5, std=0.25, padding=2, flip=0.5)
    alone = lf.Loader(lf.open(shards), batch_size=8, transform=pixels, seed=5, shuffle=True)
    for form in ("encoded", "decoded"):
        data = lf.open(shards, fields={"x": "png", "caption": "txt"})
        both = lf.Loader(data, batch_size=8, transform=pixels, seed=5, shuffle=True, cache="100%", cache_form=form)
        for epoch in range(2):
            alone.set_epoch(epoch)
            both.set_epoch(epoch)
            for a, b in zip(alone, both, strict=True):
                assert torch.equal(a.data, b["x"]) and b["caption"] == [WORDS[i % 4] for i in b.ids.tolist()]


def test_pictures_of_any_size_are_cropped_with_their_text(tmp_path):
    files = []
    for i in range(12):
        files += [(f"{i}.png", png(i, (20 + i, 30 - i))[1]), (f"{i}.txt", str(i).encode())]
    path = write(tmp_path / "any.tar", files)
    data = lf.open(path, fields=("png", "txt"))
    crops = lf.ImageTransform(crop=8, scale=(0.3, 1.0))
    for image, text in lf.Loader(data, batch_size=6, transform=crops, cache="100%"):
        assert image.shape == (6, 3, 8, 8) and len(text) == 6
    resized = lf.open(path, fields=("png", "txt"), resize=16)
    assert resized.spec[0] == ("uint8", (16, 16, 3))


def test_a_collate_fn_gets_the_samples(shards):
    def pack(items):
        return torch.stack([image for image, _ in items]), [text.upper() for _, text in items]

    data = lf.open(shards, fields=("png", "txt"))
    for batch in lf.Loader(data, batch_size=10, collate_fn=pack):
        assert batch[1] == [WORDS[i % 4].upper() for i in batch.ids.tolist()]


def test_scores_choose_among_them_and_a_state_goes_on(shards):
    def made(fields=ALL):
        return lf.Loader(lf.open(shards, fields=fields), batch_size=8, sampler="importance", cache=20_000, seed=2)

    loader, order = made(), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        order = []
        for number, batch in enumerate(loader):
            check(batch)
            logits = torch.zeros(8, 3, requires_grad=True) * batch.ids[:, None]
            loader.cross_entropy(logits, batch).backward()
            order.append(batch.ids.tolist())
            if epoch == 1 and number == 1:
                state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    for batch in again:
        check(batch)
        again.cross_entropy(torch.zeros(8, 3), batch)
        assert batch.ids.tolist() == order[2]
        del order[2]
    assert len(order) == 2
    with pytest.raises(lf.Error, match="saved with dataset"):
        made({**ALL, "caption": "json", "about": "txt"}).load_state_dict(state)


def test_an_index_that_was_kept_serves_any_fields(shards, tmp_path):
    for fields in (None, ("png", "txt"), ALL):
        data = lf.open(shards, index_cache=tmp_path / "index", fields=fields)
        assert len(data) == N
    assert len(list((tmp_path / "index").iterdir())) == 2


@pytest.mark.parametrize(
    "fields, says",
    [
        ((), "give the parts"),
        ("jpg", "give the parts"),
        ({"a": 1}, "give the parts"),
        ({1: "png"}, "keys are text"),
        (("cls", "png"), "comes last"),
        (("cls",), "beside the class number"),
        (("png", "png"), "names a member twice"),
        (("png;", "txt"), "no member's name"),
        (("a/b",), "no member's name"),
        (("txt;json",), "of one kind"),
        (("png", "wav"), "has no member wav.*it has .*png"),
    ],
)
def test_fields_that_name_no_members_are_refused(shards, fields, says):
    with pytest.raises(lf.Error, match=says):
        lf.open(shards, fields=fields)


def test_shards_that_are_not_made_of_whole_samples_are_refused_with_the_sample(tmp_path):
    def refused(files, says, fields=("png", "txt")):
        with pytest.raises(lf.SampleError, match=says):
            lf.open(write(tmp_path / "bad.tar", files), fields=fields)

    picture = png(0)[1]
    apart = [("a.png", picture), ("b.png", picture), ("a.txt", b"1"), ("b.txt", b"2")]
    refused(apart, "sample a in .*bad.tar has no member txt.*one after the other; it has a.png")
    refused([("a.png", picture), ("a.txt", b"1"), ("b.txt", b"2")], "sample b in .* has no member png")
    refused([("a.png", picture), ("a.PNG", picture), ("a.txt", b"1")], "more than one member png")
    twice = [("a.png", picture), ("a.txt", b"1"), ("b.png", picture), ("b.txt", b"1"), ("a.png ", b""), ("a.txt", b"1")]
    refused(twice[:4] + [("x/a.txt", b"")], "sample x/a .* has no member png")
    refused([("a.png", picture), ("a.txt", b"1")], "has no class number a.cls", ("png", "txt", "cls"))
    with pytest.raises(lf.SettingsError, match="have one stem: there are 1 of 'png', 0 of 'txt'"):
        folder = tmp_path / "folder" / "cat"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(picture)
        lf.open(tmp_path / "folder", fields=("png", "txt"))
    with pytest.raises(lf.SettingsError, match="fields="):
        lf.open((np.zeros((3, 2)), np.zeros(3)), fields=("png", "txt"))
    # Without fields= such a shard says what it has none of.
    with pytest.raises(lf.SourceError, match="where fields names them"):
        lf.open(write(tmp_path / "text.tar", [("a.txt", b"1")]))


def test_a_member_that_is_not_what_it_is_named_is_told_with_its_sample(tmp_path):
    files = [("a.json", b"{}"), ("b.json", b"{1"), ("c.json", b"\xff")]
    loader = lf.Loader(lf.open(write(tmp_path / "bad.tar", files), fields={"j": "json"}), batch_size=1)
    batches = iter(loader)
    assert next(batches)["j"] == [{}]
    with pytest.raises(lf.SampleError, match="sample 1: j: 2 bytes are no json"):
        next(batches)
    pickled = npy(np.array([object()], dtype=object))
    loader = lf.Loader(lf.open(write(tmp_path / "p.tar", [("a.npy", pickled)]), fields=("npy",)), batch_size=1)
    with pytest.raises(lf.SampleError, match="no npy"):
        next(iter(loader))


def test_further_pictures_stay_encoded(tmp_path):
    files = []
    for i in range(4):
        files += [(f"{i}.jpg", png(i)[1]), (f"{i}.seg.png", png(i + 100)[1])]
    image, mask = next(iter(lf.Loader(lf.open(write(tmp_path / "m.tar", files), fields=("jpg", "seg.png")), batch_size=4)))
    assert image.shape == (4, 12, 10, 3)
    for i, raw in enumerate(mask):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(raw))), png(i + 100)[0])
