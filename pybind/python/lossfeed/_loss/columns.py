"""What one read of the logits tells about every sample: a column for each measurement. Nothing here imports torch."""

from typing import Any, NamedTuple

from .._base.checks import choice, whole
from .._base.errors import SettingsError
from .._base.memory import check_dense, compiling, dtype_name, is_tensor

#: Added to a rank count before the logarithm: SHADE's published code (the paper leaves it open).
RANK_BASE = 10.0

#: Float types the kernels read.
LOGIT_DTYPES = ("float16", "bfloat16", "float32", "float64")

#: How the losses of a sample's positions become the loss of the sample.
SEQUENCES = ("mean", "max", "sum")

#: What ``correct`` holds for a row that is ignored.
IGNORED = 255


class SampleScores(NamedTuple):
    """Per-sample measurements, each in the shape of ``target``.

    Floats are float32 (float64 for float64 logits). In a row whose target is ``ignore_index``: loss 0, ``grad_norm``
    and ``entropy`` NaN, ``correct`` False, ``rank_count`` -1, ``rank_score`` NaN.
    """

    loss: Any
    """Cross entropy, lse(z) - z_y, in nats."""
    grad_norm: Any
    """sqrt(sum p^2 - 2 p_y + 1): the norm of the loss's gradient at the logits, which bounds the sample's gradient."""
    entropy: Any
    """Entropy of softmax(z), in nats."""
    correct: Any
    """Whether the first largest logit is the target's (bool)."""
    rank_count: Any
    """int32: how many rows of the batch have a strictly smaller loss; -1 for ignored, NaN or infinite losses."""
    rank_score: Any
    """float32: ln(rank_count + 10); NaN where there is no rank."""


class Columns(NamedTuple):
    """What was measured of rows: tensors or arrays of one dimension. None is a column that nobody measured."""

    loss: Any
    grad_norm: Any = None
    entropy: Any = None
    correct: Any = None
    """uint8: 1 where the first largest logit is the target's, :data:`IGNORED` where the row does not count."""
    rank_count: Any = None
    rank_score: Any = None


def check_logits(logits: Any, target: Any) -> tuple[int, tuple[int, ...]]:
    """The number of classes, and the target's shape.

    Raises:
        SettingsError: shapes or dtypes that do not fit, with both.
    """
    shape = tuple(getattr(logits, "shape", ()))
    wanted = () if len(shape) == 1 else (shape[:1] + shape[2:])
    if not shape:
        raise SettingsError(
            f"logits must be a torch tensor or NumPy array of shape (C,), (B, C) or (B, C, d1, …), not {logits!r}"
        )
    if dtype_name(logits) not in LOGIT_DTYPES:
        raise SettingsError(f"logits of {logits.dtype} cannot be scored: use float16, bfloat16, float32 or float64")
    kind = str(getattr(target, "dtype", ""))
    if "int" not in kind:
        raise SettingsError(
            f"target must hold class indices of an integer type, not {kind or type(target).__name__}"
        )
    if tuple(target.shape) != wanted:
        last = f", or {shape[:2]} with logits.transpose(1, 2) if the last axis are the classes" if len(shape) == 3 else ""
        raise SettingsError(
            f"target of shape {tuple(target.shape)} does not fit logits of shape {shape}: it must be {wanted}{last}"
        )
    classes = shape[0] if len(shape) == 1 else shape[1]
    if classes == 0:
        raise SettingsError(f"logits of shape {shape} have no classes")
    return classes, wanted


def known(target: Any) -> Any:
    """`target`, unless it is None: samples of any structure may have none."""
    if target is None:
        raise SettingsError(
            "these samples have no known target: pass target=, or open the dataset with lf.open(…, target='key')"
        )
    return target


def check_losses(losses: Any, grad_norms: Any, entropies: Any = None) -> None:
    """Refuses losses, and norms and entropies beside them, that are not one float a sample."""
    for name, column in (("losses", losses), ("grad_norms", grad_norms), ("entropies", entropies)):
        if column is None:
            continue
        if is_tensor(column) is not is_tensor(losses) or not hasattr(column, "dtype"):
            raise SettingsError(
                f"{name} are {type(column).__name__}, beside losses of {type(losses).__name__}: give both in one library"
            )
        if tuple(column.shape) != tuple(losses.shape) or len(column.shape) != 1:
            raise SettingsError(f"{name} have shape {tuple(column.shape)}: give one number a sample, (B,)")
        if dtype_name(column) not in LOGIT_DTYPES:
            raise SettingsError(f"{name} have dtype {dtype_name(column)}: give floats")


def check_rows(name: str, values: Any, samples: int) -> None:
    """Refuses values that do not have one row for each sample of a batch."""
    if tuple(getattr(values, "shape", ()))[:1] != (samples,):
        raise wrong_rows(name, values, samples)
    if not compiling():
        check_dense(name, values)


