"""Limits from outside on running loaders, and `lossfeed allocate --apply` which sets them."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import lossfeed as lf

#: Longer than any machine takes; what is waited for comes within a second or two.
PATIENCE_S = 60
SAMPLES = 400


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """400 small pictures, and a directory for stats pages of this test alone."""
    import io
    import tarfile

    from PIL import Image

    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number in range(SAMPLES):
            picture = io.BytesIO()
            noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(noise).save(picture, "PNG")
            member = tarfile.TarInfo(f"c{number % 4}/{number:04}.png")
            member.size = picture.tell()
            picture.seek(0)
            archive.addfile(member, picture)
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "pages"))
    return tmp_path


def loader(folder, **options):
    data = lf.open(str(folder / "train.tar"), latency=0.001)
    return lf.Loader(data, batch_size=32, shuffle=True, num_workers=1, **{"cache": "100%", **options})


def until(holds):
    """Waits until ``holds()`` is true, and says whether it became so."""
    ends = time.monotonic() + PATIENCE_S
    while not (found := holds()) and time.monotonic() < ends:
        time.sleep(0.05)
    return found


def page(folder):
    [found] = (folder / "pages").glob("*.page")
    return found


def put(folder, text):
    """Writes a limits file as another program would: whole, and then renamed."""
    new = folder / "new"
    new.write_text(text)
    new.chmod(0o600)
    new.rename(page(folder).with_suffix(".limits"))


def shown(running, name):
    return int(running.stats()[name])


def test_limits_are_in_force_while_a_loader_runs_and_are_taken_back_with_their_file(folder):
    with loader(folder, job="limited") as running:
        for _ in running:
            pass
        whole, residents = shown(running, "cache_capacity_bytes"), shown(running, "residents")
        assert residents == SAMPLES
        assert shown(running, "cache_most_bytes") == whole
        assert 0 < shown(running, "dataset_bytes") <= whole
        put(folder, f'limit="50kB"\nresize="{whole // 4}"\n')
        assert until(lambda: shown(running, "cache_capacity_bytes") == whole // 4)
        assert shown(running, "link_limit_bytes") == 50_000
        assert 0 < shown(running, "residents") < residents / 2
        page(folder).with_suffix(".limits").unlink()
        assert until(lambda: shown(running, "cache_capacity_bytes") == whole)
        assert shown(running, "link_limit_bytes") == 0
        assert sum(len(batch) for batch in running) == SAMPLES
    assert not list((folder / "pages").glob("*.limits"))


def test_a_limit_from_outside_holds_a_pass_back_and_lifting_it_lets_it_go(folder):
    with loader(folder, cache=0, timeout=2 * PATIENCE_S) as running:
        put(folder, 'limit="1"')
        assert until(lambda: shown(running, "link_limit_bytes") == 1)
        batches = iter(running)
        batches.begin()
        put(folder, 'limit="1GB"')
        assert sum(len(batch) for batch in batches) == SAMPLES


def test_what_is_refused_is_counted_and_logged_and_the_last_limits_hold(folder, caplog):
    with loader(folder) as running:
        most = shown(running, "cache_most_bytes")
        put(folder, 'limit="50kB"')
        assert until(lambda: shown(running, "link_limit_bytes") == 50_000)
        too_large = f'limit="50kB"\nresize="{most + 1}"'
        refused = [('limit="fast"', "line 1"), ('limt="5MB"', "unknown key"), (too_large, "made with")]
        for number, (text, says) in enumerate(refused, 1):
            put(folder, text)
            assert until(lambda number=number: shown(running, "limits_refused_total") == number)
            assert until(lambda says=says: running.stats() and says in caplog.text), caplog.text
        assert (shown(running, "link_limit_bytes"), shown(running, "cache_capacity_bytes")) == (50_000, most)


def test_a_run_that_writes_a_journal_keeps_its_cache(folder):
    with loader(folder, journal=str(folder / "run.csv")) as running:
        put(folder, 'limit="50kB"\nresize="20kB"')
        assert until(lambda: shown(running, "limits_refused_total") == 1)
        assert shown(running, "link_limit_bytes") == 50_000
        assert shown(running, "cache_capacity_bytes") == shown(running, "cache_most_bytes")


def test_data_without_a_store_refuses_a_limit_and_can_be_resized(folder):
    with lf.Loader(lf.open(str(folder / "train.tar")), batch_size=8, cache="100%") as running:
        most = shown(running, "cache_most_bytes")
        put(folder, f'limit="50kB"\nresize="{most // 2}"')
        assert until(lambda: shown(running, "limits_refused_total") == 1)
        assert (shown(running, "link_limit_bytes"), shown(running, "cache_capacity_bytes")) == (0, most // 2)


def test_a_pods_annotations_are_limits_where_their_file_is_named(folder, monkeypatch):
    (folder / "annotations").write_text('app="x"\nlossfeed.dev/limit="50kB"')
    monkeypatch.setenv("LOSSFEED_LIMITS", str(folder / "annotations"))
    with loader(folder) as running:
        assert until(lambda: shown(running, "link_limit_bytes") == 50_000)


JOB = """
import sys, time
import lossfeed as lf
name, step = sys.argv[2], float(sys.argv[3])
data = lf.open(sys.argv[1], latency=0.001)
with lf.Loader(data, batch_size=32, shuffle=True, num_workers=1, cache="100%", policy="minio", job=name) as loader:
    print("runs", flush=True)
    while True:
        for batch in loader:
            time.sleep(step)
