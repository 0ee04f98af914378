"""Training over a store that goes wrong: the right bytes or a named error, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

from . import checks, truth
from .case import Attack, Case
from .checks import Row
from .fault_store import FAULTS, QUICK, FaultStore

#: Faults that nothing in an answer shows. Pictures carry checksums of their own, so that it shows all the same.
SEEN_BY_PICTURES = ("flipped_bit", "shifted_silently")
#: Faults that change bytes, where one repeated read must be enough.
SPOILING = ("garbage", "wrong_content_length", "overlong_body", "full_200", "shifted_range", *SEEN_BY_PICTURES)
#: Another object's picture under this object's name, tag and size: only a checksum of every sample would show it.
UNSEEN = ("other_object_same_tag",)
HEALING = [name for name in QUICK if FAULTS[name].owes in ("heals", "harmless")]
#: A folder's name is asked for as an object's first. Its store may say 403 of what is not there, and who hears of an object
#: believes it: neither is asked again.
SAYS_WHAT_IS_THERE = [name for name in HEALING if not name.startswith(("status_5", "status_429", "reset_before"))]
SLOW = [name for name in FAULTS if name not in QUICK and name not in UNSEEN and name not in SEEN_BY_PICTURES]


def mix(case: Case) -> tuple[list[str], int]:
    """Faults drawn at random, and how many in a row one range may meet."""
    kind = case.rng.choice(("healing", "healing", "any", "spoiling", "slow"))
    if kind == "healing":
        return case.rng.sample(HEALING, case.rng.randrange(1, 5)), case.rng.choice((1, 2))
    if kind == "spoiling":
        return case.rng.sample(SPOILING, case.rng.randrange(1, 4)), 1
    if kind == "slow":
        return [case.rng.choice(SLOW), case.rng.choice(HEALING)], 1
    return case.rng.sample([name for name in FAULTS if name not in UNSEEN], 6), case.rng.choice((1, 2))


def where(kind: str, store: FaultStore) -> tuple[str, dict[str, Any]]:
    """What to open of the store: shards over HTTP, shards or a folder over S3."""
    if kind == "http":
        return store.url + "/train-{0..1}.tar", {}
    return store.s3_url + ("/train-*.tar" if kind == "s3-tar" else "/train"), {"store_options": store.store_options}


def deliver(case: Case, loader: Any, data: truth.Truth, epochs: int, about: str, heals: bool) -> bool:
    """Trains; holds what came to the truth. Whether it came to the end."""
    import lossfeed as lf

    log: list[Row] = []
    error = None
    try:
        for _ in range(epochs):
            for batch in loader:
                log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
    except lf.Error as named:
        error = named
    case.none_of(checks.right_bytes(log, data.sums), about)
    bad = loader.bad_samples()
    case.check(not bad, f"{about}: {len(bad)} samples are called bad that the store holds intact; the first: {bad[:1]}")
    if heals:
        case.check(
            error is None, f"{about}: every fault heals when asked again, and yet: {type(error).__name__}: {error}"
        )
    if error is None:
        case.none_of(checks.each_id_once([log], len(data), epochs), about)
    return error is None


def training(case: Case, kind: str) -> None:
    """Some trainings, each over a store with a mix of faults of its own."""
    import lossfeed as lf

    n = case.size(48, 24)
    data = truth.build("folder" if kind == "s3-folder" else "tar", n, case.rng.randrange(2**32), case.place / "data")
    for trial in range(case.size(6, 2)):
        faults, in_a_row = mix(case)
        rate = case.rng.choice((0.02, 0.1, 0.25))
        head_fault = case.rng.choice(HEALING)
        if kind == "s3-folder" and head_fault in SAYS_WHAT_IS_THERE:
            head_fault = "status_503"
        store = FaultStore(
            case.place / "data",
            faults,
            rate=rate,
            seed=case.rng.randrange(2**32),
            in_a_row=in_a_row,
            tags=case.rng.random() < 0.8,
            honours_if_match=case.rng.random() < 0.7,
            head_faults=[head_fault] if case.rng.random() < 0.2 else [],
            listing_faults=["status_503"] if case.rng.random() < 0.2 else [],
            hold_s=0.5,
            slow_s=0.2,
            endless_bytes=8 << 20,
        )
        opening = {"connections": case.rng.choice((1, 2, 8)), "timeout": 20.0}
        if kind != "s3-folder" and case.rng.random() < 0.5:
            opening["index_cache"] = str(case.place / "index")
        settings = {
            "on_error": case.rng.choice(("raise", "skip", "substitute")),
            "num_workers": case.rng.randrange(3),
            "cache": case.rng.choice((None, "50%", 1.0)),
            "cache_form": case.rng.choice(("encoded", "decoded")),
            "seed": case.rng.randrange(2**32),
        }
        if settings["on_error"] == "substitute":
            settings["on_error"] = "skip"  # ids would come twice where a sample is bad, and none may be bad
        about = f"{kind}, trial {trial}: {faults} at {rate}, {in_a_row} in a row, {opening}, {settings}"
        with store:
            pattern, options = where(kind, store)
            heals = all(FAULTS[name].owes in ("heals", "harmless") and name in QUICK for name in faults)
            try:
                opened = lf.open(pattern, **opening, **options)
            except lf.Error as error:
                case.check(
                    not heals, f"{about}: every fault heals when asked again, and yet it was not opened: {error}"
                )
                case.count("refused")
                continue
            with lf.Loader(opened, 6, shuffle=True, framework="numpy", stats=False, **settings) as loader:
                case.count("trained" if deliver(case, loader, data, 2, about, heals) else "refused")
            case.count("faults", sum(store.counts.values()))


def outage(case: Case) -> None:
    """The store is gone for a while in mid-epoch, under skip: nothing is bad data, and the rest comes after it."""
    import lossfeed as lf

    n = case.size(48, 24)
    data = truth.build("tar", n, case.rng.randrange(2**32), case.place / "data")
    for _ in range(case.size(4, 2)):
        with FaultStore(case.place / "data", hold_s=0.5) as store:
            opened = lf.open(store.url + "/train-{0..1}.tar", timeout=20.0)
            requests, fault = (
                case.rng.randrange(1, 12),
                case.rng.choice(("status_503", "reset_before_headers", "status_500")),
            )
            about = f"{requests} requests met {fault}"
            settings = {
                "num_workers": case.rng.randrange(3),
                "on_error": "skip",
                "cache": case.rng.choice((None, "50%")),
            }
            with lf.Loader(opened, 4, shuffle=True, framework="numpy", stats=False, **settings) as loader:
                log: list[Row] = []
                down_after = case.rng.randrange(1, 5)
                try:
                    for batch in loader:
                        log.append(Row(0, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
                        if len(log) == down_after:
                            store.outage(requests, fault)
                except lf.Error as error:
                    case.check(
                        isinstance(error, lf.SourceError),
                        f"{about}: an outage was told as {type(error).__name__}: {error}",
                    )
                else:
                    case.none_of(checks.each_id_once([log], n, 1), about)
                case.none_of(checks.right_bytes(log, data.sums), about)
                case.check(
                    not loader.bad_samples(), f"{about}: an outage was taken for bad data: {loader.bad_samples()[:2]}"
                )


ATTACK = Attack(
    "faults",
    {
        "http": lambda case: training(case, "http"),
        "s3-tar": lambda case: training(case, "s3-tar"),
        "s3-folder": lambda case: training(case, "s3-folder"),
        "outage": outage,
    },
    share=4.0,
    deadline_s=900.0,
)
