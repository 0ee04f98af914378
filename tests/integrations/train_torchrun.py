"""Several processes: `torchrun --nproc-per-node 2 train_torchrun.py ddp state` (or `fsdp`). Ranks share the samples
by themselves; each saves where it stands."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lossfeed as lf


def train(way: str, checkpoint: str, epochs: int = 3) -> None:
    dist.init_process_group("gloo")  # nccl on GPUs
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    loader = lf.Loader((pixels.astype("float32") / 16, labels), 64, sampler="importance", cache="30%", seed=0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    if way == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    losses: list[float] = []
    seen: set[int] = set()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen.update(batch.ids.tolist())
        torch.save(loader.state_dict(), f"{checkpoint}.{rank}")
    parameters = torch.cat([getattr(p, "full_tensor", lambda p=p: p)().flatten() for p in model.parameters()])

    reports: list[Any] = [None] * ranks
    scores = loader.stats()["scores_total"]
    dist.all_gather_object(reports, (rank, losses[0], losses[-1], scores, seen, parameters.sum().item()))
    if rank == 0:
        for rank, first, last, scores, seen, total in reports:
            print(f"rank {rank}: loss {first:.3f} to {last:.3f}, {scores:.0f} scores, parameters sum to {total:.6f}")
        print(f"{len(set.union(*(r[4] for r in reports)))} samples, {sum(len(r[4]) for r in reports)} in the shares")
    dist.destroy_process_group()


if __name__ == "__main__":
    way, checkpoint = sys.argv[1:]
    train(way, checkpoint)
