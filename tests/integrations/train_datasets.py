"""A dataset of Hugging Face's `datasets`, whose rows are dicts: a few lines make pairs of them, a batch's at a time."""

import torch
from datasets import Dataset
from sklearn.datasets import load_digits

import lossfeed as lf


class Pairs(torch.utils.data.Dataset):
    def __init__(self, rows, data, target):
        self.rows, self.names = rows.with_format("numpy"), (data, target)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.__getitems__([i])[0]

    def __getitems__(self, ids):
        columns = self.rows[ids]
        return list(zip(*(columns[name] for name in self.names), strict=True))


def train(epochs=3):
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    rows = Dataset.from_dict({"pixels": pixels.astype("float32") / 16, "label": labels}).train_test_split(0.2, seed=0)
    loader = lf.Loader(Pairs(rows["train"], "pixels", "label"), 64, sampler="auto", cache="30%", num_workers=2, seed=0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {loader.stats()['hits_total']:.0f} hits")
    return losses, loader, rows["train"]


if __name__ == "__main__":
    train()
