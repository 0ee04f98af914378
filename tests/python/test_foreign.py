"""Scores for another loader's batches: torch's DataLoader reads what is drawn here."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lossfeed as lf

N = 60
DATA = TensorDataset(torch.arange(N).float()[:, None], torch.arange(N) % 4)


def drawn(scores, loader):
    return [batch.ids.tolist() for batch, _ in scores.beside(loader)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["uniform", "importance", "pads", "infobatch"])
def test_torchs_loader_reads_what_our_loader_would_have_delivered(sampler, workers):
    keywords = {"sampler": sampler, "seed": 4, "stats": False}
    ours = lf.Loader(DATA, 8, num_workers=0, **keywords)
    scores = lf.Scores(DATA, 8, **keywords)
    theirs = DataLoader(DATA, batch_sampler=scores, num_workers=workers)
    assert len(theirs) == len(ours) == len(scores)
    for epoch in range(3):
        scores.set_epoch(epoch)
        pairs = list(zip(ours, list(scores.beside(theirs)), strict=True))
        for expected, (batch, (x, y)) in pairs:
            assert batch.ids.tolist() == expected.ids.tolist() == x[:, 0].tolist()
            assert torch.equal(batch.weight, expected.weight) and torch.equal(y, expected.target)
        for expected, (batch, (x, y)) in pairs:
            logits = torch.cat([x / 9, torch.zeros(len(x), 3)], 1)
            a = ours.cross_entropy(logits, expected)
            b = scores.cross_entropy(logits, batch, target=y)
            assert torch.equal(a, b)
    assert torch.equal(scores.importance(), ours.importance())
    assert scores.stats()["scores_total"] == ours.stats()["scores_total"] > 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 3, 7, 8])
def test_what_was_asked_for_ahead_and_not_delivered_is_still_to_come(taken, workers):
    def make():
        scores = lf.Scores(N, 8, shuffle=True, seed=2)
        return scores, DataLoader(DATA, batch_sampler=scores, num_workers=workers)

    scores, loader = make()
    whole = drawn(scores, loader)
    scores.set_epoch(0)
    going = scores.beside(loader)
    for _ in range(taken):
        next(going)
    state = scores.state_dict()
    resumed, loader = make()
    resumed.load_state_dict(state)
    rest = drawn(resumed, loader)
    assert rest == whole[taken:] if 0 < taken < 8 else sorted(sum(rest, [])) == list(range(N))


def test_a_stream_that_gives_ids_is_scored_by_them():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter((i, float(i)) for i in range(N))

    scores = lf.Scores(N, 8, sampler="importance", score="loss", smoothing=0.0)
    for ids, x in lf.stage(DataLoader(Stream(), 16)):
        scores.score_ids(ids, x)
    assert scores.importance().tolist() == list(range(N))
    scores.score_ids(torch.tensor([3, 5]), torch.tensor([7.0, 7.0], dtype=torch.bfloat16, requires_grad=True))
    scores.score_ids(np.array([3, 5], np.uint16), np.array([0.5, 0.25]))
    assert scores.importance()[[3, 5]].tolist() == [0.5, 0.25]
    counts = np.bincount(sum(iter(scores), []), minlength=N)
    assert counts[40:].sum() > counts[:20].sum(), "what was scored higher is drawn more often"


def test_what_cannot_be_is_refused_with_the_remedy():
    scores = lf.Scores(N, 8)
    with pytest.raises(lf.UsageError, match="make it with these scores as batch_sampler=, and do not iterate it elsewhere meanwhile"):
        next(scores.beside([torch.zeros(8)]))
    for ids, losses, says in [
        (torch.zeros(3), torch.zeros(3), "ids are float32"),
        (torch.zeros(3, 1).long(), torch.zeros(3), "one integer a sample"),
        ([1, 2], np.zeros(3), "losses of shape"),
        ([1, 2], np.zeros(2, int), "give floats"),
    ]:
        with pytest.raises(lf.SettingsError, match=says):
            scores.score_ids(ids, losses)
    with pytest.raises(lf.SampleError, match=str(N)):
        scores.score_ids([N], [1.0])
    for keywords, says in [({"sampler": "replay"}, "cache"), ({"sampler": [1, 2]}, "score_ids"), ({"sampler": "unifrom"}, "unifrom")]:
        with pytest.raises(lf.SettingsError, match=says):
            lf.Scores(N, 8, **keywords)
    with pytest.raises(lf.SettingsError, match="samples"):
        lf.Scores(0)
    scores.close()
    with pytest.raises(lf.UsageError, match="closed"):
        list(scores)