def wrong_rows(name: str, values: Any, samples: int) -> SettingsError:
    """What :func:`check_rows` says."""
    shape = tuple(getattr(values, "shape", ()))
    if not shape:
        kind = type(values).__name__
        return SettingsError(f"{name} must be a torch tensor or NumPy array with one row a sample, not {kind}")
    several = name == "logits" and len(shape) == 2 and 0 < samples < shape[0] and shape[0] % samples == 0
    tokens = f", or {shape[0]} tokens with target= of shape {(samples, shape[0] // samples)}" if several else ""
    return SettingsError(
        f"{name} of shape {shape} for a batch of {samples} samples: give one row a sample of this very batch, in its "
        f"order{tokens}"
    )


def check_sequence(sequence: Any) -> None:
    """Refuses a word that is not in :data:`SEQUENCES`."""
    choice("sequence", sequence, *SEQUENCES)


def check_ignored(ignore_index: Any) -> None:
    """Refuses what can be no target's number."""
    if type(ignore_index) is not int or not -(2**63) <= ignore_index < 2**63:
        whole("ignore_index", ignore_index, -(2**63))


def per_sample(xp: Any, columns: Columns, samples: int, sequence: str) -> Columns:
    """One row a sample, made of the rows of its positions; `xp` is the library of the columns.

    The loss is the mean, the largest or the sum over the positions that count; the rest is their mean. It is NaN
    where no position counts. The mean of the gradient norms bounds the norm of the mean gradient. Ranks are left to
    be counted.
    """
    kept = (columns.correct != IGNORED).reshape(samples, -1)
    share = kept.sum(1)
    some = xp.where(share > 0, share, xp.nan)

    def total(column: Any) -> Any:
        column = column.reshape(samples, -1)
        return xp.where(kept, column, xp.zeros_like(column)).sum(1)

    if sequence == "mean":
        loss = total(columns.loss) / some
    elif sequence == "sum":
        loss = xp.where(share > 0, total(columns.loss), xp.nan)
    else:
        loss = columns.loss.reshape(samples, -1)
        # A cross entropy is never negative: 0 is below every loss that counts, and NaN stays NaN.
        loss = xp.where(share > 0, xp.amax(xp.where(kept, loss, xp.zeros_like(loss)), 1), xp.nan)
    return Columns(loss, total(columns.grad_norm) / some, total(columns.entropy) / some)


def per_document(xp: Any, columns: Columns, samples: Any, count: int, sequence: str) -> Columns:
    """:func:`per_sample` of packed rows: row r is a position of sample ``samples[r]`` of `count`, or of none (-1)."""
    owner = xp.where(columns.correct != IGNORED, samples, -1)
    share = summed(xp, owner, xp.ones_like(columns.loss), count)
    some = xp.where(share > 0, share, xp.nan)
    if sequence == "mean":
        loss = summed(xp, owner, columns.loss, count) / some
    elif sequence == "sum":
        loss = xp.where(share > 0, summed(xp, owner, columns.loss, count), xp.nan)
    else:
        # A cross entropy is never negative: 0 is below every loss that counts.
        place = xp.where(owner >= 0, owner, count)
        if is_tensor(columns.loss):
            largest = columns.loss.new_zeros(count + 1).scatter_reduce(0, place, columns.loss, "amax")
        else:
            largest = xp.zeros(count + 1, dtype=columns.loss.dtype)
            xp.maximum.at(largest, place, columns.loss)
        loss = xp.where(share > 0, largest[:count], xp.nan)
    rest = (columns.grad_norm, columns.entropy)
    return Columns(loss, *(None if column is None else summed(xp, owner, column, count) / some for column in rest))


def summed(xp: Any, owner: Any, values: Any, count: int) -> Any:
    """The sums of `values` by owner, 0 to `count` - 1; -1 is nobody's. Nothing on a device is waited for."""
    place = xp.where(owner >= 0, owner, count)
    if is_tensor(values):
        return values.new_zeros(count + 1).index_add(0, place, values)[:count]
    return xp.bincount(place, weights=values, minlength=count + 1).astype(values.dtype)[:count]


def own_means(xp: Any, owner: Any, count: int, losses: Any) -> Any:
    """Losses of tokens as means over each sample's own; NaN of a sample without any."""
    flat = losses.reshape(-1)
    share = summed(xp, owner, xp.ones_like(flat), count)
    return summed(xp, owner, flat, count) / xp.where(share > 0, share, xp.nan)


def check_packed_logits(logits: Any, documents: Any) -> None:
    """Refuses logits that are not ``(rows, C, length)`` or ``(rows · length, C)`` of a packed batch."""
    rows, length = documents.samples.shape
    shape = tuple(getattr(logits, "shape", ()))
    fits = (shape[0], shape[2]) == (rows, length) if len(shape) == 3 else len(shape) == 2 and shape[0] == rows * length
    if not fits:
        raise SettingsError(
            f"logits of shape {shape} for a packed batch of {rows} rows of {length} tokens: give {(rows, 'C', length)}, as "
            f"logits.transpose(1, 2) is, or {(rows * length, 'C')}"
        )
    if not compiling():
        check_dense("logits", logits)
