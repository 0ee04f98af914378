"""Large JPEGs on a local disk, in a cache that keeps them as stored: each hit is decoded again."""

from pictures import made

import torch

import lossfeed as lf

if __name__ == "__main__":
    data = lf.open(made("large"))
    pixels = lf.ImageTransform(resize=64, crop=64, flip=0.5)
    loader = lf.Loader(data, 8, shuffle=True, cache="1GiB", transform=pixels, seed=0, job="large")
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(6):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
