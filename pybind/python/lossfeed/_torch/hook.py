"""The loss hook for tensors: logits or losses of a batch become scores of exactly its samples.

Each function here chooses a way home once (:func:`lossfeed._torch.routes.choose`), measures, and sends the columns. Before
that, a call on a CUDA device that is like an earlier one takes that one's plan (:mod:`lossfeed._torch.plans`), which has
everything decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .._base.checks import choice, flag, real
from .._base.errors import SettingsError
from .._batch.documents import owned
from .._loss.columns import (
    SEQUENCES,
    Columns,
    check_ignored,
    check_logits,
    check_losses,
    check_packed_logits,
    check_rows,
    check_sequence,
    known,
    own_means,
    per_document,
)
from .._loss.tokens import by_sample, laid_out, token_losses
from . import cross_entropy as _cross_entropy, cuda, elementwise
from .forward import Reduction, class_rows
from .routes import Way, choose

if TYPE_CHECKING:
    from .._batch.batch import Batch
    from .._loss.scoring import Account
    from .._transform.mixing import Mix


def score(account: Account, logits: Any, batch: Batch, ignore_index: int, sequence: str) -> None:
    """See :meth:`lossfeed.Loader.score`."""
    plans = account.plans if batch.documents is None else None
    if plans is not None and sequence in SEQUENCES and type(ignore_index) is int and not torch.compiler.is_compiling():
        if plans.score(account, logits, batch, ignore_index):
            return
    check_sequence(sequence)
    check_ignored(ignore_index)
    target = _beside(known(batch.target), logits.device)
    logits, target, by_token = laid_out(logits, target, batch)
    packed = _owners(batch, target)
    if packed is None:
        check_rows("logits", logits, logits.shape[0] if by_token else batch.ids.shape[0])
    else:
        target = _packed_target(logits, target, packed, batch, ignore_index)
    check_logits(logits, target)
    _score(choose(account, batch, logits.device), logits, target, ignore_index, sequence, packed, batch.ids.shape[0])


def score_losses(account: Account, losses: Any, batch: Batch, grad_norms: Any, entropies: Any) -> None:
    """See :meth:`lossfeed.Loader.score_losses`."""
    losses, entropies = by_sample(torch, losses, batch), by_sample(torch, entropies, batch)
    check_rows("losses", losses, batch.ids.shape[0])
    check_losses(losses, grad_norms, entropies)
    columns = [None if column is None else column.detach() for column in (losses, grad_norms, entropies)]
    choose(account, batch, losses.device).send(Columns(*columns))


def cross_entropy(
    account: Account,
    logits: Any,
    batch: Batch,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    weighted: bool,
    sequence: str,
    overwrite_logits: bool,
) -> Any:
    """See :meth:`lossfeed.Loader.cross_entropy`."""
    plans = account.plans if batch.documents is None else None
    mix = batch.mix if target is None else None
    plain = weight is None and mix is None and sequence in SEQUENCES and type(ignore_index) is int
    if plans is not None and plain and not torch.compiler.is_compiling():
        mine, weights = batch.target if target is None else target, batch.weight if weighted else None
        settings = ignore_index, reduction, label_smoothing, overwrite_logits
        done = plans.cross_entropy(logits, mine, *settings, account, batch, weights)
        if done is not None:
            return done
    _check_keywords(reduction, sequence, ignore_index, label_smoothing, weighted, overwrite_logits)
    samples = batch.ids.shape[0]
    target = known(batch.target if target is None else target)
    if not isinstance(logits, torch.Tensor):
        _check_tensor("logits", logits, samples, "; score NumPy logits with loader.score")
    target = _beside(target, logits.device)
    if not target.is_floating_point():
        target = target.to(torch.int64)
    of_tokens = logits.shape[:-1]
    by_token, packed = False, None
    if logits.dim() != 2 or target.dim() != 1 or logits.shape[0] != samples or batch.documents is not None:
        logits, target, by_token, packed = _positions(logits, target, batch, ignore_index)
    if weight is not None:
        weight = _check_weight(logits, weight)
    settings_of_rows = weight, ignore_index, label_smoothing
    takes = _cross_entropy.takes(logits, target, weight, label_smoothing)
    if not takes:
        _check_call(logits, target)
    way = choose(account, batch, logits.device)

    if takes:
        # A launch that measures a row a sample takes the scores home itself.
        unmailed = cuda.UNSEEN if way.home.losses_suffice else cuda.NOWHERE
        home = way.home if target.numel() == samples and packed is None else unmailed
        how = None
        if way.reduces and reduction != "none" and mix is None and packed is None:
            shares = _beside(batch.weight, logits.device).to(torch.float32).contiguous() if weighted else None
            how = Reduction(reduction == "mean", _cross_entropy.result_dtype(logits), shares)
        # A mixed loss reads the logits twice in its backward.
        overwrite = overwrite_logits and mix is None
        found = _cross_entropy.row_losses(logits, target, *settings_of_rows, overwrite, home, how)
        if not home.mail:
            columns = found.columns
            way.send(columns if packed is None else _of_documents(columns, packed, samples, sequence), sequence)
        if how is not None:
            return found.term
        terms, share, shape = found.term, found.share, target.shape
    else:
        terms, share, shape = _torchs(logits, target, *settings_of_rows)
        _score_beside(way, logits, target, ignore_index, sequence, packed, samples)

    if mix is not None:
        terms, share = _mixed(terms, share, mix, logits, target, settings_of_rows, takes, samples)
    if weighted:
        terms = terms * _weights(batch, logits.device, terms.numel() // max(1, samples), packed)
    shape = tuple(of_tokens) if by_token else shape
    return _cross_entropy.reduced(terms, share, reduction, shape).to(_cross_entropy.result_dtype(logits))


def _check_keywords(
    reduction: str, sequence: str, ignore_index: int, label_smoothing: float, weighted: bool, overwrite_logits: bool
) -> None:
    _check_reduction(reduction)
    check_sequence(sequence)
    check_ignored(ignore_index)
    flag("weighted", weighted)
    flag("overwrite_logits", overwrite_logits)
    if not isinstance(label_smoothing, (int, float)) or not 0.0 <= label_smoothing <= 1.0:
        real("label_smoothing", label_smoothing, 0.0, 1.0)


def _positions(
    logits: torch.Tensor, target: torch.Tensor, batch: Batch, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, bool, torch.Tensor | None]:
    """Logits and targets of several positions a sample, as torch takes them; whether the classes came last; and the
    sample of each token, where samples are packed."""
    samples, by_token = batch.ids.shape[0], False
    if logits.dim() != 2 or target.dim() != 1 or logits.shape[0] != samples:
        logits, target, by_token = laid_out(logits, target, batch)
    packed = _owners(batch, target)
    if packed is None:
        if not by_token and logits.shape[:1] != (samples,):
            _check_tensor("logits", logits, samples)
        return logits, target, by_token, None
    packed = _beside(packed, logits.device)
    return logits, _packed_target(logits, target, packed, batch, ignore_index), by_token, packed


def _score_beside(
    way: Way,
    logits: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
    sequence: str,
    packed: torch.Tensor | None,
    samples: int,
) -> None:
    """Scores of a call whose loss torch computes."""
    if target.is_floating_point():
        way.send(_of_probabilities(logits, target, samples))
    else:
        check_logits(logits, target)
        _score(way, logits, target, ignore_index, sequence, packed, samples)


def _mixed(
    terms: torch.Tensor,
    share: torch.Tensor,
    mix: Mix,
    logits: torch.Tensor,
    target: torch.Tensor,
    settings: tuple[torch.Tensor | None, int, float],
    takes: bool,
    samples: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """lam times the losses at the own targets, and what is left of 1 times those at the partners'; their shares so too."""
    partner = _beside(known(mix.target), logits.device).to(target.dtype).reshape(target.shape)
    if takes:
        other = _cross_entropy.row_losses(logits, partner, *settings, False)
        more, its_share = other.term, other.share
    else:
        more, its_share, _ = _torchs(logits, partner, *settings)
    lam = _a_position(_beside(mix.lam, logits.device), terms.numel() // max(1, samples)).to(terms.dtype)
    # What is not seen at all counts for nothing, infinite losses too.
    more = torch.where(lam < 1, more, torch.zeros_like(more))
    return lam * terms + (1 - lam) * more, lam * share + (1 - lam) * its_share


def loss(
    account: Account,
    kind: str,
    prediction: Any,
    batch: Batch,
    target: Any,
    reduction: str,
    weighted: bool,
    options: dict[str, Any],
) -> Any:
    """See :meth:`lossfeed.Loader.loss`."""
    _check_reduction(reduction)
    flag("weighted", weighted)
    target, mix = known(batch.target if target is None else target), batch.mix if target is None else None
    packed = _owners(batch, target)
    _check_tensor("prediction", prediction, batch.ids.shape[0] if packed is None else target.shape[0])
    target = _beside(target, prediction.device)
    owners = None if packed is None else (_beside(packed, prediction.device), batch.ids.shape[0])
    losses, grad_norms = elementwise.sample_losses(kind, prediction, target, options, owners)
    choose(account, batch, losses.device).send(Columns(losses.detach(), grad_norms))
    if mix is not None:
        partner = _beside(known(mix.target), prediction.device)
        lam = _beside(mix.lam, losses.device).to(losses.dtype)
        more = elementwise.sample_losses(kind, prediction, partner, options)[0]
        losses = lam * losses + (1 - lam) * torch.where(lam < 1, more, torch.zeros_like(more))
    if packed is not None:
        # A sample without tokens has a score of NaN, and no loss.
        losses = torch.where(_empty(packed, batch, losses.device), torch.zeros_like(losses), losses)
    if weighted:
        losses = losses * _weights(batch, losses.device, 1)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def weighted_mean(account: Account, losses: Any, batch: Batch, grad_norms: Any, entropies: Any) -> torch.Tensor:
    """See :meth:`lossfeed.Loader.weighted_mean`."""
    samples = batch.ids.shape[0]
    tokens = token_losses(losses, batch)
    losses = losses if tokens is None else tokens
    packed = _owners(batch, losses)
    if not isinstance(losses, torch.Tensor) or (packed is None and losses.shape[:1] != (samples,)):
        found = f"shape {tuple(losses.shape)}" if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise SettingsError(
            f"losses must be a torch tensor of {samples} rows, one a sample, before any reduction "
            f"(reduction='none'), not {found}"
        )
    if not losses.is_floating_point():
        raise SettingsError(f"losses have dtype {losses.dtype}: give floats")
    if losses.numel() == 0 and samples > 0:
        raise SettingsError(f"losses of shape {tuple(losses.shape)} are empty: there is no mean to compute")
    if packed is not None:
        packed = _beside(packed, losses.device)
        tokens = losses if losses.dim() == 2 else losses.flatten(2).mean(2)
        mine: torch.Tensor = own_means(torch, packed, samples, tokens)
    else:
        mine = losses if losses.dim() == 1 else losses.flatten(1).mean(1)
    score_losses(account, mine if tokens is None else tokens, batch, grad_norms, entropies)
    if packed is not None:
        mine = torch.where(_empty(packed, batch, mine.device), torch.zeros_like(mine), mine)
    return (mine * _weights(batch, mine.device, 1)).mean()


def _score(
    way: Way,
    logits: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
    sequence: str,
    packed: torch.Tensor | None = None,
    samples: int = 0,
) -> None:
    columns = way.measure(class_rows(logits.detach()), target.reshape(-1), ignore_index)
    if columns is not None:
        way.send(columns if packed is None else _of_documents(columns, packed, samples, sequence), sequence)


def _of_documents(columns: Columns, packed: torch.Tensor, samples: int, sequence: str) -> Columns:
    """A row of each sample, of those of its tokens."""
    return per_document(torch, columns, packed.to(columns.loss.device), samples, sequence)


def _owners(batch: Batch, values: Any) -> Any:
    """The sample of each packed token, ``(rows · length,)``, if `values` have a number a token; else None."""
    documents = batch.documents
    if documents is None or not owned(documents, values):
        return None
    device = values.device if isinstance(values, torch.Tensor) else torch.device("cpu")
    return _beside(documents.samples, device).reshape(-1)


def _empty(packed: torch.Tensor, batch: Batch, device: torch.device) -> torch.Tensor:
    """Which samples of a packed batch have no token."""
    found = torch.zeros(batch.ids.shape[0] + 1, dtype=torch.bool, device=device)
    packed = packed.to(device)
    found[torch.where(packed >= 0, packed, batch.ids.shape[0])] = True
    return ~found[:-1]


def _packed_target(
    logits: torch.Tensor, target: torch.Tensor, packed: torch.Tensor, batch: Batch, ignore_index: int
) -> torch.Tensor:
    """Packed targets in the order of `logits`, with `ignore_index` in the place of filling."""
    assert batch.documents is not None
    check_packed_logits(logits, batch.documents)
    if target.is_floating_point():
        raise SettingsError(
            "class probabilities cannot be targets of a packed batch: use F.cross_entropy(logits, target, "
            "reduction='none') in "
            "the shape (rows, length), and loader.weighted_mean(losses, batch)"
        )
    target = torch.where(packed.reshape(target.shape) >= 0, target, ignore_index)
    return target.reshape(-1) if logits.dim() == 2 else target


@torch.no_grad()
def _of_probabilities(logits: torch.Tensor, target: torch.Tensor, samples: int) -> Columns:
    """The columns of samples whose targets are probabilities: means over their positions, in torch's operators."""
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    z, q = class_rows(logits.detach()).to(real), class_rows(target.detach()).to(real)
    log_p = torch.log_softmax(z, 1)
    p = log_p.exp()
    loss = F.cross_entropy(logits.detach(), target.detach(), reduction="none").to(real).reshape(-1)
    # The gradient of the loss at the logits; with class indices it is that of `Columns.grad_norm`.
    grad_norm = torch.linalg.vector_norm(p * q.sum(1, keepdim=True) - q, dim=1)
    entropy = -torch.where(p == 0, torch.zeros_like(p), p * log_p).sum(1)
    return Columns(*(column.reshape(samples, -1).mean(1) for column in (loss, grad_norm, entropy)))


def _torchs(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """torch's own losses, a row a target; what each adds to the denominator of a mean; and their shape."""
    settings: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    terms = F.cross_entropy(logits, target, reduction="none", **settings)
    shape, terms = terms.shape, terms.reshape(-1)
    if target.is_floating_point():
        return terms, torch.ones_like(terms), shape
    return terms, _shares(target.reshape(-1), weight, ignore_index, terms.dtype), shape


def _shares(
    labels: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, dtype: torch.dtype
) -> torch.Tensor:
    """What each row adds to the denominator of a mean."""
    valid = labels != ignore_index
    if weight is None:
        return valid.to(dtype)
    return torch.where(valid, weight[torch.where(valid, labels, torch.zeros_like(labels))], valid.to(dtype))


def _weights(
    batch: Batch, device: torch.device, positions: int, packed: torch.Tensor | None = None
) -> torch.Tensor:
    """The batch's weights, one for each of a sample's positions, or of packed tokens; filling has the last one's."""
    if packed is not None:
        return _beside(batch.weight, device)[packed]
    return _a_position(_beside(batch.weight, device), positions)


def _a_position(values: torch.Tensor, positions: int) -> torch.Tensor:
    """A value a sample as one for each of its positions."""
    return values if positions == 1 else values.repeat_interleave(positions)


def _beside(value: Any, device: torch.device) -> torch.Tensor:
    """`value` as a tensor on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise SettingsError(f"a target of {type(value).__name__} is not a tensor or array of numbers: {cause}") from None
    return tensor.to(device, non_blocking=True)


def _check_reduction(reduction: str) -> None:
    choice("reduction", reduction, *_cross_entropy.REDUCTIONS)


def _check_tensor(name: str, value: Any, samples: int, remedy: str = "") -> None:
    """Refuses what is no tensor with one row a sample."""
    if not isinstance(value, torch.Tensor):
        raise SettingsError(f"{name} must be a torch tensor, not {type(value).__name__}{remedy}")
    check_rows(name, value, samples)


def _check_call(logits: torch.Tensor, target: torch.Tensor) -> None:
    """Refuses a cross entropy that nobody can take, before torch does in words of its own."""
    check_rows("logits", logits, logits.shape[0])
    if not target.is_floating_point():
        check_logits(logits, target)
    elif target.shape != logits.shape:
        raise SettingsError(
            f"target of shape {tuple(target.shape)} holds floats, which are probabilities in the shape of logits, "
            f"{tuple(logits.shape)}; class indices are integers"
        )
    elif not logits.is_floating_point():
        raise SettingsError(f"logits of {logits.dtype} have no cross entropy: give floats")


def _check_weight(logits: torch.Tensor, weight: Any) -> torch.Tensor:
    """A weight for each class, beside the logits."""
    classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
    if not isinstance(weight, torch.Tensor) or weight.shape != (classes,):
        found = f"shape {tuple(weight.shape)}" if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise SettingsError(f"weight of {found}: give a tensor of {classes} numbers, one a class")
    return weight.to(device=logits.device, dtype=logits.dtype)
