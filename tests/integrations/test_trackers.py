"""The lines of `pybind/docs/smi.md` for TensorBoard, Weights & Biases and MLflow, with the real packages."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import lossfeed as lf

PAGE = Path(__file__).parents[2] / "pybind" / "docs" / "smi.md"


def line(word):
    """The page's line with this word."""
    (found,) = re.findall(rf"^\| [^|]+ \| `(.*{word}.*)` \|$", PAGE.read_text(), re.MULTILINE)
    return found


@pytest.fixture
def loader():
    data = np.zeros((64, 3), np.float32), np.arange(64) % 4
    with lf.Loader(data, batch_size=4, cache="1MiB", stats=False) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        yield loader


def test_tensorboard_has_every_number(loader, tmp_path):
    needs = "needs tensorboard: make test-integrations"
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason=needs, exc_type=ImportError)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        exec(line("writer.add_scalar"), {"writer": writer, "loader": loader, "step": 32})
    read = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == {f"lossfeed/{name}" for name in loader.stats()}
    (hits,) = read.Scalars("lossfeed/hit_ratio")
    assert (hits.step, hits.value) == (32, 0.5)


def records(data):
    """The records of an offline run: LevelDB's log format, after a head of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def test_weights_and_biases_has_every_number_offline(loader, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb: make test-integrations")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="lossfeed") as run:
        exec(line("run.log"), {"run": run, "loader": loader, "step": 32})
    wandb.teardown()  # the process that writes has ended
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record()
    kept = {}
    for data in records(file.read_bytes()):
        record.ParseFromString(data)
        kept.update({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
    assert kept["_step"] == 32
    kept = {name: value for name, value in kept.items() if name.startswith("lossfeed/")}
    assert kept == pytest.approx({f"lossfeed/{name}": value for name, value in loader.stats().items()})


def test_mlflow_has_every_number(loader, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow-skinny: make test-integrations")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        exec(line("mlflow.log_metrics"), {"mlflow": mlflow, "loader": loader, "step": 32})
    kept = mlflow.get_run(run.info.run_id).data.metrics
    assert kept == pytest.approx({f"lossfeed/{name}": value for name, value in loader.stats().items()})
