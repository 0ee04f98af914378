"""The campaign of `make chaos`: checkers meet planted mistakes, the frame crashes and hangs; and a fixed part runs."""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS))

from chaos import campaign, checks, mutate, registry, truth, worker  # noqa: E402
from chaos.case import Attack, Case, run, seed_of  # noqa: E402
from chaos.checks import Row  # noqa: E402

BATCHES, EPOCHS, SAMPLES = 3, 2, 12
SUMS = [1000 + i for i in range(SAMPLES)]


def sound_log():
    """Two epochs of three batches of four, every id once an epoch."""
    rows = []
    for epoch in range(EPOCHS):
        for number in range(BATCHES):
            ids = tuple((4 * number + k + epoch) % SAMPLES for k in range(4))
            rows.append(Row(epoch, number, ids, tuple(SUMS[i] for i in ids)))
    return rows


def judged(log):
    """Everything that a training's log is held to."""
    return [
        *checks.right_bytes(log, SUMS),
        *checks.each_position_once(log, EPOCHS, BATCHES),
        *checks.each_id_once([log], SAMPLES, EPOCHS),
        *checks.same_batches(log, sound_log()),
    ]


def changed(at, **fields):
    log = sound_log()
    log[at] = log[at]._replace(**fields)
    return log


def test_a_sound_log_has_no_problems():
    assert judged(sound_log()) == []


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (changed(1, ids=(4, 4, 6, 7), sums=(1004, 1004, 1006, 1007)), "more than once, the first 4"),
        (changed(1, ids=(4, 5, 6), sums=(1004, 1005, 1006)), "7 is missing"),
        (changed(1, sums=(1004, 1005, 1006, 1008)), "id 7 came with the bytes of sample 8"),
        (changed(1, sums=(1004, 1005, 1006, 7)), "id 7 came with the bytes of no sample"),
        (changed(1, ids=(4, 5, 6, 99)), "names id 99 of 12"),
        (changed(1, sums=(1004, 1005, 1006)), "4 ids and 3 rows"),
        (changed(1, ids=(5, 4, 6, 7), sums=(1005, 1004, 1006, 1007)), "in the undisturbed run"),
        (sound_log()[:-1], "batch 2 of epoch 1 was delivered 0 times"),
        (sound_log()[1:], "batch 0 of epoch 0 was delivered 0 times"),
        ([*sound_log(), sound_log()[-1]], "batch 2 of epoch 1 was delivered 2 times"),
        ([*sound_log()[:2], sound_log()[3], sound_log()[2], *sound_log()[4:]], "out of order"),
        ([*sound_log(), Row(2, 0, (), ())], "is none of 2 epochs of 3"),
    ],
)
def test_a_planted_mistake_in_a_log_is_found(log, word):
    assert any(word in problem for problem in judged(log)), judged(log)


def test_two_ranks_hold_every_id_once_between_them():
    mine, theirs = sound_log()[::2], sound_log()[1::2]
    assert checks.each_id_once([mine, theirs], SAMPLES, EPOCHS) == []
    assert checks.each_id_once([mine, mine], SAMPLES, EPOCHS) != []
    assert checks.each_id_once([sound_log()[:2], []], SAMPLES, 1, drawn=8) == []
    assert checks.each_id_once([sound_log()[:2], []], SAMPLES, 1, drawn=9) != []


def test_a_bias_is_found_and_noise_is_not():
    rng = random.Random(1)
    means = [rng.gauss(3.0, 1.0) for _ in range(400)]
    assert checks.unbiased(means, 3.0, 3.0) == []
    assert "standard errors" in checks.unbiased([m * 1.14 for m in means], 3.0, 3.0)[0]
    assert checks.unbiased([3.0 + 1e-7] * 10, 3.0, 3.0) == [], "what float32 rounds off"
    assert "no variance" in checks.unbiased([3.1] * 10, 3.0, 3.0)[0]
    assert checks.unbiased([3.0, float("nan")], 3.0, 3.0) != []


def test_shares_weights_and_growth_are_bounded():
    ids = [*range(96), 7, 7, 7, 7]
    assert checks.share_bounded(ids, 0.05) == []
    assert "sample 7 is 6 of 101" in checks.share_bounded([*ids, 7], 0.05)[0]
    assert checks.weights_sound([1.0, 1e-30, 3e38]) == []
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        assert checks.weights_sound([1.0, wrong]) != []
    before = {"threads": 3, "KiB": 1000}
    assert checks.no_growth(before, {"threads": 3, "KiB": 1500}, {"KiB": 500}) == []
    assert checks.no_growth(before, {"threads": 4, "KiB": 1000}, {"KiB": 500}) == [
        "threads grew from 3 to 4, 0 more are allowed"
    ]


@pytest.mark.parametrize("kind", truth.KINDS)
def test_what_is_opened_is_the_truth_and_one_changed_byte_is_not(kind, tmp_path):
    data = truth.build(kind, 20, 5, tmp_path)
    import lossfeed as lf

    with lf.Loader(truth.opened(kind, data.where), 6, framework="numpy", stats=False, num_workers=0) as loader:
        for batch in loader:
            row = Row(0, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch))
            assert checks.right_bytes([row], data.sums) == []
            batch.data[0, 0, 0, 0] ^= 1
            assert checks.right_bytes([row._replace(sums=truth.checksums(batch))], data.sums) != []
            batch.data[0, 0, 0, 0] ^= 1
            batch.target[-1] += 1
            assert checks.right_bytes([row._replace(sums=truth.checksums(batch))], data.sums) != []


