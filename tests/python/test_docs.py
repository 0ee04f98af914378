"""The pages for users: every snippet and command runs, links lead somewhere, every public name has an example."""

import doctest
import functools
import importlib.util
import inspect
import os
import pydoc
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import folder_of_pages
import pytest
import torch
from s3_server import S3

import lossfeed as lf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pybind" / "docs" / "cases"))
import take  # noqa: E402

PAGES = sorted((ROOT / "pybind" / "docs").rglob("*.md"))
EXAMPLES = [page for page in PAGES if page.parent.name == "examples"]
READ = [ROOT / "README.md", ROOT / "pybind" / "README.md", *(page for page in PAGES if page not in EXAMPLES)]
#: Packages that a page's script needs and a test's machine may lack.
OPTIONAL = ("torchvision", "lightning", "datasets", "transformers")


def blocks(page, language):
    """(line, text) of the fenced blocks in that language."""
    text = page.read_text()
    for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def named(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("pages")
    folder_of_pages.make(root)
    return root


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """A folder with links to the files, so that what a page writes is its own; and a store with the shards."""
    for file in files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    with S3() as s3:
        for shard in files.glob("shard-*.tar"):
            s3.put(shard.name, shard.read_bytes())
        for name, value in {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": "an-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-nowhere-printed",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield tmp_path


#: Run elsewhere: in test_image_pages.py; the package index's page leaves its model to the reader, and is type-checked.
ELSEWHERE = {"pybind/docs/batches.md", "pybind/docs/data.md", "pybind/README.md"}
RUN = [page for page in READ if any(blocks(page, "python")) and named(page) not in ELSEWHERE]
#: Codes of commands that find fault, or ask for a job which is not there.
CODES = {"doctor": {0, 1, 2}, "check": {6}, "allocate": {0, 6}}


@pytest.mark.parametrize("page", RUN, ids=named)
def test_every_snippet_runs(page, here):
    snippets = list(blocks(page, "python"))
    for package in OPTIONAL:
        if any(re.search(rf"^(import|from) {package}\b", text, re.MULTILINE) for _, text in snippets):
            pytest.importorskip(package)
    names = {"__name__": "__main__"}
    for line, text in snippets:
        # So that a traceback shows the page's line.
        exec(compile("\n" * line + text, str(page), "exec"), names)


def commands():
    """Each command line of the pages, with line continuations joined."""
    for page in READ:
        for line, text in blocks(page, "sh"):
            for command in re.sub(r"\\\n", " ", text).splitlines():
                command = re.sub(r"(^|\s+)#.*", "", command)
                if command:
                    yield pytest.param(page, command, id=f"{named(page)}:{line}:{command[:40]}")


@pytest.mark.parametrize("page, command", list(commands()))
def test_every_command_runs(page, command, here):
    for name, text in re.findall(
        r"[Ss]ave this as `(\w+\.py)`:\n\n```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    ):
        (here / name).write_text(text)
    for part in command.split(";"):
        words = shlex.split(part)
        while "=" in words[0] and not words[0].startswith("-"):  # a variable before the program
            words.pop(0)
        program, *rest = words
        if program == "make":
            targets = [word for word in rest if "=" not in word]
            made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(targets) <= set(made)
        elif program == "pip":
            assert rest[0] == "install"
        elif program == "cargo":
            assert (ROOT / rest[-1]).exists()
        elif program in ("lossfeed", "python", "torchrun"):
            way = {"lossfeed": ["-m", "lossfeed"], "python": [], "torchrun": ["-m", "torch.distributed.run"]}[program]
            at = {
                **os.environ,
                "PYTHONPATH": str(Path(lf.__file__).parents[1]),
                "LOSSFEED_RUNTIME_DIR": str(here / "pages"),
                "PET_STANDALONE": "1",  # torchrun takes a free port
            }
            at["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{at['PATH']}"
            run = functools.partial(subprocess.run, env=at, capture_output=True, text=True, timeout=100)
            ran = run([sys.executable, *way, *rest])
            # PyTorch's gloo aborts about one torchrun in twenty as it ends, on a busy machine, also without lossfeed.
            if program == "torchrun" and "terminate called without an active exception" in ran.stderr:
                ran = run([sys.executable, *way, *rest])
            codes = CODES.get(rest[0], {0}) if program == "lossfeed" else {0}
            assert ran.returncode in codes, ran.stderr + ran.stdout
        else:
            raise AssertionError(f"who runs {program}? Add it here")


def test_the_trainer_of_the_compose_file_trains_from_a_store(here):
    at = {
        **os.environ,
        "PYTHONPATH": str(Path(lf.__file__).parents[1]),
        "DATA": "s3://bucket/shard-*.tar",
        "EPOCHS": "3",
    }
    ran = subprocess.run(
        [sys.executable, ROOT / "docker" / "train.py"], env=at, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    assert "epoch 2: loss" in ran.stdout and "auto chose replay" in ran.stdout


def anchors(page):
    """The headings' anchors, as GitHub and Sphinx make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "page",
    [*READ, ROOT / "CHANGELOG.md", ROOT / "benches" / "README.md", ROOT / "pybind" / "ARCHITECTURE.md"],
    ids=named,
)
def test_links_lead_somewhere(page):
    for url in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = url.partition("#")
        if "://" in url:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), url
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), url


def test_every_page_of_the_site_is_in_a_table_of_contents():
    listed = set()
    for page in READ:
        for text in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            listed |= {(page.parent / f"{line}.md").resolve() for line in text.splitlines() if line and line[0] != ":"}
    assert {page for page in READ[2:] if page.name != "index.md" or page.parent.name == "tasks"} <= listed


def public_names():
    """Every public name, and the public members of its classes but exceptions."""
    for name in lf.__all__:
        thing = getattr(lf, name)
        yield name
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            ours = (member for member in dir(thing) if not member.startswith("_") and not hasattr(tuple, member))
            yield from (f"{name}.{member}" for member in ours if member != "LOADERS")


def test_every_public_name_has_an_example():
    shown = [name for page in EXAMPLES for name in re.findall(r"^## `(.+)`$", page.read_text(), re.MULTILINE)]
    assert sorted(shown) == sorted(set(shown)), "each once"
    assert sorted(public_names()) == sorted(shown)


def test_help_of_the_loader_is_an_example_that_runs_and_a_line_for_each_keyword(here):
    told = inspect.getdoc(lf.Loader)
    example = re.search(r"Example::\n\n(.*?)\n\n(?! )", told, re.DOTALL)
    assert example.start() < told.index("Samples:")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    exec(textwrap.dedent(example[1]), {"lf": lf, "model": model, "optimizer": optimizer})
    keywords = re.findall(r"^    (\w+): ", told.partition("Raises:")[0], re.MULTILINE)
    assert sorted(keywords) == sorted(inspect.signature(lf.Loader).parameters)
    printed = pydoc.plaintext.document(lf.Loader).partition("Method resolution order")[0]
    assert "cache=None" in printed and "'Any'" not in printed and "literals" not in printed
    assert max(map(len, printed.splitlines()[1:])) <= 122
    assert inspect.signature(lf.Loader).parameters["batch_size"].annotation == "int"


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_examples_do_what_they_show(page, here):
    names, wrong = {}, []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for head, body in re.findall(r"^#+ (.+?)\n(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE):
        shown = "\n".join(re.findall(r"^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE))
        assert (head.strip("`").rpartition(".")[2] in shown and ">>> " in shown) or not head.startswith("`"), head
        example = doctest.DocTestParser().get_doctest(shown, names, head, str(page), None)
        runner.run(example, out=wrong.append, clear_globs=False)
        names = example.globs
    assert not wrong, "".join(wrong)


def test_the_pages_leave_the_repository_only_by_links_that_are_rewritten(tmp_path):
    """`.ci/docs` makes a plain path, or an address below REPOSITORY, of a link that leaves the pages."""
    spec = importlib.util.spec_from_loader(
        "docs", importlib.machinery.SourceFileLoader("docs", str(ROOT / ".ci" / "docs"))
    )
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page, target = ROOT / "pybind" / "docs" / "tuning.md", made.WORK / "tuning.md"
    text = "[44](../../engine/decisions/0044-thread-autotuner.md) [numbers](../../benches/README.md) [data](data.md#stores) [x](https://x)"
    said = made.relinked(text, page, target)
    assert (
        said
        == "44 (`engine/decisions/0044-thread-autotuner.md`) [numbers](numbers.md) [data](data.md#stores) [x](https://x)"
    )
    with pytest.MonkeyPatch.context() as at:
        at.setenv("REPOSITORY", "https://host/own/er/")
        assert made.relinked("[44](../../README.md)", page, target) == "[44](https://host/own/er/blob/main/README.md)"


@pytest.mark.parametrize("changed", [False, True], ids=["as it was", "changed"])
@pytest.mark.parametrize("case", take.CASES, ids=lambda case: case.script)
def test_cases_run_before_and_after_their_one_change(case, changed, tmp_path):
    """An epoch each; that page and scripts agree on the change."""
    text = take.changed(case) if changed else (take.HERE / case.script).read_text()
    page = (take.HERE.parent / "waits.md").read_text()
    assert f"\n{'+' if changed else '-'} {take.line(text, case.now if changed else case.was)}\n" in page
    (tmp_path / case.script).write_text(re.sub(r"for epoch in range\(\d\)", "for epoch in range(1)", text))
    at = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": f"{Path(lf.__file__).parents[1]}{os.pathsep}{take.HERE}"}
    ran = subprocess.run([sys.executable, tmp_path / case.script], env=at, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
