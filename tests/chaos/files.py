"""Damaged files: states, pages, indexes, shards, pictures, traces.

Each gives an error by name or the right data, and never takes much memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import checks, jpegs, mutate, pngs, truth
from .case import Attack, Case
from .checks import Row

#: Resident memory that reading damaged files may add to a process, in KiB.
GROWTH_KIB = 128 << 10
PROGRAM_S = 60.0


def peak_kib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def log_of(loader: Any) -> list[Row]:
    """One pass, with checksums."""
    return [Row(b.epoch, b.number, tuple(b.ids.tolist()), truth.checksums(b)) for b in loader]


def states(case: Case) -> None:
    """Damaged states, also sealed anew: refused by name, or taken and then an epoch is whole."""
    import lossfeed as lf

    n = 90
    x, y = truth.samples(n, 3)
    sums = [truth.checksum(a, b) for a, b in zip(x, y, strict=True)]
    before = peak_kib()
    for sampler in ("uniform", "cost-aware"):

        def make(sampler: str = sampler) -> Any:
            return lf.Loader((x, y), 8, sampler=sampler, num_workers=0, framework="numpy", stats=False, seed=5)

        with make() as loader:
            for batch in loader:
                loader.score_losses(np.ones(len(batch), np.float32), batch)
            passing = iter(loader)
            next(passing)
            whole = loader.state_dict()
            del passing
        state = whole["engine"]
        sealed = mutate.fnv1a(state[:-8]).to_bytes(8, "little") == state[-8:]
        for _ in range(case.size(400, 60)):
            if sealed and case.rng.random() < 0.6:
                body = mutate.damaged(state[:-8], case.rng)
                mutant = body + mutate.fnv1a(body).to_bytes(8, "little")
                case.count("states sealed anew")
            else:
                mutant = mutate.damaged(state, case.rng)
            about = f"state of {sampler} {mutant[:64].hex()}… of {len(mutant)} bytes"
            with make() as loader:
                try:
                    loader.load_state_dict(whole | {"engine": mutant})
                except lf.Error as error:
                    case.check(not isinstance(error, lf.InternalError), f"{about}: {error}")
                    continue
                case.count("states taken")
                try:
                    log, weights = [], []
                    for batch in loader:
                        log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
                        weights += batch.weight.tolist()
                    case.none_of(checks.right_bytes(log, sums) + checks.weights_sound(weights), about)
                    case.check(sum(map(len, log_ids(loader))) == n, f"{about}: the epoch after it is not whole")
                except lf.Error as error:
                    case.fail(f"{about}: it was taken, and then: {type(error).__name__}: {error}")
        for odd in (
            {},
            None,
            [],
            7,
            {"version": 1},
            whole | {"engine": "text"},
            whole | {"version": "1"},
            whole | {"engine": b""},
        ):
            with make() as loader:
                try:
                    loader.load_state_dict(odd)
                    case.check(False, f"{odd!r:.80} was taken as a state")
                except lf.Error:
                    case.tries += 1
    case.none_of(checks.no_growth({"KiB": before}, {"KiB": peak_kib()}, {"KiB": GROWTH_KIB}), "damaged states")


def log_ids(loader: Any) -> list[list[int]]:
    """The ids of the pass after this one."""
    return [batch.ids.tolist() for batch in loader]


def mutated_data(case: Case, kind: str, victims: list[Path], **options: Any) -> None:
    """Opens and reads a dataset with one damaged file, many times over. Rows are told by their names: ids may shift."""
    import lossfeed as lf

    n = 40
    data = truth.build(kind, n, case.rng.randrange(2**32), case.place / "data")
    by_name = {f"class-{i * truth.CLASSES // n}/{i:06}.png": total for i, total in enumerate(data.sums)}
    if options:
        truth.opened(kind, data.where, **options)
    files = sorted(path for pattern in victims for path in case.place.glob(str(pattern)))
    case.check(files, f"there is nothing to damage under {victims}")
    before = peak_kib()
    for _ in range(case.size(250, 30)):
        victim = case.rng.choice(files)
        sound = victim.read_bytes()
        stamp = victim.stat()
        victim.write_bytes(mutate.damaged(sound, case.rng))
        if options:
            # An index is looked at only where its shard is as it was.
            os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        about = f"{victim.name} damaged"
        try:
            opened = truth.opened(kind, data.where, **options)
            settings = {"num_workers": 0, "framework": "numpy", "stats": False, "on_error": "skip"}
            with lf.Loader(opened, 8, shuffle=True, **settings) as loader:
                wrong = []
                for batch in loader:
                    for i, total in zip(batch.ids.tolist(), truth.checksums(batch), strict=True):
                        name = opened.name(i)
                        wanted = next((s for known, s in by_name.items() if name.endswith(known)), None)
                        if wanted != total:
                            wrong.append(f"{name} has bytes that are not its own")
                case.none_of(wrong, about)
        except lf.Error as error:
            case.check(not isinstance(error, lf.InternalError), f"{about}: {error}")
        finally:
            victim.write_bytes(sound)
            os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    case.none_of(checks.no_growth({"KiB": before}, {"KiB": peak_kib()}, {"KiB": GROWTH_KIB}), f"damaged {kind}")


def open_shards(case: Case) -> None:
    """Shards that are damaged, replaced, cut or removed under an open loader: the right bytes or an error by name."""
    import lossfeed as lf

    n = 60
    for _ in range(case.size(40, 8)):
        place = case.place / f"open-{case.tries}"
        data = truth.build(case.rng.choice(("tar", "folder")), n, case.rng.randrange(2**32), place)
        victims = sorted(path for path in place.rglob("*") if path.is_file())
        settings = {
            "num_workers": case.rng.randrange(3),
            "cache": case.rng.choice((None, "30%")),
            "on_error": case.rng.choice(("raise", "skip")),
        }
        opened = truth.opened(data.kind, data.where)
        with lf.Loader(opened, 4, shuffle=True, framework="numpy", stats=False, **settings) as loader:
            log: list[Row] = []
            how = case.rng.choice(("damage", "replace", "overwrite", "cut", "remove"))
            about = f"{data.kind}, {how} while open, {settings}"
            try:
                for epoch in range(2):
                    for batch in loader:
                        log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
                        if epoch == 0 and batch.number == 3:
                            harm(case, how, victims, place, data.kind, n)
            except lf.Error as error:
                case.check(not isinstance(error, lf.InternalError), f"{about}: {error}")
            case.none_of(checks.right_bytes(log, data.sums), about)


def harm(case: Case, how: str, victims: list[Path], place: Path, kind: str, n: int) -> None:
    """Does something to the files of a dataset that is open."""
    # So that the time of change is another one wherever times are coarse.
    time.sleep(0.02)
    if how in ("replace", "overwrite"):
        other = place.with_name(place.name + "-other")
        truth.build(kind, n, case.rng.randrange(2**32), other)
        for victim in victims:
            content = (other / victim.relative_to(place)).read_bytes()
            if how == "overwrite":
                with open(victim, "r+b") as file:
                    file.write(content)
                    file.truncate()
            else:
                new = victim.with_suffix(".new")
                new.write_bytes(content)
                new.replace(victim)
        return
    victim = case.rng.choice(victims)
    if how == "damage":
        sound = victim.read_bytes()
        with open(victim, "r+b") as file:
            file.write(mutate.damaged(sound, case.rng)[: len(sound)])
    elif how == "cut":
        os.truncate(victim, case.rng.randrange(victim.stat().st_size))
    else:
        victim.unlink()


def program(*args: str, pages: Path | None = None) -> tuple[int | None, str]:
    """Runs `lossfeed` with bounded memory: (status or None for a hang, all it said)."""
    env = os.environ | ({"LOSSFEED_RUNTIME_DIR": str(pages)} if pages is not None else {})

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    argv = [sys.executable, "-m", "lossfeed", *args]
    try:
        said = subprocess.run(argv, capture_output=True, env=env, timeout=PROGRAM_S, preexec_fn=bounded)  # noqa: PLW1509
    except subprocess.TimeoutExpired:
        return None, ""
    return said.returncode, (said.stdout + said.stderr).decode(errors="replace")


def pages(case: Case) -> None:
    """Damaged stats pages: `lossfeed smi` says so and goes on, and so does an engine that writes to one."""
    import lossfeed as lf

    x, y = truth.samples(80, 4)
    place = Path(os.environ["LOSSFEED_RUNTIME_DIR"])
    with lf.Loader((x, y), 8, shuffle=True, framework="numpy", num_workers=1) as loader:
        list(loader)
        time.sleep(0.05)
        found = [path for path in place.iterdir() if path.is_file()]
        if not case.check(found, f"a loader with stats left no page in {place}"):
            return
        page = found[0].read_bytes()
        for _ in range(case.size(6, 2)):
            folder = case.place / f"pages-{case.tries}"
            folder.mkdir(mode=0o700)
            for k in range(40):
                (folder / f"{k}{found[0].suffix}").write_bytes(mutate.damaged(page, case.rng))
            status, said = program("smi", "--json", pages=folder)
            fine = status == 0 and "panicked" not in said
            case.check(fine, f"smi over 40 damaged pages: status {status}: {said[-600:]}")
            case.count("pages", 40)
        for _ in range(case.size(20, 4)):
            # While the engine writes to it.
            with open(found[0], "r+b") as file:
                file.write(mutate.damaged(page, case.rng)[: len(page)])
            status, said = program("smi", "--json", pages=place)
            case.check(
                status == 0 and "panicked" not in said,
                f"smi over a living, damaged page: status {status}: {said[-600:]}",
            )
        case.check(sum(len(row.ids) for row in log_of(loader)) == 80, "an engine whose page was damaged lost samples")


def traces(case: Case) -> None:
    """Damaged traces, plain and gzipped: `lossfeed replay` reads them, or says where it stopped."""
    rows = ["epoch,step,id,loss"]
    rows += [f"{e},{k // 8},{(k * 7 + e) % 60},{(k * 13 % 29) / 7:.2f}" for e in range(3) for k in range(60)]
    import gzip

    plain = ("\n".join(rows) + "\n").encode()
    for form, sound in (("csv", plain), ("csv.gz", gzip.compress(plain, mtime=0))):
        for _ in range(case.size(25, 4)):
            path = case.place / f"run.{form}"
            path.write_bytes(mutate.damaged(sound, case.rng))
            status, said = program("replay", "--trace", str(path), "--policy", "lru,belady", "--json")
            fine = status in (0, 1, 2) and "panicked" not in said and "Traceback" not in said
            case.check(fine, f"replay of a damaged {form}: status {status}: {said[-600:]}; {path.read_bytes()[:80]!r}")
            if status == 0:
                case.check(json.loads(said), f"replay of a damaged {form} said no JSON: {said[:200]}")


def index(case: Case) -> None:
    mutated_data(case, "tar", [Path("index/*")], index_cache=str(case.place / "index"))


def drawn_pictures(case: Case, drawn: Callable[[int, Path], tuple[list[str], Counter[str]]]) -> None:
    """Files of every make: Pillow's pixels, or a refusal that names the reason."""
    for _ in range(case.size(60, 2)):
        seed = case.rng.randrange(2**32)
        wrong, counts = drawn(seed, case.place / f"drawn-{seed}")
        case.none_of(wrong)
        for what, n in counts.items():
            case.count(what, n)


ATTACK = Attack(
    "files",
    {
        "states": states,
        "index": index,
        "shards": lambda case: mutated_data(case, "tar", [Path("data/*.tar")]),
        "pictures": lambda case: mutated_data(case, "folder", [Path("data/train/*/*.png")]),
        "jpegs": lambda case: drawn_pictures(case, jpegs.drawn),
        "pngs": lambda case: drawn_pictures(case, pngs.drawn),
        "open-shards": open_shards,
        "pages": pages,
        "traces": traces,
    },
    share=3.0,
)
