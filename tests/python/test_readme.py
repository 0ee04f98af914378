"""README's twenty lines, as they stand there, on a folder as people have it: JPEGs, upright and across, of many sizes."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

README = Path(__file__).parents[2] / "README.md"


def test_readme_stays_short():
    assert README.stat().st_size <= 9_000, "what is longer has a page in pybind/docs"


def test_the_report_of_why_is_the_one_that_was_recorded():
    report = re.search(r"^```text\n(lossfeed why.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert report is not None and report[1] in (README.parent / "pybind" / "docs" / "waits.md").read_text()


def test_the_twenty_lines_train_on_a_folder_of_photographs(tmp_path, monkeypatch, capsys):
    draw = np.random.default_rng(0)
    for i in range(18):
        height, width = [(375, 500), (500, 375), (240, 333)][i // 3 % 3]
        rows, columns = np.mgrid[:height, :width]
        pixels = np.stack([255 * rows // height, 255 * columns // width, np.full_like(rows, 80 * (i % 3))], 2)
        folder = tmp_path / "train" / f"class {i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels + draw.integers(-9, 9, pixels.shape)).clip(0, 255).astype(np.uint8)).save(folder / f"{i}.jpg")
    lines = re.search(r"^## Twenty lines\n\n```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert lines is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(lines[1], str(README), "exec"), {})
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(epoch) for epoch, *_ in told] == [*range(10)]
    losses, hits = [float(line[1]) for line in told], [float(line[2]) for line in told]
    assert losses[-1] < losses[0] and hits[-1] > hits[0] == 0
