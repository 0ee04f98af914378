"""A loop in plain PyTorch, with a checkpoint that goes on in the middle of an epoch."""

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

import lossfeed as lf
from lossfeed.typing import Sampler


def train(
    checkpoint: str | Path, epochs: int = 4, stop: int | None = None, sampler: Sampler | None = "importance"
) -> list[float]:
    """Trains, from `checkpoint` on if it is there; saves and ends after `stop` steps. Returns the losses."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = lf.open((pixels.astype("float32") / 16, labels))
    training, validation = data.split(0.8, seed=0)
    loader = lf.Loader(training, 64, sampler=sampler, cache="30%", num_workers=0, seed=0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    if Path(checkpoint).exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    losses: list[float] = []
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == stop:
                parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
                torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
                return losses
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, {loader.stats()['scores_total']:.0f} scores")

    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in lf.Loader(validation, 256))
    print(f"{right / len(validation):.1%} right of {len(validation)} held out")
    return losses


if __name__ == "__main__":
    train("digits.pt")
