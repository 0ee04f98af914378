"""The wheel's entry points reach the command line, quickly and without torch."""

import subprocess
import sys
import textwrap

import pytest

import lossfeed as lf


def run(*argv, program="lossfeed"):
    script = textwrap.dedent(
        f"""
        import sys
        sys.argv = [{program!r}, *{list(argv)!r}]
        from lossfeed.__main__ import main
        code = main()
        assert not {{"torch", "numpy"}} & set(sys.modules), "the command line needs neither"
        sys.exit(code)
        """
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_version_and_help():
    assert run("--version").stdout.split() == ["lossfeed", lf.__version__]
    assert {"smi", "train", "replay", "allocate", "doctor"} <= set(run("--help").stdout.split())


@pytest.mark.parametrize("typed", [["papers"], ["jobs", "--trace", "a.trace"], ["replay", "--trace", "a.csv", "--html", "b"]])
def test_what_moved_to_the_lab_is_named_with_its_place_in_one_line(typed):
    moved = run(*typed)
    assert moved.returncode == 2 and moved.stdout == ""
    assert "is in the program lossfeed-lab" in moved.stderr and moved.stderr.count("\n") == 1


def test_a_wrong_command_is_an_error_of_usage():
    wrong = run("tarin")
    assert wrong.returncode == 2 and "tarin" in wrong.stderr


def test_lossfeed_smi_is_the_same_as_lossfeed_smi():
    assert "--watch" in run("--help", program="/usr/bin/lossfeed-smi").stdout


def test_the_module_runs_as_a_program():
    found = subprocess.run([sys.executable, "-m", "lossfeed", "--version"], capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["lossfeed", lf.__version__]


def test_doctor_examines_the_python_it_runs_in(tmp_path, monkeypatch):
    monkeypatch.delenv("LOSSFEED_PYTHON", raising=False)
    # Another python3 comes first on PATH.
    (tmp_path / "python3").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    told = subprocess.run([sys.executable, "-m", "lossfeed", "doctor"], capture_output=True, text=True, timeout=60)
    assert sys.executable in told.stdout, told.stdout


def test_a_train_callback_that_raises_and_one_that_returns_a_code_are_passed_on():
    from lossfeed import _native

    seen = []
    assert _native.cli_main(["train", "--epochs", "3"], lambda options: seen.append(options) or 7) == 7
    assert seen[0]["epochs"] == 3

    def fails(options):
        raise LookupError("mine")

    try:
        _native.cli_main(["train"], fails)
    except LookupError as error:
        assert str(error) == "mine"
    else:
        raise AssertionError("the callback's exception must come through")


def test_a_loader_and_its_loss_do_not_load_torchs_compiler():
    script = """
        import sys
        import torch
        if "torch._dynamo" in sys.modules:
            sys.exit(77)
        import lossfeed
        loader = lossfeed.Loader((torch.zeros(64, 3), torch.arange(64) % 5), 16, num_workers=0, stats=False)
        net = torch.nn.Linear(3, 5)
        for batch in loader:
            loader.cross_entropy(net(batch.data), batch).backward()
        found = sorted({"torch._dynamo", "torch._inductor", "triton"} & set(sys.modules))
        assert not found, f"two seconds for whoever compiles nothing: {found}"
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("torch itself loads its compiler: nothing can be told here")
    assert done.returncode == 0, done.stderr
