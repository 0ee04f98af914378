"""Lightning where its own loops stand between a checkpoint and a loader: what is left of a run comes, exactly, under either
name of the package; and loaders for validation, test and prediction."""

import importlib
import logging
import warnings

import pytest
import torch

import lossfeed as lf
from lossfeed.lightning import Batches

X, Y = torch.randn(40, 4), torch.arange(40) % 3


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"], autouse=True)
def pl(request):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return importlib.import_module(request.param)


class Backwards:
    """A sampler of the user's own, another order each epoch."""

    def __init__(self, sized=True):
        self.epoch, self.told = 0, []
        if sized:
            self.__class__ = type("Sized", (Backwards,), {"__len__": lambda self: 40})

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __iter__(self):
        return iter([(7 * i + 3 * self.epoch) % 40 for i in range(40)])


def classifier(pl, estimate=False):
    """A model that notes what it sees. Its schedule may ask how many steps there will be."""

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.seen, self.checked = torch.nn.Linear(4, 3), [], []

        def training_step(self, batch, _):
            loaders = self.trainer.fit_loop._combined_loader.flattened
            losses = []
            for one, wrapped in zip([batch] if isinstance(batch, lf.Batch) else batch, loaders, strict=True):
                loader = getattr(wrapped, "loader", wrapped)
                losses.append(loader.cross_entropy(self.layer(one.data), one))
                self.seen.append((one.epoch, one.number, *one.ids.tolist()))
            return sum(losses)

        def validation_step(self, batch, _, dataloader_idx=0):
            if not self.trainer.sanity_checking:
                self.checked.append((dataloader_idx, *batch.ids.tolist()))

        test_step = validation_step

        def predict_step(self, batch, _, dataloader_idx=0):
            return batch.ids

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            if not estimate:
                return optimizer
            steps = self.trainer.estimated_stepping_batches
            total = 100 if steps == float("inf") else int(steps)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Classifier()


def trainer(pl, **options):
    settings = {"max_epochs": 3, "enable_checkpointing": False} | options
    return pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, **settings)


def made(wrapped=True, **options):
    loader = lf.Loader((X, Y), 4, **{"seed": 1, "num_workers": 0} | options)
    return Batches(loader) if wrapped else loader


def fit(pl, folder, loaders, resume=None, estimate=False, every=None, **options):
    every = every or {"every_n_train_steps": 1}
    saving = pl.callbacks.ModelCheckpoint(folder, save_top_k=-1, filename="{step}", **every)
    options = {"callbacks": [saving], "enable_checkpointing": True} | options
    model = classifier(pl, estimate)
    trainer(pl, **options).fit(model, loaders, ckpt_path=resume, weights_only=False)
    return model.seen


SHUFFLED = {"shuffle": True}
SCORED = {"sampler": "importance", "cache": "30%"}


@pytest.mark.parametrize("stop", [3, 10, 17])
@pytest.mark.parametrize("estimate", [False, True])
@pytest.mark.parametrize("wrapped", [True, False], ids=["Batches", "Loader"])
@pytest.mark.parametrize("options", [SHUFFLED, SCORED, {"sampler": Backwards}, {"batch_sampler": "cut"}], ids=str)
def test_a_resumed_fit_gets_exactly_the_rest(pl, tmp_path, options, wrapped, estimate, stop):
    """Also at an epoch's end, where Lightning hands no loader its state, and all that was learned would be lost."""

    def loader():
        if "batch_sampler" in options:
            return made(wrapped, batch_sampler=torch.utils.data.BatchSampler(Backwards(), 4, False))
        return made(wrapped, **{k: v() if isinstance(v, type) else v for k, v in options.items()})

    with warnings.catch_warnings():
        warnings.simplefilter("error", lf.ResumeWarning)
        whole = fit(pl, tmp_path / "whole", loader(), estimate=estimate)
        rest = fit(pl, tmp_path / "rest", loader(), tmp_path / "whole" / f"step={stop}.ckpt", estimate)
    assert len(whole) == 30 and rest == whole[stop:]


