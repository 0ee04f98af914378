"""A dataset of Hugging Face's `datasets`: its rows are dicts, and so are the batches."""

import torch
from datasets import Dataset
from sklearn.datasets import load_digits

import lossfeed as lf


def train(epochs: int = 3) -> tuple[list[float], lf.Loader, Dataset]:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    rows = Dataset.from_dict({"pixels": pixels.astype("float32") / 16, "label": labels})
    parts = rows.train_test_split(0.2, seed=0).with_format("torch")
    loader = lf.Loader(parts["train"], 64, sampler="auto", cache="30%", num_workers=2, seed=0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses: list[float] = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch["pixels"]), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, {loader.stats()['hits_total']:.0f} hits")
    with torch.no_grad():
        right = sum((model(b["pixels"]).argmax(1) == b["label"]).sum().item() for b in lf.Loader(parts["test"], 128))
    print(f"{right / len(parts['test']):.1%} right of {len(parts['test'])} held out")
    return losses, loader, parts["train"]


if __name__ == "__main__":
    train()
