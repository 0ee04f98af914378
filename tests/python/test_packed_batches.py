"""Samples put end to end (``pad="packed"``, ``lf.Packed``), against the same samples padded, and a naive packing."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf
from lossfeed._loss.columns import Columns, per_document
from lossfeed._batch import documents
from lossfeed._batch.packed import Packed, runs

N, V, LENGTH = 24, 7, 12
LENGTHS = [0, 1, 5, 5, 12, 3, 40, 2, 0, 12, 11, 1, 7, 7, 7, 13, 25, 4, 1, 1, 9, 6, 24, 3]
WEIGHTS = torch.linspace(0.25, 3.0, N)


class Texts:
    """Item i: LENGTHS[i] tokens and as many targets, of which some are ignored."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i >= N:
            raise IndexError(i)
        drawn = np.random.default_rng(i)
        tokens, labels = drawn.integers(0, V, (2, LENGTHS[i]))
        labels[drawn.random(LENGTHS[i]) < 0.2] = -100
        return {"input_ids": tokens, "labels": labels, "name": f"text {i}"}


def loader(pad, **keywords):
    keywords = {"seed": 3, "shuffle": True, "num_workers": 0, **keywords}
    return lf.Loader(lf.open(Texts(), varying=True), 8, pad=pad, **keywords)


def naive(lengths, rule):
    """Rows as lists of (sample, start, tokens), by looking at every row for every piece."""
    if rule.length is None:
        return [[(i, 0, n) for i, n in enumerate(lengths) if n]]
    pieces = []
    for i, n in enumerate(lengths):
        start = 0
        while start < n:
            pieces.append((i, start, min(rule.length, n - start)))
            start += rule.length
            if rule.long == "truncate":
                break
    rows = [[]]
    if rule.place == "best-fit":
        pieces.sort(key=lambda piece: -piece[2])
    for piece in pieces:
        room = [rule.length - sum(n for *_, n in row) for row in rows]
        fits = [(free, r) for r, free in enumerate(room) if free >= piece[2]]
        if rule.place == "in-order":
            fits = [fit for fit in fits if fit[1] == len(rows) - 1]
        if fits:
            rows[min(fits)[1]].append(piece)
        else:
            rows.append([piece])
    return rows


RULES = [
    Packed(),
    Packed(LENGTH, long="split"),
    Packed(LENGTH, long="split", place="in-order"),
    Packed(LENGTH, long="truncate"),
    Packed(1, long="split"),
    Packed(40, place="in-order"),
]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_sample_lies_where_a_naive_packing_puts_it(rule, seed):
    drawn = np.random.default_rng(seed)
    lengths = drawn.integers(0, (2, 14, 41)[seed % 3], drawn.integers(0, 40)).tolist()
    rows, length, laid = runs(lengths, rule)
    wanted = []
    for row in naive(lengths, rule):
        wanted += row
        room = (rule.length or 0) - sum(n for *_, n in row)
        wanted += [(-1, 0, room)] * (rule.length is not None and room > 0)
    assert [tuple(run) for run in laid] == wanted
    assert sum(run.tokens for run in laid) == rows * length


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_documents_tell_whose_every_token_is_and_where(rule, framework):
    for batch in loader(rule, framework=framework, num_workers=2):
        found = batch.documents
        ids, tokens, labels = (np.asarray(v) for v in (batch.ids, batch["input_ids"], batch["labels"]))
        assert tokens.shape == labels.shape == tuple(found.samples.shape) and len(batch) == 8
        ends = np.asarray(found.cu_seqlens)
        assert ends.dtype == np.int32 and ends[0] == 0 and ends[-1] == tokens.size and (np.diff(ends) > 0).all()
        assert found.max_seqlen == max(np.diff(ends), default=0)
        seen = {}
        samples, positions, numbers = (np.asarray(v).reshape(-1) for v in (found.samples, found.position_ids, found.document_ids))
        for document, (a, b) in enumerate(zip(ends, ends[1:])):
            assert (numbers[a:b] == document).all() and positions[a:b].tolist() == list(range(b - a))
            (owner,) = set(samples[a:b].tolist())
            if owner < 0:
                assert set(tokens.reshape(-1)[a:b]) == {0} and set(labels.reshape(-1)[a:b]) == {-100}
                continue
            seen.setdefault(owner, [[], []])
            seen[owner][0] += tokens.reshape(-1)[a:b].tolist()
            seen[owner][1] += labels.reshape(-1)[a:b].tolist()
        for row, i in enumerate(ids.tolist()):
            item = Texts()[i]
            kept = rule.length if rule.long == "truncate" else None
            if rule.place == "best-fit" and rule.length and rule.long == "split":
                # The pieces of a sample may be laid in any order.
                assert sorted(seen.get(row, [[], []])[0]) == sorted(item["input_ids"].tolist())
            else:
                assert seen.get(row, [[], []]) == [item["input_ids"][:kept].tolist(), item["labels"][:kept].tolist()]
            assert batch["name"][row] == item["name"]
        assert np.array_equal(np.asarray(batch["position_ids"]), np.asarray(found.position_ids))


