"""What used to be taken in silence, or answered in a stranger's words."""

import numpy as np
import pytest
import torch
from PIL import Image

import lossfeed as lf


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "make,says",
    [
        (lambda: torch.eye(8).to_sparse(), "torch.sparse_coo tensor: make it dense, with to_dense"),
        (lambda: torch.eye(8).to_sparse_csr(), "torch.sparse_csr tensor"),
        (lambda: torch.quantize_per_tensor(torch.eye(8), 0.1, 0, torch.quint8), "quantised tensor: convert it with dequantize"),
        (lambda: np.ma.masked_array(np.eye(8), mask=np.eye(8) > 0), "masked array, and batches have no masks"),
    ],
    ids=["coo", "csr", "quantised", "masked"],
)
def test_arrays_that_are_more_than_their_elements_are_refused(make, says):
    y = np.zeros(8, dtype=np.int64)
    for pair, name in (((make(), y), "x"), ((np.zeros(8), make()), "y")):
        with pytest.raises(lf.SettingsError, match=f"{name} is a {says}"):
            lf.open(pair)

    class Items:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return make(), i

    with pytest.raises(lf.SampleError, match=f"dataset item 0: x is a {says}"):
        lf.open(Items())


def test_a_list_of_two_arrays_could_be_two_things():
    x, y = np.zeros((2, 2), dtype=np.float32), np.zeros(2)
    for given in ([x, y], [torch.from_numpy(x)] * 2):
        with pytest.raises(lf.SettingsError, match=r"a list of 2 arrays .* a pair lf.open\(\(x, y\)\)"):
            lf.open(given)
    assert len(lf.open(list(zip(x, y, strict=True)))) == 2, "a list of pairs is one"
    two = lf.Loader(torch.utils.data.Subset([torch.zeros(3), torch.ones(3)], [0, 1]), 2)
    assert [b.data.tolist() for b in two] == [[[0.0] * 3, [1.0] * 3]], "as the refusal has it"


@pytest.fixture
def folder(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / label / "0.png")
    return tmp_path


def test_a_bandwidth_of_nothing_is_refused(folder):
    for nothing in (0, "0", "0MB"):
        with pytest.raises(lf.SettingsError, match=f"bandwidth={nothing!r} would stop all reads: remove it"):
            lf.open(folder, bandwidth=nothing)
    assert len(lf.open(folder, bandwidth="1MB")) == 2


def test_options_of_a_store_need_a_store(folder):
    for place in (folder, str(folder), f"file://{folder}"):
        with pytest.raises(lf.SettingsError, match=r"store_options=\['region'\] for .* not an object store: remove them"):
            lf.open(place, store_options={"region": "eu"})
    assert len(lf.open(folder, store_options={})) == 2


def test_too_many_ranks_are_told_how_many_there_may_be(numbers):
    for keywords in ({"rank": 0, "world_size": 1000}, {"rank": 0, "world_size": 1000, "batch_size": 32}):
        with pytest.raises(lf.SettingsError, match="64 samples cannot be shared by 1000 ranks: use at most as many ranks"):
            lf.Loader(numbers, **keywords)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_losses_below_0_are_no_scores_and_are_told_once(numbers, framework):
    loader = lf.Loader(numbers, 8, sampler="importance", score="loss", framework=framework, num_workers=0, seed=0)
    losses = np.linspace(-1, 6, 8).astype(np.float32)
    with pytest.warns(lf.TrainingWarning, match=r"8 scores were below 0, which is no importance.*score='batch_rank'") as told:
        for _ in range(2):
            for batch in loader:
                loader.score_losses(torch.from_numpy(losses) if framework == "torch" else losses, batch)
                batch.weight  # noqa: B018
    assert sum("below 0" in str(one.message) for one in told) == 1
    stats = loader.stats()
    assert stats["scores_negative_total"] == stats["scores_unranked_total"] == 16
    beliefs = np.asarray(loader.importance())
    assert (beliefs[~np.isnan(beliefs)] >= 0).all() and np.isnan(beliefs).any()
    ranked = lf.Loader(numbers, 8, sampler="importance", score="batch_rank", num_workers=0)
    for batch in ranked:
        ranked.score_losses(torch.from_numpy(losses), batch)
    assert ranked.stats()["scores_negative_total"] == 0, "ranks look at the order alone"
