"""Hugging Face's Trainer: a small BERT on token ids, from a pair of arrays. Evaluation stays as it is."""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import lossfeed as lf
from lossfeed.accelerate import Batches


def sentences(count=600, length=12, words=50, classes=4):
    """A sentence's class is its first word's, modulo `classes`."""
    tokens = np.random.default_rng(0).integers(1, words, (count, length))
    return tokens, tokens[:, 0] % classes


class Scored(Trainer):
    """Trains on what `loader` delivers."""

    def __init__(self, *args, loader, **keywords):
        super().__init__(*args, **keywords)
        self.loader = loader

    def get_train_dataloader(self):
        return Batches(self.loader)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if not isinstance(inputs, lf.Batch):  # evaluation
            return super().compute_loss(model, inputs, return_outputs)
        return self.loader.cross_entropy(model(input_ids=inputs.data).logits, inputs)


class Kept(TrainerCallback):
    """Puts the loader's state into every checkpoint."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **_):
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        torch.save(self.loader.state_dict(), checkpoint / f"loader.{args.process_index}")


def train(folder, resume=None, sampler="importance", **options):
    torch.manual_seed(0)
    loader = lf.Loader(sentences(), 32, sampler=sampler, cache="30%", num_workers=0, seed=0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=4, **sizes))
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
