"""The trainer of compose.yaml: a small network on the pictures of a bucket, until it is stopped or EPOCHS are over."""

import os

import torch

import lossfeed as lf

device = "cuda" if torch.cuda.is_available() else "cpu"
data = lf.open(os.environ.get("DATA", "s3://pictures/shard-*.tar"), resize=32, crop=32)
pixels = lf.ImageTransform(mean=0.5, std=0.25, crop=32, padding=4, flip=0.5)
loader = lf.Loader(data, 64, device=device, cache="20%", sampler="auto", transform=pixels, seed=0, job="pictures")
layers = torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten()
model = torch.nn.Sequential(*layers, torch.nn.LazyLinear(len(data.classes) or 1000)).to(device)
optimizer = None

for epoch in range(int(os.environ.get("EPOCHS", "100"))):
    loader.set_epoch(epoch)
    for batch in loader:
        loss = loader.cross_entropy(model(batch.data), batch)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
print(loader.summary())