@pytest.mark.parametrize("estimate", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 25, "max_epochs": -1},
        {"limit_train_batches": 8},
        {"accumulate_grad_batches": 2},
        {"reload_dataloaders_every_n_epochs": 1},
    ],
    ids=str,
)
def test_however_long_an_epoch_is(pl, tmp_path, options, estimate):
    whole = fit(pl, tmp_path / "whole", made(**SCORED), estimate=estimate, **options)
    a_step = options.get("accumulate_grad_batches", 1)
    for stop in (3, 12):
        rest = fit(pl, tmp_path / "rest", made(**SCORED), tmp_path / "whole" / f"step={stop}.ckpt", estimate, **options)
        assert rest == whole[stop * a_step :]


@pytest.mark.parametrize("estimate", [False, True])
def test_a_checkpoint_of_every_epoch_holds_what_was_learned(pl, tmp_path, estimate):
    every = {"every_n_epochs": 1}
    whole = fit(pl, tmp_path / "whole", made(**SCORED), estimate=estimate, every=every)
    rest = fit(pl, tmp_path / "rest", made(**SCORED), tmp_path / "whole" / "step=20.ckpt", estimate, every)
    assert rest == whole[20:]


@pytest.mark.parametrize("estimate", [False, True])
def test_several_loaders_take_up_each_its_own(pl, tmp_path, estimate):
    def loaders():
        return [made(**SCORED), made(wrapped=False, shuffle=True, seed=5)]

    whole = fit(pl, tmp_path / "whole", loaders(), estimate=estimate)
    for stop in (3, 10):
        rest = fit(pl, tmp_path / "rest", loaders(), tmp_path / "whole" / f"step={stop}.ckpt", estimate)
        assert rest == whole[2 * stop :]


@pytest.mark.parametrize("estimate", [False, True])
def test_a_sampler_without_a_length_has_its_first_batch_fetched_before(pl, tmp_path, estimate):
    def loader():
        return made(sampler=Backwards(sized=False))

    options = {"max_steps": 30, "max_epochs": -1}
    whole = fit(pl, tmp_path / "whole", loader(), estimate=estimate, **options)
    rest = fit(pl, tmp_path / "rest", loader(), tmp_path / "whole" / "step=7.ckpt", estimate, **options)
    assert len(whole) == 30 and len(rest) == 23
    # A batch that Lightning held back when it saved counts as delivered.
    assert rest[0] in whole[7:9] and not {row[2:] for row in whole[:7]} & {row[2:] for row in rest[:2]}


@pytest.mark.parametrize("wrapped", [True, False], ids=["Batches", "Loader"])
@pytest.mark.parametrize("options", [SHUFFLED, {"sampler": range(40)}], ids=str)
def test_in_mid_epoch_without_a_state_it_is_refused(pl, tmp_path, options, wrapped):
    theirs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 4)
    saving = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1, filename="{step}")

    class Plain(type(classifier(pl))):
        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    trainer(pl, callbacks=[saving], enable_checkpointing=True).fit(Plain(), theirs)
    with pytest.raises(lf.UsageError, match=r"goes on behind batch 5 of an epoch, .* has no state of this loader"):
        fit(pl, tmp_path / "rest", made(wrapped, **options), tmp_path / "step=5.ckpt")
    assert len(fit(pl, tmp_path / "rest", made(wrapped, **options), tmp_path / "step=10.ckpt")) == 20
    by_hand = lf.Loader((X, Y), 4, seed=1, num_workers=0, **options)
    for _ in zip(range(5), by_hand):
        pass
    state, loader = by_hand.state_dict(), made(wrapped, **options)
    loader.load_state_dict(state)
    assert fit(pl, tmp_path / "rest", loader, tmp_path / "step=5.ckpt")[0][1] == 5


def test_another_run_than_the_checkpoints_is_told_at_an_epochs_end_and_refused_before(pl, tmp_path):
    other, every = {"shuffle": True, "seed": 2}, {"every_n_epochs": 1}
    fit(pl, tmp_path / "epochs", made(**SHUFFLED), every=every)
    saved = tmp_path / "epochs" / "step=10.ckpt"
    with pytest.warns(lf.ResumeWarning, match="starts without the scores and position .* seed"):
        assert len(fit(pl, tmp_path / "rest", made(**other), saved, every=every)) == 20
    with pytest.warns(lf.ResumeWarning, match="it has 1 states, and there are 2 loaders"):
        fit(pl, tmp_path / "rest", [made(**SHUFFLED), made(**other)], saved, every=every)
    fit(pl, tmp_path / "whole", made(**SHUFFLED))
    with pytest.raises(lf.SettingsError, match="another run's"):
        fit(pl, tmp_path / "rest", made(**other), tmp_path / "whole" / "step=7.ckpt")


