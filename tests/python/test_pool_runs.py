"""Runs that share a pool: what is kept for one that draws by score, and what several processes read of the source."""

import subprocess
import sys
import time

import lossfeed as lf
import numpy as np
import pytest
from redis_server import program
from test_pool import COUNT, FAR, HEADER, folder, numbers, pixels, redis  # noqa: F401 (fixtures)
from PIL import Image

pytestmark = pytest.mark.skipif(
    program() is None, reason="no redis-server: .ci/redis unpacks one, REDIS_SERVER names one"
)
#: Bytes of a sample's accounting, and so many samples have room.
TAKEN, ROOM = 320, 8


def number(data, i):
    return int(data.name(i).rpartition("/")[2].partition(".")[0])


def kept(redis, folder):  # noqa: F811
    """The numbers of the pictures in the pool."""
    of = {path.read_bytes(): int(path.stem) for path in folder.glob("*/*.png")}
    values = [redis.ask("GET", key) for key in redis.keys()]
    return {of[value[HEADER:]] for value in values if value is not None}


def room(folder):  # noqa: F811
    sizes = sorted(path.stat().st_size + HEADER + TAKEN for path in folder.glob("*/*.png"))
    return sum(sizes[-ROOM:])


def train(data, matters, epochs, seed=0, sampler="importance"):
    """A run in which the samples that `matters` are hard; the numbers of a loader at its end."""
    options = {"seed": seed, "sampler": sampler, "score": "loss", "num_workers": 1, "cache": None, "read_ahead": 0}
    with lf.Loader(data, 4, **options) as loader:
        for _ in range(epochs):
            for batch in loader:
                ids = batch.ids.tolist()
                for i, x in zip(ids, batch.data.numpy()):
                    assert (x == pixels(number(data, i))).all()
                assert batch.weight is not None
                loader.score_losses(np.float32([5.0 if matters(number(data, i)) else 0.1 for i in ids]), batch)
            settled(loader)
        return loader.stats()


def settled(loader):
    """Until the server has said what became of all that was fetched."""
    deadline = time.monotonic() + 30
    while True:
        seen = loader.stats()
        ended = sum(seen[f"pool_{what}_total"] for what in ("written", "declined", "dropped"))
        if ended >= seen["pool_misses_total"]:
            return
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)


def test_a_run_that_draws_by_score_keeps_what_matters_and_takes_nothing_from_another(folder, redis):  # noqa: F811
    options = {"pool": redis.url, "pool_bytes": room(folder), **FAR}
    data = lf.open(folder, **options)
    seen = train(data, lambda n: n < ROOM, epochs=6)
    assert kept(redis, folder) == set(range(ROOM)) and seen["pool_evicted_total"] > 0
    assert redis.calls()["unlink"] == seen["pool_evicted_total"]
    # What matters changes, and so does what is kept: importances in the pool follow the scores.
    seen = train(data, lambda n: n >= COUNT - ROOM, epochs=8)
    assert len(kept(redis, folder) & set(range(COUNT - ROOM, COUNT))) >= ROOM - 1
    before, evicted = kept(redis, folder), redis.calls()["unlink"]
    # To another run all of this is another's, whatever it finds important; a run without scores evicts nothing at all.
    train(lf.open(folder, **options), lambda n: n < ROOM, epochs=4, seed=1)
    train(lf.open(folder, **options), lambda n: n < ROOM, epochs=2, sampler="uniform")
    assert kept(redis, folder) == before and redis.calls()["unlink"] == evicted


def test_equal_importance_evicts_nothing(folder, redis):  # noqa: F811
    data = lf.open(folder, pool=redis.url, pool_bytes=room(folder), **FAR)
    seen = train(data, lambda n: True, epochs=4)
    assert seen["pool_evicted_total"] == 0 and len(redis.keys()) in (ROOM, ROOM + 1)


PROCESS = """
import sys, time, lossfeed as lf
folder, url, room, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data = lf.open(folder, pool=url, pool_bytes=room, latency=0.01, coalesce=False)
with lf.Loader(data, 16, shuffle=True, seed=seed, num_workers=2, cache=None, read_ahead=0) as loader:
    assert sum(len(batch.ids) for batch in loader) == len(data)
    deadline = time.monotonic() + 60
    while True:
        seen = loader.stats()
        if seen["pool_misses_total"] <= sum(seen[f"pool_{what}_total"] for what in ("written", "declined", "dropped")):
            break
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    print("filled", flush=True)
    sys.stdin.readline()
    before = loader.stats()
    assert sum(len(batch.ids) for batch in loader) == len(data)
    seen = loader.stats()
    assert seen["pool_opened_total"] == 0, seen
    print(int(seen["store_requests_total"] - before["store_requests_total"]))
"""


@pytest.mark.parametrize("nodes, share", [(3, 0.2), (2, 0.5)])
def test_processes_with_a_share_each_read_only_the_rest_of_the_source(nodes, share, redis, tmp_path):  # noqa: F811
    count, place = 400, tmp_path / "many" / "class"
    place.mkdir(parents=True)
    for n in range(count):
        Image.fromarray(pixels(n)).save(place / f"{n:03}.png", compress_level=0)
    (size,) = {path.stat().st_size for path in place.glob("*.png")}
    budget = round(nodes * share * count) * (size + HEADER + TAKEN)
    command = [sys.executable, "-c", PROCESS, place.parent, redis.url, str(budget)]
    pipe = subprocess.PIPE
    made = [subprocess.Popen([*command, str(k)], stdin=pipe, stdout=pipe, text=True) for k in range(nodes)]
    assert [child.stdout.readline() for child in made] == ["filled\n"] * nodes
    read = [int(child.communicate("\n", timeout=60)[0]) for child in made]
    assert max(read) / count <= 1 - nodes * share + 0.01, read


def test_two_processes_read_half_of_the_source_each(folder, redis):  # noqa: F811
    program = """
import sys, time, lossfeed as lf
folder, url, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = lf.open(folder, pool=url, latency=0.02, coalesce=False)

def requests(ids):
    with lf.Loader(data.subset(ids), 4, num_workers=1, cache=None, read_ahead=0) as loader:
        assert sum(len(batch.ids) for batch in loader) == len(ids)
        return round(loader.stats()["store_requests_total"])

def waiting():
    with lf.Loader(data, 4, num_workers=0) as loader:
        seen = loader.stats()
    return seen["pool_misses_total"] - seen["pool_written_total"] - seen["pool_declined_total"]

own = requests(range(first, len(data), 2))
deadline = time.monotonic() + 30
while waiting():
    assert time.monotonic() < deadline
    time.sleep(0.01)
print("half", flush=True)
sys.stdin.readline()
print(own, requests(range(1 - first, len(data), 2)))
"""
    made = [subprocess.Popen([sys.executable, "-c", program, folder, redis.url, str(first)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True) for first in (0, 1)]  # fmt: skip
    assert [child.stdout.readline() for child in made] == ["half\n"] * 2
    read = [child.communicate("\n", timeout=60)[0].split() for child in made]
    # Opening looks at a sample, which both may have fetched at once.
    assert all(COUNT // 2 - 1 <= int(own) <= COUNT // 2 and other == "0" for own, other in read), read
