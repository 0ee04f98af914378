"""The native half. Private: its calls are what the Python layer needs, and change with it."""

from os import PathLike
from typing import Any, Callable, Iterator, Literal, Sequence
from typing_extensions import Buffer as _Buffer

__version__: str
_Spec = tuple[str, list[int]]
_AnySpec = tuple[str, tuple[int, ...]] | _Spec

class Buffer:
    """Bytes of ours under the buffer protocol, writable; they live as long as this object."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Source:
    """An opened dataset and how its samples are decoded."""

    def __len__(self) -> int: ...
    def describe(self) -> str: ...
    def name(self, id: int) -> str: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def labels(self) -> Buffer | None: ...
    @property
    def spec(self) -> _Spec: ...
    @property
    def fields(self) -> list[_Spec]: ...
    @property
    def target_spec(self) -> _Spec: ...
    @property
    def images(self) -> bool: ...
    @property
    def pieces(self) -> list[tuple[str, str, str]]: ...
    def better_form(self) -> Literal["encoded", "decoded"]: ...
    def cache_bytes(self, form: str) -> int: ...
    def subset(self, ids: list[int]) -> Source: ...
    def split(self, first: int, seed: int) -> tuple[Source, Source]: ...
    def concat(self, others: list[Source]) -> Source: ...
    def limit(self, bytes_per_s: int | None) -> bool: ...
    def sample(self, id: int) -> tuple[Buffer, Buffer]: ...

class Slot:
    """A filled batch slot; it returns to its pool with its last view."""

    @property
    def rows(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    def is_scarce(self) -> bool: ...
    def fields(self) -> list[Buffer]: ...
    def tails(self, kinds: list[tuple[str, int]]) -> Tails: ...
    def ranges(self) -> list[tuple[int, int]]: ...

class Tails:
    """What a batch's samples have of no fixed size."""

    def shapes(self, number: int) -> list[list[int]]: ...
    def part(self, row: int, number: int) -> tuple[Buffer, list[int]]: ...
    def copied(self, row: int, number: int) -> bytes: ...
    def padded_with(self, number: int, fill: _Buffer) -> tuple[Buffer, list[int]]: ...
    def packed(self, number: int) -> tuple[Buffer, Buffer]: ...

class Ticket:
    """Which samples a batch delivers."""

    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    def __len__(self) -> int: ...

class Taken:
    """A batch on its way to the loop."""

    slot: Slot
    ticket: Ticket
    sent: Any

class Pass:
    """One pass over an epoch: its batches, from the moment they are taken until they are handed out."""

    handed_out: Taken
    begun: bool
    def __init__(self, engine: Engine) -> None: ...
    def begin(self, ids: _Buffer | None = None, ends: _Buffer | None = None) -> None: ...
    def take(self, timeout_s: float) -> Taken | None: ...
    def look_ahead(self, at: int = 0, wait: bool = False) -> Taken | None: ...
    def asks(self) -> None: ...
    def answered(self, waited_us: int) -> None: ...
    def abandon(self) -> None: ...

class Engine:
    """One rank's engine."""

    def __init__(self, source: Source, settings: str) -> None: ...
    def batches_per_epoch(self) -> int: ...
    def slot_bytes(self) -> int: ...
    def describe(self) -> tuple[str, str, float, str]: ...
    def weights_are_read(self) -> None: ...
    def epoch_report(self) -> str: ...
    def set_epoch(self, epoch: int) -> None: ...
    def epoch(self) -> int: ...
    def draw_weighted(self, weights: _Buffer) -> Buffer: ...
    def has_order(self) -> bool: ...
    def plan(self) -> tuple[Buffer, Buffer]: ...
    def workers(self) -> int: ...
    def seed(self) -> int | None: ...
    def resize_cache(self, bytes: int) -> int: ...
    def settle_seed(self, seed: int) -> None: ...
    def begin_exchange(self) -> tuple[str, bytes]: ...
    def agree(self, proposals: list[str]) -> bool: ...
    def end_exchange(self, proposals: list[str], news: list[bytes]) -> None: ...
    def apply_scores(
        self, ticket: Ticket, loss: _Buffer, grad_norm: _Buffer | None, entropy: _Buffer | None, count: _Buffer | None
    ) -> int: ...
    def apply_scores_to_ids(
        self, ids: _Buffer, loss: _Buffer, grad_norm: _Buffer | None, entropy: _Buffer | None, count: _Buffer | None
    ) -> int: ...
    def mailbox(self, ordinal: int, rows_max: int, slots: int = 16) -> Mailbox: ...
    def copy_path(self) -> tuple[str, list[tuple[str, float, float]]]: ...
    def courier(self) -> Courier: ...
    def importance(self) -> Buffer: ...
    def stats(self) -> list[tuple[str, float]]: ...
    def state(self, held: int) -> bytes: ...
    def load_states(self, states: list[bytes]) -> str | None: ...
    def damaged_scores(self) -> str | None: ...
    def bad_samples(self) -> list[tuple[int, str, str]]: ...
    def close(self, timeout_s: float | None) -> list[str]: ...

