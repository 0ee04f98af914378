"""Accelerate: gradients accumulated over three batches, and a state saved in the middle of an epoch."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits

import lossfeed as lf
from lossfeed.accelerate import Batches
from lossfeed.typing import Sampler


def train(
    folder: str,
    epochs: int = 3,
    stop: int | None = None,
    resume: str | None = None,
    sampler: Sampler | None = "importance",
) -> tuple[list[float], list[int]]:
    """Saves to `folder` and ends after `stop` batches; goes on from the folder `resume`. Returns the losses, and
    after which batches the optimizer stepped."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    pixels, labels = load_digits(return_X_y=True)
    # After Accelerator(): the ranks are known now.
    loader = lf.Loader(
        (pixels.astype("float32") / 16, labels), 64, sampler=sampler, cache="30%", num_workers=0, seed=0
    )
    batches = Batches(loader)  # in place of accelerator.prepare(loader), which knows torch's DataLoader alone
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(batches)
    if resume is not None:
        accelerator.load_state(resume)

    losses: list[float] = []
    steps: list[int] = []
    for epoch in range(loader.epoch, epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            with accelerator.accumulate(model):
                loss = loader.cross_entropy(model(batch.data), batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if accelerator.sync_gradients:
                steps.append(len(losses))
            if len(losses) == stop:
                accelerator.save_state(folder)
                return losses, steps
        accelerator.print(f"epoch {epoch}: loss {losses[-1]:.3f}, {loader.stats()['scores_total']:.0f} scores")
    return losses, steps


if __name__ == "__main__":
    train("accelerate-state")
