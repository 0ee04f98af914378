"""The pages' snippets about masks, boxes and layouts, run as they are printed."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from test_beside import Sample, tar

Image = pytest.importorskip("PIL.Image")

DOCS = Path(__file__).resolve().parents[2] / "pybind" / "docs"


def snippet(page, heading):
    section = (DOCS / page).read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return code


def test_masks_and_boxes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tar("scenes.tar", [file for i in range(32) for file in Sample(i).files(f"{i:02}")])
    found = {}
    exec(snippet("batches.md", "Masks and boxes"), found)
    batch = found["batch"]
    assert batch["image"].shape == (16, 3, 64, 64) and batch["mask"].shape == (16, 64, 64)
    assert batch["boxes"].shape[:2] == batch["labels"].shape


@pytest.mark.filterwarnings("ignore:images of")
def test_folders_lists_and_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "VOC/JPEGImages", "VOC/SegmentationClass"):
        os.makedirs(folder)
    for i, name in enumerate("abc"):
        sample = Sample(i, (40, 50))
        Image.fromarray(sample.picture).save(f"photos/{name}.jpg")
        Image.fromarray(sample.picture).save(f"VOC/JPEGImages/{name}.jpg")
        Image.fromarray(sample.mask).save(f"VOC/SegmentationClass/{name}.png")
        Path(f"photos/{name}.txt").write_text(name)
    Path("train.csv").write_text("file_name,label\nphotos/a.jpg,cat\nphotos/b.jpg,dog\n")
    found = {}
    exec(snippet("data.md", "Folders, lists and manifests"), found)
    assert [len(found[name]) for name in ("unlabelled", "captions", "masks", "listed", "table")] == [3, 3, 3, 2, 2]
    assert found["listed"].classes == found["table"].classes == ["cat", "dog"]
    assert found["captions"][1]["caption"] == "b" and np.asarray(found["unlabelled"][0]).shape[2] == 3
    assert json.dumps(found["listed"].labels.tolist()) == "[0, 1]"
