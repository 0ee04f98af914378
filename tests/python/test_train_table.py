"""`lossfeed train`: the table and the progress, drawn from results alone."""

import io
import json
import math

import pytest

pytest.importorskip("torch", reason="the demonstration job trains with PyTorch")

from lossfeed.train import progress, table  # noqa: E402
from lossfeed.train.run import EpochResult, Progress, RunResult  # noqa: E402


def run(recipe="uniform+minio", seed=0, accuracy=0.9, **changes):
    values = dict(
        recipe=recipe, seed=seed, steps=100, samples=3200, accuracy=accuracy, fetched_samples=2000, fetched_bytes=280_000, hit_ratio=0.375,
        hit_ratio_last=0.4, coverage=0.61, coverage_ever=0.99, ess=0.5, stall_share=0.25, samples_per_s=1000.0, seconds=3.2, epochs=[],
    )  # fmt: skip
    return RunResult(**{**values, **changes})


def epoch(**changes):
    values = dict(
        epoch=1, steps=50, samples=1600, accuracy=0.9, loss=0.3, fetched_samples=1000, fetched_bytes=140_000, hit_ratio=0.375, coverage=0.61,
        coverage_ever=0.99, ess=0.5, stall_share=0.25, seconds=1.6,
    )  # fmt: skip
    return EpochResult(**{**values, **changes})


def test_a_row_is_the_mean_and_the_sample_deviation_over_its_seeds():
    rows = table.rows([run(seed=0, accuracy=0.9), run(seed=1, accuracy=0.92), run(seed=2, accuracy=0.94)])
    assert rows[0]["seeds"] == [0, 1, 2]
    assert rows[0]["accuracy_percent"] == {"mean": pytest.approx(92.0), "sd": pytest.approx(2.0)}


def test_one_seed_has_no_deviation_rather_than_zero():
    assert table.rows([run()])[0]["accuracy_percent"]["sd"] is None
    assert "±" not in table.render([run()]).splitlines()[2]


def test_differences_are_taken_seed_by_seed():
    # Seeds scatter by 10 points, the difference within a seed by 0: only pairing sees that.
    runs = [run(seed=0, accuracy=0.80), run(seed=1, accuracy=0.90), run("shade", 0, 0.79), run("shade", 1, 0.89)]
    nothing = pytest.approx(0.0, abs=1e-9)
    assert table.rows(runs)[1]["accuracy_difference"] == {"mean": pytest.approx(-1.0), "sd": nothing, "interval95": nothing}


def test_the_interval_of_a_mean_difference_is_students():
    # Differences of 1, 2 and 3 points: mean 2, sd 1, and t at 97.5 % with 2 degrees of freedom is 4.303.
    runs = [run(seed=seed, accuracy=0.8) for seed in range(3)]
    runs += [run("shade", seed, 0.81 + seed / 100) for seed in range(3)]
    difference = table.rows(runs)[1]["accuracy_difference"]
    assert difference["interval95"] == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert "+2.0 ± 2.5" in table.render(runs) and "95 % interval" in table.render(runs)
    assert table.interval([1.0]) is None
    try:
        from scipy.stats import t
    except ImportError:
        return
    for n in range(2, 32):
        assert table._T[n - 2] == pytest.approx(t.ppf(0.975, n - 1), abs=1e-3)


def test_seconds_are_shown_beside_how_often_they_fit_into_the_first_recipes():
    runs = [run(seconds=6.0), run("replay", seconds=2.0), run("echo+fifo", seconds=2.4)]
    assert [row.get("times_faster") for row in table.rows(runs)] == [None, 3.0, pytest.approx(2.5)]
    lines = {line[:32].strip(): line[32:].split() for line in table.render(runs).splitlines()}
    assert next(v for k, v in lines.items() if k.startswith("seconds")) == ["6.0", "2.0", "2.4"]
    assert next(v for k, v in lines.items() if k.startswith("× faster than")) == ["3.00", "2.50"]
    control = "echo is the control without scores: what replay has over it is what scores are worth here."
    assert table.render(runs).endswith(control)
    batch = table.render([*runs, run("replay:scores=batch", seconds=2.0)])
    assert batch.endswith("scores=batch is the control without samples' scores: all samples of a batch have one.")
    assert "control" not in table.render(runs[:2]) and "× faster" not in table.render(runs[:1])


