"""lossfeed: a data loader that the training's own losses steer.

The GPU already computes every sample's loss. lossfeed reads the logits once, turns them into per-sample scores, and
lets the scores decide which samples stay in host memory, which come next, and with what weight::

    import lossfeed as lf

    data   = lf.open("train-{0000..0146}.tar")
    loader = lf.Loader(data, batch_size=256, device="cuda", cache="32GiB", sampler="auto", seed=0)

    for epoch in range(90):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = loader.cross_entropy(model(batch.data), batch)
            loss.backward(); optimizer.step(); optimizer.zero_grad()

* :func:`open` a directory, tar shards, a URL, arrays or a torch Dataset.
* :class:`Loader` iterates it; ``score``, ``cross_entropy`` and ``score_losses`` take scores home.
* :class:`Cache`, :class:`Sampling`, :class:`Reading`: its options by topic.
* :func:`concat` makes one dataset of several.
* :class:`ImageTransform` crops, flips and normalises, on the GPU where there is one.
* :class:`Packed` puts samples of varying length end to end.
* :class:`Scores` draws batches by scores for another loader, a torch DataLoader for example.
* :func:`show` makes a picture of a batch.
* :func:`stage` prefetches any iterable of batches to a device.
* :func:`cross_entropy`, :func:`linear_cross_entropy`, :func:`sample_scores`: the pieces alone.

torch and NumPy are imported when they are used; neither is required to import this.
"""

from ._base.errors import (
    CounterError,
    DeviceError,
    Error,
    InternalError,
    KeywordError,
    MemoryLimitError,
    OutageError,
    ResumeWarning,
    SampleError,
    SettingsError,
    SourceError,
    ThreadWarning,
    TimeoutError,
    TrainingWarning,
    UsageError,
)
from ._base.signatures import readable
from ._batch.batch import Batch
from ._batch.packed import Packed
from ._batch.show import show
from ._data.data import Data, concat
from ._data.open import open
from ._loader.external import Scores
from ._loader.loader import Loader
from ._loader.stage import stage
from ._loader.topics import Cache, Reading, Sampling
from ._loss.columns import SampleScores
from ._loss.cross_entropy import cross_entropy
from ._loss.linear_cross_entropy import linear_cross_entropy
from ._loss.sample_scores import sample_scores
from ._native import __version__
from ._transform.image import ImageTransform

__all__ = [
    "Batch",
    "Cache",
    "CounterError",
    "Data",
    "DeviceError",
    "Error",
    "ImageTransform",
    "InternalError",
    "KeywordError",
    "Loader",
    "MemoryLimitError",
    "OutageError",
    "Packed",
    "Reading",
    "ResumeWarning",
    "SampleError",
    "SampleScores",
    "Sampling",
    "Scores",
    "SettingsError",
    "SourceError",
    "ThreadWarning",
    "TimeoutError",
    "TrainingWarning",
    "UsageError",
    "__version__",
    "concat",
    "cross_entropy",
    "linear_cross_entropy",
    "open",
    "sample_scores",
    "show",
    "stage",
]

# What users see: in tracebacks, in help and in pickles.
for _name in set(__all__) - {"__version__"}:
    globals()[_name].__module__ = "lossfeed"
    readable(globals()[_name])
