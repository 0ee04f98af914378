"""timm's recipe: mixup, label smoothing, bfloat16 and an average of the weights."""

import timm
import torch
from sklearn.datasets import load_digits
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

import lossfeed as lf


def train(
    epochs: int = 3, mixup: float = 0.2, smoothing: float = 0.1, samples: int = 256
) -> tuple[list[float], ModelEmaV3, lf.Loader]:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    pictures = (pixels.reshape(-1, 8, 8, 1)[:samples] * 15).astype("uint8").repeat(4, 1).repeat(4, 2)
    transform = lf.ImageTransform("float32", mean=0.5, std=0.5, padding=2)
    # drop_last: mixup takes batches of an even size.
    loader = lf.Loader(
        (pictures, labels[:samples]), 64, drop_last=True, sampler="auto", cache="40%", transform=transform, seed=0
    )
    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    optimizer = create_optimizer_v2(model, "adamw", lr=2e-3)
    average = ModelEmaV3(model, decay=0.9)
    mix = Mixup(mixup_alpha=mixup, label_smoothing=smoothing, num_classes=10)

    losses: list[float] = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            # timm makes the smoothed and mixed targets; a picture's score is the loss of the mixture that it leads.
            data, target = mix(batch.data, batch.target)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(data)
                loss = loader.cross_entropy(logits, batch, target=target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, {loader.stats()['scores_total']:.0f} scores")
    return losses, average, loader


if __name__ == "__main__":
    train()