EVERY = [(0, *range(start, start + 4)) for start in range(0, 40, 4)]


@pytest.mark.parametrize("wrapped", [True, False], ids=["Batches", "Loader"])
@pytest.mark.parametrize("options", [{}, {"use_distributed_sampler": False}, {"val_check_interval": 0.5}], ids=str)
def test_validation_sees_every_sample_each_time(pl, options, wrapped):
    """The two batches of Lightning's sanity check do not count."""
    model = classifier(pl)
    trainer(pl, max_epochs=2, **options).fit(model, made(**SHUFFLED), made(wrapped))
    assert model.checked == EVERY * (4 if "val_check_interval" in options else 2)


@pytest.mark.parametrize("limit, batches", [(3, 3), (0.5, 5), (1.0, 10)])
def test_limits_of_validation_test_and_prediction_are_kept(pl, limit, batches):
    model, loader = classifier(pl), made()
    limits = {f"limit_{stage}_batches": limit for stage in ("val", "test", "predict")}
    of = trainer(pl, **limits)
    for run in (of.validate, of.test, of.validate):
        run(model, loader, verbose=False)
    assert model.checked == EVERY[:batches] * 3
    predicted = of.predict(model, loader)
    assert [(0, *ids.tolist()) for ids in predicted] == EVERY[:batches]


@pytest.mark.parametrize("mode", [None, "sequential", "max_size_cycle"])
def test_several_loaders_validate(pl, mode):
    given = [made(), made(wrapped=False), torch.utils.data.DataLoader(range(3))]
    model = classifier(pl)
    if mode == "max_size_cycle":

        class Together(type(model)):
            def validation_step(self, batch, _):
                if not self.trainer.sanity_checking:
                    self.checked.append((0, *batch[0].ids.tolist()))
                    assert batch[0].ids.equal(batch[1].ids)

        model = Together()
    else:

        class InTurn(type(model)):
            def validation_step(self, batch, number, dataloader_idx):
                if dataloader_idx < 2:
                    super().validation_step(batch, number, dataloader_idx)

        model = InTurn()
    if mode is not None:
        combined = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
        given = combined(given, mode)
    trainer(pl, max_epochs=2).fit(model, made(**SHUFFLED), given)
    each = EVERY if mode == "max_size_cycle" else [*EVERY, *((1, *row[1:]) for row in EVERY)]
    assert model.checked == each * 2


@pytest.mark.parametrize("options", [{}, {"num_sanity_val_steps": 0}], ids=str)
def test_overfitting_is_on_the_same_batches(pl, options):
    model = classifier(pl)
    trainer(pl, overfit_batches=3, **options).fit(model, made(), made())
    assert [row[2:] for row in model.seen] == [row[1:] for row in EVERY[:3]] * 3
    for drawn in ({"shuffle": True}, {"sampler": "importance"}):
        with pytest.raises(lf.SettingsError, match=r"overfit_batches=3\) trains on the same batches .*shuffle=False"):
            trainer(pl, overfit_batches=3).fit(classifier(pl), made(**drawn))


def test_a_batch_of_dicts_is_moved_as_one(pl):
    """Lightning, Accelerate and transformers change a Mapping's tensors each in its way; it stays a batch of its samples."""
    from accelerate.utils import convert_to_fp32, find_batch_size, recursively_apply, send_to_device
    from lightning_utilities.core.apply_func import apply_to_collection

    loader = lf.Loader([{"x": torch.ones(4), "name": str(i), "labels": i % 3} for i in range(16)], 8, score="loss", num_workers=0)
    for batch, half in zip(loader, (False, True), strict=True):
        wide = torch.float64 if half else torch.float32
        for found in (
            pl.LightningModule().transfer_batch_to_device(batch, torch.device("cpu"), 0),
            apply_to_collection(batch, torch.Tensor, lambda t: t.to(wide) if t.is_floating_point() else t),
            send_to_device(batch, "cpu"),
            convert_to_fp32(batch),
            recursively_apply(lambda t: t.clone(), batch),
        ):
            assert isinstance(found, lf.Batch) and torch.equal(found.ids, batch.ids) and find_batch_size(found) == 8
            loader.cross_entropy(found["x"][:, :3], found)
    assert loader.stats()["scores_total"] == 16