"""


@pytest.fixture
def start(folder):
    """Starts a training job of its own process."""
    started = []

    def start(name, step):
        command = [sys.executable, "-c", JOB, str(folder / "train.tar"), name, str(step)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(job)
        assert job.stdout.readline() == "runs\n"
        return job

    yield start
    for job in started:
        job.kill()
        job.wait()
        job.stdout.close()


def allocate(*options, **kinds):
    return subprocess.Popen(
        [sys.executable, "-m", "lossfeed", "allocate", "--apply", "--bandwidth", "200kB", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kinds,
    )


def engines():
    """Counters of the engines that run, by job."""
    command = [sys.executable, "-m", "lossfeed", "smi", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return {engine["job"]: engine["counters"] for engine in json.loads(told.stdout)["engines"] if engine["alive"]}


def test_jobs_are_given_limits_once(folder, start):
    start("quick", 0.02)
    start("slow", 0.2)
    ran = allocate("--cache", "200kB", "--sharing", "fifo")
    out, err = ran.communicate(timeout=PATIENCE_S)
    assert (ran.returncode, err) == (0, "")
    assert "quick (pid" in out and "slow (pid" in out and "limit" in out
    assert until(lambda: all(counters["link_limit_bytes"] > 0 for counters in engines().values()))
    found = engines()
    assert sum(counters["link_limit_bytes"] for counters in found.values()) <= 200_000
    assert sum(counters["cache_capacity_bytes"] for counters in found.values()) <= 200_000
    assert found["quick"]["cache_capacity_bytes"] == 200_000, "its bytes save most"


def test_watching_follows_jobs_that_come_and_go_and_takes_the_limits_back(folder, start):
    first = start("first", 0.05)
    watching = allocate("--cache", "1MB", "--watch", "--json")
    try:
        assert until(lambda: engines()["first"]["link_limit_bytes"] == 200_000)
        start("second", 0.05)
        assert until(lambda: 0 < engines()["second"]["link_limit_bytes"] < 200_000)
        assert until(lambda: engines()["first"]["link_limit_bytes"] < 200_000)
        first.kill()
        first.wait()
        assert until(lambda: engines()["second"]["link_limit_bytes"] == 200_000)
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=PATIENCE_S)
        assert (watching.returncode, err) == (0, "")
        documents = [json.loads(line) for line in out.splitlines()]
        assert documents[0]["jobs"][0]["job"] == "first"
        assert max(len(document["jobs"]) for document in documents) == 2
        assert until(lambda: engines()["second"]["link_limit_bytes"] == 0)
        assert not list((folder / "pages").glob("*.limits"))
    finally:
        watching.kill()
        watching.wait()


def test_what_cannot_be_applied_is_refused(folder):
    def says(*options):
        done = subprocess.run(
            [sys.executable, "-m", "lossfeed", "allocate", *options], capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.returncode, done.stderr

    code, err = says("--apply", "--bandwidth", "1MB", "--cache", "1MB")
    assert (code, err) == (6, "lossfeed: no job runs that can be given limits\n")
    code, err = says("--apply", "--bandwidth", "1MB", "--cache", "1MB", "--sharing", "sjf")
    assert code == 2 and "--sharing sjf needs --epochs JOB=N" in err
    code, err = says("--apply", "--bandwidth", "1MB", "--cache", "1MB", "--sharing", "sjf", "--epochs", "resnet")
    assert code == 2 and "resnet=90" in err
    code, err = says("--apply", "--bandwidth", "1MB", "--cache", "1MB", "--epochs", "resnet=90")
    assert code == 2 and "--epochs is for --sharing sjf" in err
    for options in [("--apply",), ("--watch", "x.json"), ("--apply", "x.json", "--cache", "1", "--bandwidth", "1"), ()]:
        assert says(*options)[0] == 2, options
    assert os.environ["LOSSFEED_RUNTIME_DIR"]
