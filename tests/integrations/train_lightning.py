"""Lightning: a DataModule that makes the loader, and checkpoints that hold where it stands."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits

import lossfeed as lf
from lossfeed.lightning import Batches


class Digits(L.LightningDataModule):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"sampler": "importance", "cache": "30%", "num_workers": 0, "seed": 0} | options

    def setup(self, stage: str) -> None:
        pixels, labels = load_digits(return_X_y=True)
        self.training, self.validation = lf.open((pixels.astype("float32") / 16, labels)).split(0.8, seed=0)

    def train_dataloader(self) -> Batches:
        # Here, and not in __init__: the ranks are known now.
        return Batches(lf.Loader(self.training, 64, **self.options))

    def val_dataloader(self) -> lf.Loader:
        return lf.Loader(self.validation, 128)


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.losses: list[float] = []

    def training_step(self, batch: lf.Batch, batch_idx: int) -> torch.Tensor:
        batches: Any = self.trainer.train_dataloader
        loss: torch.Tensor = batches.loader.cross_entropy(self.model(batch.data), batch)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: lf.Batch, batch_idx: int) -> None:
        right = (self.model(batch.data).argmax(1) == batch.target).float().mean()
        self.log("accuracy", right, prog_bar=True, batch_size=len(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


def train(
    folder: str | Path, data: Digits | None = None, resume: str | Path | None = None, **options: Any
) -> tuple[list[float], L.Trainer]:
    L.seed_everything(0, verbose=False)
    settings: dict[str, Any] = {"max_epochs": 3} | options
    saving = ModelCheckpoint(folder, every_n_train_steps=30, save_top_k=-1, filename="{step}")
    trainer = L.Trainer(accelerator="cpu", logger=False, callbacks=[saving], **settings)
    model = Classifier()
    # A loader's state is plain ints and bytes; Lightning's own checkpoint holds more.
    trainer.fit(model, datamodule=data or Digits(), ckpt_path=resume, weights_only=False)
    return model.losses, trainer


if __name__ == "__main__":
    train("checkpoints")