def test_a_seed_the_first_recipe_never_finished_is_left_out_of_the_difference():
    runs = [run(seed=0, accuracy=0.8), run("shade", 0, 0.7), run("shade", 1, 0.1)]
    assert table.rows(runs)[1]["accuracy_difference"]["mean"] == pytest.approx(-10.0)


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_no_block_of_the_table_shows_a_hit_ratio_without_accuracy_and_coverage(columns):
    runs = [run(name, seed) for name in ("uniform+minio", "shade", "cost-aware", "importance") for seed in (0, 1)]
    text = table.render(runs, columns)
    blocks = [b for b in text.split("\n\n") if "hit ratio" in b]
    assert blocks
    for block in blocks:
        lines = {line[:24].strip(): line for line in block.splitlines()}
        width = len(lines["hit ratio, %"])
        for other in ("held-out accuracy, %", "distinct seen an epoch,", "distinct seen ever, %"):
            line = next(v for k, v in lines.items() if k.startswith(other[:20]))
            assert len(line) == width, f"{other} has other columns than the hit ratio"
        assert width <= columns or len(block.splitlines()[0].split()) == 1


def test_every_recipe_appears_once_whatever_the_width():
    names = ["uniform+minio", "shade", "cost-aware", "importance"]
    for columns in (30, 80, 300):
        lines = table.render([run(n) for n in names], columns).splitlines()
        heads = [line for line, below in zip(lines, lines[1:]) if below.startswith("─")]
        assert [word for head in heads for word in head.split()] == names


def test_a_small_loss_is_not_printed_as_minus_nothing():
    text = table.render([run(accuracy=0.9), run("shade", accuracy=0.8998)])
    assert "-0.0" not in text and "+0.0" in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", range(20, 200, 7))
def test_a_bar_cut_by_a_narrow_window_never_shows_a_hit_ratio_alone(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    reporter = progress.choose(out, as_json=False, quiet=False)
    assert isinstance(reporter, progress.TerminalReporter)
    reporter.progress(Progress("cost-aware", 0, 1, 12, 10, 42, 0.55, 0.61, 0.99, 0.2, 12345.0, 0.97))
    reporter.epoch("cost-aware", 0, 12, epoch())
    for line in out.getvalue().replace("\r\x1b[2K", "\n").splitlines():
        assert len(line) < columns
        if "hit" in line:
            assert "acc" in line.split("hit")[0] and "seen" in line.split("hit")[0] and "ever" in line.split("hit")[0]


def test_lines_are_plain_where_there_is_no_terminal():
    out = io.StringIO()
    reporter = progress.choose(out, as_json=False, quiet=False)
    reporter.progress(Progress("shade", 0, 1, 12, 10, 42, 0.55, 0.61, 0.99, 0.2, 12345.0, 0.97))
    assert out.getvalue() == ""
    reporter.epoch("shade", 0, 12, epoch())
    assert out.getvalue().count("\n") == 1 and "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_json_is_one_object_a_line_and_knows_no_nan():
    out = io.StringIO()
    reporter = progress.choose(out, as_json=True, quiet=False)
    reporter.note("held out a shard")
    reporter.epoch("shade", 0, 12, epoch(ess=math.nan, loss=math.inf))
    reporter.run(run())
    reporter.finish([run()], 1)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    events = [json.loads(line, parse_constant=refuse) for line in out.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["note", "epoch", "run", "table"]
    assert events[1]["ess"] is None and events[1]["loss"] is None
    assert events[3]["rows"][0]["recipe"] == "uniform+minio"


def test_one_recipe_alone_is_compared_with_nothing():
    assert "against" not in table.render([run()])
    assert "against uniform+minio" in table.render([run(), run("shade")])


def test_an_interrupted_comparison_says_how_far_it_came():
    out = io.StringIO()
    progress.choose(out, as_json=False, quiet=True).finish([run()], 9)
    assert "stopped after 1 of 9 runs" in out.getvalue()
