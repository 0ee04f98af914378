"""Ray Train: two workers share the samples, and a checkpoint holds where each of them stands."""

import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits

import lossfeed as lf


def loop(config: dict[str, Any]) -> None:
    """What every worker runs."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    # Here, in the worker, the ranks are known; prepare_data_loader is for torch's loaders, and nothing is left to it.
    loader = lf.Loader((pixels.astype("float32") / 16, labels), 64, sampler="importance", cache="30%", num_workers=0, seed=0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    # Ray's own comes first: it is this run's, which began again after a failure.
    saved = ray.train.get_checkpoint() or config["resume"]
    if saved is not None:
        with saved.as_directory() as folder:
            network.load_state_dict(torch.load(Path(folder, "model")))
            loader.load_state_dict(torch.load(Path(folder, f"loader.{rank}")))
    model = prepare_model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    losses: list[float] = []
    seen: list[int] = []
    for epoch in range(loader.epoch, config["epochs"]):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen += batch.ids.tolist()
            if len(losses) == config["stop"] or batch.number + 1 == len(loader):
                with tempfile.TemporaryDirectory() as folder:
                    # Ray puts the files of all workers together.
                    torch.save(loader.state_dict(), Path(folder, f"loader.{rank}"))
                    if rank == 0:
                        torch.save(network.state_dict(), Path(folder, "model"))
                    report = {"losses": losses, "seen": seen, "scores": loader.stats()["scores_total"]}
                    ray.train.report(report, checkpoint=Checkpoint.from_directory(folder))
            if len(losses) == config["stop"]:
                return


def train(folder: str | os.PathLike[str], epochs: int = 3, stop: int | None = None, resume: Checkpoint | None = None) -> ray.train.Result:
    """Saves to `folder`, at the end of epochs or after `stop` batches; goes on from the checkpoint `resume`."""
    trainer = TorchTrainer(
        loop,
        train_loop_config={"epochs": epochs, "stop": stop, "resume": resume},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(folder), checkpoint_config=CheckpointConfig(num_to_keep=1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    metrics = train(Path("ray-results").absolute()).metrics or {}
    print(f"loss {metrics['losses'][-1]:.3f}, {metrics['scores']:.0f} scores")
