"""The wheel's entry points reach the command line, quickly and without torch."""

import subprocess
import sys
import textwrap

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
    assert {"smi", "train", "replay", "doctor"} <= set(run("--help").stdout.split())


def test_a_wrong_command_is_an_error_of_usage():
    wrong = run("tarin")
    assert wrong.returncode == 2 and "tarin" in wrong.stderr


def test_lossfeed_smi_is_the_same_as_lossfeed_smi():
    assert "--watch" in run("--help", program="/usr/bin/lossfeed-smi").stdout


def test_the_module_runs_as_a_program():
    found = subprocess.run([sys.executable, "-m", "lossfeed", "--version"], capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["lossfeed", lf.__version__]


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