def test_damage_is_damage_and_the_same_from_the_same_seed():
    sound = bytes(range(256)) * 4
    mutants = [mutate.damaged(sound, random.Random(k)) for k in range(300)]
    assert sound not in mutants and len(set(mutants)) > 290
    assert mutants == [mutate.damaged(sound, random.Random(k)) for k in range(300)]
    assert {len(m) < len(sound) for m in mutants} == {True, False}
    assert mutate.fnv1a(b"a") == 0xAF63DC4C8601EC8C, "the published value"


def test_a_case_is_its_name_and_nothing_else(tmp_path):
    draws = [Case("a", "b", 7, tmp_path).rng.random() for _ in range(2)]
    assert draws[0] == draws[1] != Case("a", "c", 7, tmp_path).rng.random()
    assert seed_of(1, "kills", 0) == seed_of(1, "kills", 0) != seed_of(1, "kills", 1) != seed_of(2, "kills", 1)
    assert worker.parse("kills/kill,break:12") == ("kills", ["kill", "break"], 12)
    for wrong in ("kills", "kills/kill", "kills/kill:x", "/kill:1"):
        with pytest.raises(SystemExit, match="ATTACK/TRAIT:SEED"):
            worker.parse(wrong)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_a_trait_raises_is_a_failure_of_its_case(error, tmp_path):
    def trait(case):
        raise error("on purpose")

    case = run(Attack("a", {"t": trait}, 1.0), Case("a", "t", 1, tmp_path))
    assert case.failed == case.tries == 1 and "on purpose" in case.failures[0]


PLANTED = """
import os, sys, threading, time
sys.path[0] = {tests!r}
from chaos import case, registry, worker
def boom(c): c.check(True, ""); os.abort()
def stuck(c): time.sleep(3600)
def wrong(c): c.check(False, "planted"); c.count("notes", 3)
def panics(c): os.write(2, b"thread 'x' panicked at src/x.rs:1:1:\\nplanted\\n")
def fine(c): c.check(True, ""); print("not a line of ours"); os.write(1, b"nor this")
def leaver(c): sys.exit(0)
traits = dict(boom=boom, stuck=stuck, wrong=wrong, panics=panics, fine=fine, leaver=leaver)
registry.attack = lambda name: case.Attack(name, traits, 1.0, 5.0)
sys.exit(worker.work(sys.argv[sys.argv.index("--case") + 1], False))
"""


def test_crashes_hangs_and_panics_are_failures_with_a_name_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED.format(tests=str(TESTS)))
    monkeypatch.setattr(campaign, "HERE", planted)
    names = ["fine", "boom", "wrong", "stuck", "panics", "leaver", "fine"]
    tally = campaign.Tally(Attack("planted", dict.fromkeys(names), 1.0, deadline_s=5.0))
    campaign.run_round(tally.attack, names, 5, False, tally, threading.Lock())
    said = {failure["case"]: failure["message"] for failure in tally.failures}
    assert set(said) == {f"planted/{t}:5" for t in ("boom", "wrong", "stuck", "panics", "leaver")}
    assert "crashed with status -6" in said["planted/boom:5"] and "in boom" in said["planted/boom:5"]
    assert "stuck: nothing within 5 s" in said["planted/stuck:5"] and "in stuck" in said["planted/stuck:5"]
    assert "panicked" in said["planted/panics:5"] and said["planted/wrong:5"] == "planted"
    assert tally.cases == 7 and tally.failed == 5 and tally.notes == {"notes": 3}
    printed = capsys.readouterr().out
    assert "repeat: .venv/bin/python tests/chaos --case planted/boom:5" in printed and "(seed 5)" in printed


@pytest.fixture(scope="module")
def fixed_part(tmp_path_factory):
    """Every trait once with seed 1, a little of each, two processes at a time."""
    out = tmp_path_factory.mktemp("chaos") / "found.json"
    argv = [sys.executable, str(TESTS / "chaos"), "--short", "--seed", "1", "--jobs", "2", "--out", str(out)]
    done = subprocess.run(
        argv, cwd=TESTS.parent, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    found = json.loads(out.read_text())
    assert done.returncode == (1 if any(a["failures"] for a in found["attacks"].values()) else 0), done.stderr[-3000:]
    return found


@pytest.mark.parametrize("attack", [name for name in registry.NAMES if name not in registry.LONG])
def test_the_fixed_part_of(attack, fixed_part):
    found = fixed_part["attacks"][attack]
    told = "\n".join(f"{f['repeat']}\n    {f['message']}" for f in found["failed"])
    assert found["failures"] == 0, told
    if found["notes"].get("no redis-server"):
        pytest.skip("no redis-server: .ci/redis unpacks one, REDIS_SERVER names one")
    assert found["tries"] > 0 and found["cases"] == len(registry.attack(attack).traits)