class Turns:
    """One thread at a time, for the objects at these addresses."""

    def __init__(self, addresses: list[int]) -> None: ...
    def __len__(self) -> int: ...
    def call(self, work: Callable[[], Any]) -> Any: ...

class Packing:
    """How the items of one dataset become rows. `tree` has the numbers of the leaves in their places."""

    def __init__(
        self, tree: Any, leaves: list[tuple[str, str, tuple[int, ...]]],
        tensor: tuple[type, Callable[[Any], Any], Any] | None, arrays: list[type],
    ) -> None: ...

class Rows:
    """Items as bytes: an answer to a call. Each is ``(data, target)`` or ``(words, exception, fatal)``."""

    def __init__(self, packing: Packing, count: int, seconds: float) -> None: ...
    def add(self, item: Any) -> bool | None: ...
    def put(self, answer: tuple[Any, ...]) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, k: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...

class Call:
    """A call that a loader thread waits for."""

    @property
    def ids(self) -> list[int]: ...
    def answer(self, answer: Rows | list[Any] | BaseException) -> None: ...

class CudaKernels:
    """The kernels of one CUDA device. Addresses are integers, 0 = none; `stream` is a raw handle."""

    def __init__(self, ordinal: int) -> None: ...
    @property
    def multiprocessors(self) -> int: ...
    def forward(
        self,
        stream: int,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        logits: int,
        targets: int,
        scratch: int,
        *,
        loss: int,
        max: int = 0,
        log_sum: int = 0,
        grad_norm: int = 0,
        entropy: int = 0,
        correct: int = 0,
        count: int = 0,
        rank_score: int = 0,
        weight: int = 0,
        weight_sum: int = 0,
        term: int = 0,
        share: int = 0,
        reduced: int = 0,
        mean: bool = True,
        narrow: bool = False,
        divisor: int = 0,
        sample_weight: int = 0,
        sample_rows: int = 1,
        error: int = 0,
        mail: int = 0,
        tag: int = 0,
        ids: int = 0,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        b0: float = 10.0,
    ) -> None: ...
    def backward(
        self,
        stream: int,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        logits: int,
        targets: int,
        *,
        max: int,
        log_sum: int,
        upstream: int,
        upstream_stride: int,
        gradient: int,
        gradient_stride: int,
        upstream_narrow: bool = False,
        divisor: int = 0,
        sample_weight: int = 0,
        sample_rows: int = 1,
        upstream_lse: int = 0,
        upstream_lse_stride: int = 0,
        weight: int = 0,
        weight_sum: int = 0,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None: ...
    def probabilities(
        self,
        stream: int,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        logits: int,
        probabilities: int,
        probability_stride: int,
        scratch: int,
        *,
        loss: int,
        max: int = 0,
        log_sum: int = 0,
        grad_norm: int = 0,
        entropy: int = 0,
        mass: int = 0,
        count: int = 0,
        rank_score: int = 0,
        weight: int = 0,
        mail: int = 0,
        tag: int = 0,
        ids: int = 0,
        label_smoothing: float = 0.0,
        b0: float = 10.0,
    ) -> None: ...
    def backward_probabilities(
        self,
        stream: int,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        logits: int,
        probabilities: int,
        probability_stride: int,
        *,
        max: int,
        log_sum: int,
        mass: int,
        upstream: int,
        upstream_stride: int,
        gradient: int,
        gradient_stride: int,
        weight: int = 0,
        label_smoothing: float = 0.0,
    ) -> None: ...
    def sequences(
        self,
        stream: int,
        double: bool,
        sequences: int,
        length: int,
        loss: int,
        correct: int,
        scratch: int,
        *,
        mean: int,
        grad_norm: int = 0,
        entropy: int = 0,
        max: int = 0,
        sum: int = 0,
        mean_grad_norm: int = 0,
        mean_entropy: int = 0,
        counted: int = 0,
        count: int = 0,
        rank_score: int = 0,
        mail: int = 0,
        tag: int = 0,
        ids: int = 0,
        rank_by: str = "mean",
        b0: float = 10.0,
    ) -> None: ...
    def ranks(
        self,
        stream: int,
        rows: int,
        losses: int,
        scratch: int,
        *,
        grad_norm: int = 0,
        entropy: int = 0,
        count: int = 0,
        rank_score: int = 0,
        mail: int = 0,
        tag: int = 0,
        ids: int = 0,
        b0: float = 10.0,
    ) -> None: ...
    def check(self, stream: int, mailbox: Mailbox | None = None) -> None: ...

class ScorePlan:
    """``loader.score`` for logits of one shape and type, a row a sample."""

    def __init__(
        self,
        kernels: CudaKernels,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        ignore_index: int,
        b0: float,
    ) -> None: ...
    @property
    def scratch_bytes(self) -> int: ...
    def launch(
        self,
        mailbox: Mailbox,
        ticket: Ticket | None,
        stream: int,
        logits: int,
        targets: int,
        scratch: int,
        ids: int = 0,
    ) -> bool: ...

class LossPlan:
    """A cross entropy of one shape, type and set of keywords that ends in one number, and its gradient."""

    def __init__(
        self,
        kernels: CudaKernels,
        dtype_name: str,
        rows: int,
        classes: int,
        row_stride: int,
        ignore_index: int,
        label_smoothing: float,
        mean: bool,
        narrow: bool,
        b0: float,
    ) -> None: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def settings(self) -> tuple[int, bool, float]: ...
    def forward(
        self,
        mailbox: Mailbox | None,
        ticket: Ticket | None,
        stream: int,
        logits: int,
        targets: int,
        sample_weight: int,
        out: int,
        kept: int,
        scratch: int,
        captured: bool = False,
        ids: int = 0,
    ) -> bool: ...
    def backward(
        self, stream: int, logits: int, targets: int, sample_weight: int, kept: int, upstream: int, gradient: int
    ) -> None: ...

class Courier:
    """Takes batches to one GPU on a stream of its own. Addresses and streams are integers."""

    @property
    def stream(self) -> int: ...
    def send(self, slot: Slot, block: int, after: int) -> Sent: ...
    def send_images(
        self, slot: Slot, transform: ImageTransform, key: int, rank: int, rest: int, pixels: int, made: int, after: int
    ) -> Sent: ...

class Sent:
    """The end of what was sent."""

    def wait_on(self, stream: int) -> None: ...

class ImageTransform:
    """What becomes of a dataset's pixels."""

    def __init__(
        self, source: Source, settings: str, crop: str | None, jitter: str | None, augment: str | None, retouches: bool
    ) -> None: ...
    @property
    def spec(self) -> _Spec: ...
    @property
    def random(self) -> bool: ...
    def pixels_bytes(self, rows: int) -> int: ...
    def mixed(self, key: int, rank: int) -> tuple[float, tuple[int, int, int, int, bool] | None] | None: ...
    @property
    def mixes(self) -> bool: ...
    @staticmethod
    def key(seed: int, epoch: int, number: int) -> int: ...

class Mailbox:
    """A mailbox on a GPU: what kernels mail to it is credited to its engine."""

    @property
    def address(self) -> int: ...
    @property
    def delivered_total(self) -> int: ...
    def register(self, ticket: Ticket) -> int: ...
    def losses_suffice(self) -> bool: ...
    def keep(self, address: int, owner: Any) -> None: ...
    def check(self) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> bool: ...

def without_secrets(text: str) -> str: ...
def open_source(
    url: str, *, mode: str, resize: tuple[int, int] | None, crop: tuple[int, int] | None, latency_s: float,
    bandwidth_bytes_per_s: int | None, connections: int, index_cache: str | PathLike[str] | None, timeout_s: float | None,
    store_options: list[tuple[str, str]], retry_timeout_s: float, checksums: bool, coalesce: bool, hedge: bool,
    disk: tuple[str, int] | None, fields: list[str], chaos: int | None,
) -> Source: ...  # fmt: skip
def crop_box(size: tuple[int, int], resize: tuple[int, int], crop: tuple[int, int]) -> tuple[float, float, float, float]: ...
def record_source(
    data: list[tuple[str, int, int | None, _AnySpec]],
    target: tuple[str, int, int | None, _AnySpec] | None,
    samples: int,
) -> Source: ...
def array_source(data: Sequence[tuple[_Buffer, _AnySpec]], target: _Buffer, target_spec: _AnySpec, samples: int) -> Source: ...
def dataset_source(
    fetch: Callable[[list[int]], Rows | list[Any]],
    readers: Any,
    turns: Turns,
    samples: int,
    data: Sequence[_AnySpec],
    tailed: bool,
    target_spec: _AnySpec,
    description: str,
    classes: list[str],
) -> Source: ...
def numbers_source(samples: int, description: str, classes: list[str]) -> Source: ...
def leave(timeout_s: float) -> int: ...
def forked() -> None: ...
def forward_rows(
    logits: _Buffer,
    dtype_name: str,
    rows: int,
    classes: int,
    row_stride: int,
    targets: _Buffer,
    ignore_index: int,
    b0: float,
    weight: _Buffer | None,
    label_smoothing: float,
) -> tuple[Buffer, Buffer, Buffer, Buffer, Buffer]: ...
def backward_rows(
    logits: _Buffer | None,
    dtype_name: str,
    rows: int,
    classes: int,
    row_stride: int,
    softmax: _Buffer,
    targets: _Buffer,
    ignore_index: int,
    weight: _Buffer | None,
    label_smoothing: float,
    upstream: _Buffer,
    out: _Buffer,
) -> None: ...
def rank_counts(losses: _Buffer) -> Buffer: ...
def use_torch_threads() -> bool: ...
def scratch_bytes(rows: int, classes: int) -> int: ...
def relax_captures() -> None: ...
def cache_policies() -> list[tuple[str, str, bool]]: ...
def policies_in_the_lab() -> list[str]: ...
def default_policy(sampler: str) -> str: ...
def sampler_options() -> list[tuple[str, list[str]]]: ...
def sampler_problem(settings: str) -> tuple[str, str] | None: ...
def exchange_refusal(rank: int, problem: str) -> str: ...
def cli_main(argv: list[str], train: Callable[[dict[str, Any]], int]) -> int: ...
