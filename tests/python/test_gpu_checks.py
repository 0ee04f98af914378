"""The checks that a GPU machine runs can fail: wrong gradients are found, figures say what was measured, time is kept."""

import argparse
import gzip
import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest
import torch

import lossfeed as lf

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches" / "gpu"))
import checking
import common
import correct
import dram
import figures
import mission
from common import Report, Span

FAULTS = {
    "zero": torch.zeros_like,
    "doubled": lambda g: g * 2,
    "one row swapped": lambda g: g[[1, 0, *range(2, len(g))]],
    "one element": lambda g: g.scatter(1, g.abs().argmax(1, keepdim=True)[:3], g.abs().amax(1, keepdim=True)[:3] * 0.9),
    "the target's share left out": lambda g: g.clamp(min=0),
}


@pytest.fixture
def report(tmp_path):
    options = argparse.Namespace(device="cpu", quick=False, only=[], until=float("inf"), out=tmp_path)
    return Report("tried", options)


class Wrong(torch.autograd.Function):
    """The identity, whose gradient is made wrong."""

    @staticmethod
    def forward(ctx, z, fault):
        ctx.fault = fault
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.fault(gradient), None


@pytest.mark.parametrize("dtype", correct.DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_is_found_in_every_variant(dtype, fault, monkeypatch):
    right = lf.cross_entropy
    monkeypatch.setattr(lf, "cross_entropy", lambda z, y, **k: right(Wrong.apply(z, FAULTS[fault]), y, **k))
    # With 4096 rows a mean's gradient is far below any absolute bound.
    for rows, classes in ((7, 33), (4096, 100)):
        z, y = correct.batch(rows, classes, dtype, torch.device("cpu"))
        for keywords in correct.VARIANTS:
            check = checking.Check()
            correct.gradient_case(check, "", z, y, keywords)
            assert check.failed == 1 and "gradient: " in check.failures[0], (rows, keywords, check.failures)


@pytest.mark.parametrize("dtype", correct.DTYPES, ids=str)
def test_rounding_alone_is_no_wrong_gradient(dtype):
    check, device = checking.Check(), torch.device("cpu")
    for rows, classes in ((1, 1), (5, 2), (64, 1001), (2048, 10)):
        z, y = correct.batch(rows, classes, dtype, device)
        z64 = z.double().requires_grad_()
        torch.nn.functional.cross_entropy(z64, y).backward()
        terms = checking.terms_of(z64.detach(), y, torch.ones((), dtype=torch.float64), None, 0.0, True)
        check.gradient("rounded", z64.grad.to(dtype), z64.grad, terms, "rounded")
    assert check.failed == 0, check.failures


def test_one_unit_in_the_last_place():
    ones = torch.tensor([1.0, 1.998, 2.0, -3e-8, 0.0], dtype=torch.float64)
    assert checking.last_place(ones, torch.bfloat16).tolist()[:3] == [2**-7, 2**-6, 2**-6], "1.998 rounds to 2"
    assert checking.last_place(ones, torch.float16).tolist()[3:] == [2**-24, 2**-24], "subnormal numbers have one unit"


def test_a_value_that_overflows_its_type_is_expected_to(report):
    check = checking.Check()
    check.value("", torch.tensor(float("inf"), dtype=torch.float16), torch.tensor(9e4, dtype=torch.float64), "")
    assert check.failed == 0
    check.value("", torch.tensor(3.0, dtype=torch.bfloat16), torch.tensor(3.04, dtype=torch.float64), "")
    assert check.failed == 1


def test_figures_are_appended_as_they_are_known(tmp_path, monkeypatch, capsys):
    file = tmp_path / "figures.jsonl"
    monkeypatch.setenv(figures.FILE, str(file))
    monkeypatch.delenv(figures.CHECK, raising=False)
    figures.figure("forward", "a", 0.96, "of it", least=0.95, n=20, spread=0.01, predicted=0.954)
    figures.figure("forward", "b", 9, "µs", most=8.0)
    figures.figure("forward", "c", None, "µs", most=8.0)
    figures.figure("forward", "d", float("inf"))
    monkeypatch.setenv(figures.CHECK, "named")
    figures.figure("forward", "e", True)
    with file.open("a") as more:
        more.write('{"name": "a", "val')
    *lines, _ = file.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert found[0] == {
        "check": "forward", "name": "a", "value": 0.96, "unit": "of it", "limit": 0.95, "at_least": True, "met": True, "n": 20, "spread": 0.01, "predicted": 0.954
    }  # fmt: skip
    assert [f["met"] for f in found] == [True, False, None, None, None] and found[3]["value"] is None
    assert found[4]["check"] == "named" and found[4]["value"] == 1.0
    assert figures.known("a") == 0.96 and figures.known("nothing") is None
    said = capsys.readouterr().out
    assert "a: 0.96 of it, ≥ 0.95: met, predicted 0.954" in said and "b: 9 µs, ≤ 8: MISSED" in said and "c: not measured µs" in said
    monkeypatch.setenv(figures.FILE, str(tmp_path / "no" / "folder"))
    figures.figure("forward", "f", 1)
    assert "could not be appended" in capsys.readouterr().out


def test_nothing_is_begun_that_would_not_end_in_time(report):
    def slow():
        time.sleep(0.02)
        return {}

    def rows():
        for number in range(3):
            report.row({"number": number}, slow)
            report.until = time.monotonic() - common.STARTED + (0.01 if number == 1 else 60)

    report.section("table", rows)
    assert [row["number"] for row in report.data["sections"]["table"]] == [0, 1]
    report.until = 0
    assert report.section("late", lambda: {"ran": True}) is None
    assert report.data["not_reached"] == ["table: {'number': 2}", "late"]
    assert json.loads(report.path.read_text())["not_reached"] == report.data["not_reached"]


def test_comparisons_end_in_time_and_say_where(report):
    report.quick, report.until = True, time.monotonic() - common.STARTED + 1
    for body in (correct.scores, correct.images):
        found = report.section(body.__name__, lambda body=body: body(report))
        assert found["compared"] == 0
    assert report.data["not_reached"][0] == "scores from 9x1 on" and "images from" in report.data["not_reached"][-1]


def test_sections_run_if_asked_for_and_an_error_ends_only_its_own(report):
    assert report.section("named", dict, when_named=True) is None
    found = report.section("wrong", lambda: 1 // 0)
    assert "ZeroDivisionError" in found["error"] and report.section("next", lambda: {"fine": 1}) == {"fine": 1}
    report.only = ["named"]
    assert report.section("named", lambda: {"ran": 1}, when_named=True) == {"ran": 1} and report.section("next", dict) is None
    out = report.path.parent
    options = argparse.Namespace(device="cpu", quick=False, only=["a", "b"], until=float("inf"), out=out)
    assert Report("tried", options).path.name == "tried-a-b.json", "processes side by side do not meet"


def test_copies_are_hidden_where_kernels_run():
    spans = [
        Span("gemm", 0, 40),
        Span("cudaLaunchKernel", 41, 44, launch=True),
        Span("gemm", 45, 100),  # a gap of a launch
        Span("Memcpy HtoD (Pinned -> Device)", 30, 60),
        Span("Memcpy HtoD (Pinned -> Device)", 90, 130),
        Span("lossfeed_gather_b128(Gather)", 190, 200),
        Span("Memcpy DtoH (Device -> Pinned)", 100, 180),
        Span("gemm", 180, 220),
    ]
    found = mission.overlapped(sorted(spans, key=lambda span: span.start_us))
    assert found == {"overlap": (30 + 10 + 10) / 80, "busy": 140 / 220, "copy_us": 80}
    assert mission.overlapped([])["overlap"] is None


def test_a_launch_that_the_profiler_lost_makes_nothing_faster(monkeypatch):
    cuda = torch.device("cuda")
    call = [Span("score", 0, 10), Span("rank", 10, 12), Span("rank", 12, 14), Span("Memset", 14, 15), Span("cudaLaunchKernel", 0, 1, launch=True)]
    spans = [*call * 4][1:] + [Span("Memcpy DtoD", 0, 500)] * 4
    monkeypatch.setattr(common, "watched", lambda body, device: body() or spans)
    found = common.launches(lambda: None, cuda, calls=4, before=lambda: None)
    assert (found["kernels"], found["fills_and_copies"], found["gpu_us"], found["host_launches"]) == (3, 1, 15, 1)
    assert found["us_by_kernel"] == {"score": 10, "rank": 4}, "copies that restore a leaf are not counted"
    monkeypatch.setattr(common, "watched", lambda body, device: [])
    assert common.launches(lambda: None, cuda)["gpu_us"] is None, "not measured, not fast"


def test_the_model_gives_what_its_table_says():
    # kernels/README.md: 4096 x 128,256 bf16 and 8192 x 151,936 f32 on an H200.
    assert figures.forward_us(4096, 128256, 2, 4500, 132) == pytest.approx(240, abs=1)
    assert figures.forward_us(16384, 8192, 2, 4500, 132) == pytest.approx(64, abs=1)
    assert figures.backward_us(8192, 151936, 4, 4300) == pytest.approx(2320, abs=2)


def test_packed_shards_are_unpacked_as_the_shards_they_were(tmp_path, monkeypatch):
    # By its place: the campaign of attacks has a module of that name too.
    found = importlib.util.spec_from_file_location("gpu_training", Path(mission.__file__).with_name("training.py"))
    training = importlib.util.module_from_spec(found)
    found.loader.exec_module(training)
    monkeypatch.delenv("LOSSFEED_CIFAR", raising=False)
    monkeypatch.setattr(training, "BUNDLED", tmp_path / "cifar")
    assert training.folder(None, tmp_path) is None and training.folder("given", tmp_path) == "given"
    (tmp_path / "cifar").mkdir()
    (tmp_path / "there").mkdir()
    for name in ("train-00.tar", "test-00.tar"):
        (tmp_path / "cifar" / f"{name}.gz").write_bytes(gzip.compress(name.encode()))
    assert training.folder(None, tmp_path / "there") == str(tmp_path / "there")
    assert {file.name: file.read_text() for file in (tmp_path / "there").iterdir()} == {n: n for n in ("train-00.tar", "test-00.tar")}


#: As ncu 2025.3 prints it, shortened.
NCU = """==PROF== Connected to process 7
==PROF== Profiling "lossfeed_score_block_bf16": 0%....50%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","262.25"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","1,024"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","us","61.5"
"1","7","python3","127.0.0.1","lossfeed_backward_bf16(GradientArguments)","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Gbyte","0.5"
"""


def test_ncus_table_is_read_kernel_by_kernel_in_bytes_and_nanoseconds():
    first, second = dram.kernels(NCU)
    assert first == {"kernel": "lossfeed_score_block_bf16", "read_bytes": 262.25e6, "written_bytes": 1024.0, "ns": 61500.0}
    assert second == {"kernel": "lossfeed_backward_bf16", "read_bytes": 0.5e9}
    with pytest.raises(ValueError, match="no table.*LibraryNotLoaded"):
        dram.kernels("==ERROR== Failed to initialize the profiler: LibraryNotLoaded")
    with pytest.raises(ValueError, match="'furlong'"):
        dram.kernels(NCU.replace('"Gbyte"', '"furlong"'))
