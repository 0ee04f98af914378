"""Hugging Face's Trainer: a small BERT on sentences of any length, dicts from `datasets`. Evaluation stays as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainerState, TrainingArguments

import lossfeed as lf
from lossfeed.accelerate import Batches
from lossfeed.typing import Sampler


def sentences(count: int = 600, words: int = 50, classes: int = 4) -> Dataset:
    """Token ids; a sentence's class is its first word's, modulo `classes`."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(1, words, draw.integers(4, 16)) for _ in range(count)]
    rows = {"input_ids": ids, "attention_mask": [np.ones_like(s) for s in ids], "labels": [s[0] % classes for s in ids]}
    return Dataset.from_dict(rows).with_format("torch")


class Scored(Trainer):
    """Trains on what `loader` delivers."""

    def __init__(self, *args: Any, loader: lf.Loader, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return Batches(self.loader)

    def compute_loss(
        self, model: torch.nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not isinstance(inputs, lf.Batch):  # evaluation
            return super().compute_loss(model, inputs, return_outputs)
        logits = model(**inputs).logits
        # Over the samples of all batches of a step that accumulates several, as the Trainer has it.
        return self.loader.cross_entropy(logits, inputs, reduction="sum") / num_items_in_batch


class Kept(TrainerCallback):
    """Puts the loader's state into every checkpoint."""

    def __init__(self, loader: lf.Loader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        checkpoint = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
        torch.save(self.loader.state_dict(), checkpoint / f"loader.{args.process_index}")


def train(folder: str, resume: str | None = None, sampler: Sampler | None = "importance", **options: Any) -> Trainer:
    torch.manual_seed(0)
    data, pad = lf.open(sentences(), varying=True), {"input_ids": 0, "attention_mask": 0}
    loader = lf.Loader(data, 32, sampler=sampler, cache="1MiB", pad=pad, num_workers=0, seed=0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    settings: dict[str, Any] = {"vocab_size": 50, "num_labels": 4, **sizes}
    model = BertForSequenceClassification(BertConfig(**settings))
    args = TrainingArguments(
        folder, per_device_train_batch_size=32, learning_rate=5e-3, save_steps=13, report_to=[], use_cpu=True, **options
    )
    trainer = Scored(model, args, loader=loader, callbacks=[Kept(loader)])
    if resume is not None:
        loader.load_state_dict(torch.load(Path(resume, f"loader.{args.process_index}")))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


if __name__ == "__main__":
    train("checkpoints")
