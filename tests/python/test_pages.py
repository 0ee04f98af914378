"""Pages that follow from other files are what .ci/pages writes."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date():
    asked = subprocess.run([sys.executable, ROOT / ".ci" / "pages", "--check"], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_pictures_are_those_of_their_text_and_record():
    asked = subprocess.run([sys.executable, ROOT / ".ci" / "pictures", "--check"], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    for picture in (ROOT / "pybind" / "docs" / "pictures").glob("*.svg"):
        ElementTree.parse(picture)
        assert picture.stat().st_size < 40_000, picture.name


def test_every_record_has_a_headline_and_the_one_that_replaces_it_is_there():
    for file in (ROOT / "benches" / "record").glob("*/[0-9]*.json"):
        record = json.loads(file.read_text())
        assert record.get("headline"), f'{file.name}: add "headline": what the record says in one line'
        if later := record.get("superseded_by"):
            assert list((ROOT / "benches" / "record").glob(f"*/{later}.json")), f"{file.name}: superseded by {later}, which is not there"