def model(tokens):
    """A table of weights, and the logits (rows, length, V) that they give, by each token alone."""
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(1), requires_grad=True)
    return table, table[tokens.clamp(min=0)]


def run(pad, step):
    """What `step` makes of every batch, by its ids."""
    made = loader(pad, sampler="importance", shuffle=None, score="loss")
    losses = {}
    for batch in made:
        batch._weight = WEIGHTS[batch.ids]
        losses[tuple(batch.ids.tolist())] = step(made, batch)
    return losses


@pytest.fixture
def credited(monkeypatch):
    """What every call sends home, by the ids of its batch."""
    from lossfeed._torch import routes

    found = []

    def send(self, columns, sequence="mean"):
        samples = self._batch.ids.shape[0]
        if len(columns.loss) != samples:
            columns = routes.per_sample(torch, columns, samples, sequence)
        found.append({int(i): tuple(c[row].item() for c in columns[:3] if c is not None) for row, i in enumerate(self._batch.ids)})

    monkeypatch.setattr(routes.OnHost, "send", send)
    return found


@pytest.mark.parametrize("sequence", ["mean", "max", "sum"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("pad", ["packed", Packed(LENGTH, long="split"), Packed(50, place="in-order")], ids=str)
def test_losses_gradients_and_scores_are_those_of_the_padded_batch(pad, flat, sequence, credited):
    def step(made, batch):
        table, logits = model(batch["input_ids"])
        rows = logits.reshape(-1, V) if flat and batch.documents is not None else logits.transpose(1, 2)
        loss = made.cross_entropy(rows, batch, sequence=sequence)
        made.score(rows.detach(), batch, sequence=sequence)
        loss.backward()
        return loss.detach(), table.grad

    packed = run(pad, step)
    ours = [credited.pop(0) for _ in range(len(credited))]
    padded = run({"input_ids": 0, "labels": -100}, step)
    assert packed.keys() == padded.keys() and len(ours) == len(credited) == 6
    for mine, theirs in zip(ours, credited, strict=True):
        assert mine.keys() == theirs.keys()
        for i in mine:
            torch.testing.assert_close(torch.tensor(mine[i]), torch.tensor(theirs[i]), equal_nan=True)
    for ids in packed:
        for mine, theirs in zip(packed[ids], padded[ids], strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("pad", ["packed", Packed(LENGTH, long="split"), Packed(50)], ids=str)
def test_losses_of_ones_own_are_means_over_each_samples_tokens(pad, credited):
    made = loader(pad, sampler="importance", shuffle=None, score="loss")
    for batch in made:
        batch._weight = WEIGHTS[batch.ids]
        owners = batch.documents.samples
        tokens = torch.rand(owners.shape, requires_grad=True)
        made.score_losses(tokens, batch)
        mean = made.weighted_mean(tokens, batch)
        wanted = [tokens[owners == row].mean() for row in range(len(batch))]
        # Scores are of the tokens that have a target, as those of loader.cross_entropy.
        counted = [tokens[(owners == row) & (batch["labels"] != -100)].mean() for row in range(len(batch))]
        for sent in credited[-2:]:
            for i, want in zip(batch.ids.tolist(), counted, strict=True):
                assert sent[i][0] == pytest.approx(want.item(), nan_ok=True)
        torch.testing.assert_close(mean, (torch.stack(wanted).nan_to_num(0.0) * WEIGHTS[batch.ids]).mean())
        (gradient,) = torch.autograd.grad(mean, tokens)
        assert gradient.isfinite().all() and (gradient[owners < 0] == 0).all()
        prediction = torch.rand(*owners.shape, 2, requires_grad=True)
        loss = made.loss("mse", prediction, batch, target=torch.zeros_like(prediction))
        each = [(prediction[owners == row] ** 2).mean() for row in range(len(batch))]
        torch.testing.assert_close(loss, (torch.stack(each).nan_to_num(0.0) * WEIGHTS[batch.ids]).mean())
        norms = [torch.linalg.vector_norm(2 * prediction[owners == row]).item() / max(1, 2 * int((owners == row).sum())) for row in range(len(batch))]
        for i, want, norm in zip(batch.ids.tolist(), each, norms, strict=True):
            if want.isfinite():
                assert credited[-1][i] == pytest.approx((want.item(), norm), rel=1e-5)
        per_sample = torch.rand(len(batch))
        made.score_losses(per_sample, batch)
        assert [credited[-1][i][0] for i in batch.ids.tolist()] == per_sample.tolist()


@pytest.mark.parametrize("sequence", ["mean", "max", "sum"])
def test_arrays_are_scored_alike(sequence, credited, monkeypatch):
    arrays = []
    monkeypatch.setattr("lossfeed._loss.arrays._send", lambda account, batch, columns: arrays.append(columns[:3]))
    for batch in (made := loader(Packed(LENGTH, long="split"), score="loss")):
        logits = model(batch["input_ids"])[1].detach().transpose(1, 2)
        made.score(logits, batch, sequence=sequence)
        made.score(logits.numpy(), batch, sequence=sequence)
        for row, i in enumerate(batch.ids.tolist()):
            np.testing.assert_allclose([c[row] for c in arrays[-1]], credited[-1][i], rtol=1e-5)
        made.score_losses((tokens := torch.rand(batch.documents.samples.shape)), batch)
        made.score_losses(tokens.numpy(), batch)
        np.testing.assert_allclose(arrays[-1][0], [credited[-1][i][0] for i in batch.ids.tolist()], rtol=1e-5)


def test_a_compiled_step_takes_packed_batches_without_a_break():
    made = loader(Packed(LENGTH, long="split"), sampler="importance", shuffle=None, score="loss")
    table = torch.randn(V, V, requires_grad=True)

    def step(batch):
        return made.cross_entropy(table[batch["input_ids"]].transpose(1, 2), batch)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for batch in made:
        (ours,) = torch.autograd.grad(compiled(batch), table)
        (theirs,) = torch.autograd.grad(step(batch), table)
        torch.testing.assert_close(ours, theirs)
    stats = made.stats()
    assert stats["scores_total"] > 0 and stats["scores_repeated_total"] == N, "the compiled step had scored all of them"


def test_next_tokens_stay_within_their_document():
    for pad in ("packed", Packed(LENGTH, long="split")):
        for batch in loader(pad):
            found = batch.documents.next_tokens(batch["input_ids"])
            flat, made = batch["input_ids"].reshape(-1), batch.documents
            numbers, owners = made.document_ids.reshape(-1), made.samples.reshape(-1)
            for at, value in enumerate(found.reshape(-1).tolist()):
                inside = at + 1 < len(flat) and numbers[at] == numbers[at + 1] and owners[at] >= 0
                assert value == (int(flat[at + 1]) if inside else -100)
            assert torch.equal(torch.as_tensor(documents.Documents.next_tokens(made, batch["input_ids"].numpy())), found)


def test_a_model_of_transformers_gets_its_names_and_masked_first_targets():
    names = ["position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
    for batch in loader({"input_ids": Packed(separator=-100, keys=names), "labels": Packed(separator=-100, keys=names)}):
        given = dict(**batch)
        assert list(given) == ["input_ids", "labels", "name", *names] and given["input_ids"].shape[0] == 1
        firsts = given["cu_seq_lens_q"][:-1].long()
        assert set(given["labels"][0][firsts].tolist()) == {-100} and given["seq_idx"].dtype == torch.int32
        assert given["max_length_q"] == int((firsts.diff(append=given["cu_seq_lens_k"][-1:])).max())
        # The loss that such a model takes: targets are shifted behind the logits.
        _, logits = model(given["input_ids"])
        theirs = F.cross_entropy(logits[0, :-1], given["labels"][0, 1:])
        shifted = F.pad(given["labels"][:, 1:], (0, 1), value=-100)
        own = [F.cross_entropy(logits[0, a : b - 1], torch.as_tensor(Texts()[int(i)]["labels"][1:]), reduction="sum")
               for i, a, b in zip(batch.ids[batch.documents.samples[0][firsts]], firsts, given["cu_seq_lens_q"][1:])]
        torch.testing.assert_close(theirs * (shifted != -100).sum(), torch.stack(own).sum())


def test_batches_that_are_kept_moved_pickled_and_resumed_stay_whole():
    made = loader(Packed(LENGTH, long="split"))
    batches = list(made)
    again = pickle.loads(pickle.dumps(batches[1]))
    assert torch.equal(again.documents.samples, batches[1].documents.samples) and again.documents.max_seqlen == LENGTH
    with pytest.raises(lf.SettingsError, match="packed batches have different layouts, and a CUDA graph needs equal ones"):
        batches[0].copy_(batches[1])
    made.set_epoch(0)
    next(iter(made))
    resumed = loader(Packed(LENGTH, long="split"))
    resumed.load_state_dict(made.state_dict())
    for ours, theirs in zip(resumed, batches[1:], strict=True):
        assert torch.equal(ours["input_ids"], theirs["input_ids"]) and torch.equal(ours.documents.samples, theirs.documents.samples)
    assert batches[0].to("meta").documents.samples.device.type == "meta"


def test_what_cannot_be_packed_is_refused_with_the_remedy():
    for make, says in [
        (lambda: Packed(0), "length=0 must be at least 1"),
        (lambda: Packed(4, place="first"), "place='first' is unknown"),
        (lambda: Packed(4, long="cut"), "long='cut' is unknown"),
        (lambda: Packed(long="split"), "go with length="),
        (lambda: Packed(fill=1), "go with length="),
        (lambda: Packed(keys="position_ids"), "give a list of"),
        (lambda: Packed(keys=["mask"]), "give a list of"),
        (lambda: loader(Packed(4, fill={"x": 1})), r"\['x'\] are none of those packed"),
        (lambda: loader(Packed(4, fill=0.5)), "would become 0"),
        (lambda: loader({"input_ids": "packed", "labels": Packed(4)}), "packed by one rule"),
        (lambda: loader({"input_ids": Packed(separator=-100)}), "these samples have no packed target"),
        (lambda: loader("packed", collate_fn=list), "pad= does not work with collate_fn="),
        (lambda: list(loader(Packed(LENGTH))), r"tokens, and lf.Packed\(length=12\) makes rows of 12: .*long='split'"),
    ]:
        with pytest.raises(lf.Error, match=says):
            make()
    two = [{"a": np.ones(i + 1), "b": np.ones(2 * i + 1)} for i in range(4)]
    with pytest.raises(lf.SampleError, match="a has 2 tokens in row 1 of a batch and b has 3: what is packed together"):
        list(lf.Loader(lf.open(two, varying=True), 4, pad="packed", num_workers=0))
    wide = [{"a": np.ones((2, i + 1))} for i in range(4)]
    with pytest.raises(lf.SampleError, match="may differ in their first dimension alone"):
        list(lf.Loader(lf.open(wide, varying=True), 4, pad="packed", num_workers=0))
    one = next(iter(loader("packed")))
    made = loader("packed")
    with pytest.raises(lf.SettingsError, match="for a packed batch of 1 rows of"):
        made.cross_entropy(torch.zeros(1, V, 3), one)
    with pytest.raises(lf.SettingsError, match="class probabilities cannot be targets of a packed batch"):
        shape = one.documents.samples.shape
        made.cross_entropy(torch.zeros(1, V, shape[1]), one, target=torch.zeros(shape))


def test_packed_pairs_and_targets_a_sample_are_as_ever():
    pairs = [(torch.arange(i), i % 3) for i in range(6)]
    made = lf.Loader(lf.open(pairs, varying=True), 6, pad="packed", sampler="importance", num_workers=0, score="loss")
    for batch in made:
        x, y = batch
        assert x.shape == (1, sum(range(6)) if sorted(batch.ids.tolist()) == list(range(6)) else x.shape[1]) and y.shape == (6,)
        logits = torch.randn(6, 3)
        torch.testing.assert_close(made.cross_entropy(logits, batch, weighted=False), F.cross_entropy(logits, y))
    assert made.stats()["scores_total"] == len(batch)


def test_columns_that_nobody_measured_are_none_of_the_samples_either():
    measured = Columns(torch.tensor([1.0, 2.0, 3.0]), correct=torch.zeros(3, dtype=torch.uint8))
    samples = per_document(torch, measured, torch.tensor([0, 0, 1]), 2, "mean")
    assert (samples.loss.tolist(), samples.grad_norm, samples.entropy) == ([1.5, 3.0], None, None)
