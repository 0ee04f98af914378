"""What becomes of a DataLoader's keywords, attributes, samplers and samples, as a page::

    python tests/integrations/migration.py > tests/integrations/migration.md

The rows are ``migration.toml``'s; what keywords mean, where a row does not say it, is the package's own text.
``tests/python/test_migration.py`` holds the page against them and against torch.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from lossfeed._loader.keywords import HONOURED, REFUSED

ROWS = Path(__file__).with_suffix(".toml")
OUTCOMES = "honoured", "differs", "refused"
SECTIONS = {
    "keyword": "Keywords",
    "attribute": "Attributes",
    "sampler": "Samplers",
    "sample": "What samples are made of",
    "loop": "The loop",
}
HEAD = """# From torch's DataLoader to lossfeed's Loader

`python tests/integrations/migration.py` prints this page of `migration.toml`. Each row names the test that holds it, in
`tests/python` or here in `integrations`; `tests/python/test_migration.py` finds a keyword, an attribute or a sampler that
torch has and this page has not.

"""


def rows() -> dict[str, list[dict[str, Any]]]:
    """Section → its rows; each says something."""
    found: dict[str, list[dict[str, Any]]] = tomllib.loads(ROWS.read_text())
    for row in found["keyword"]:
        row.setdefault("says", (HONOURED | REFUSED).get(row["name"], ""))
    return found


def page() -> str:
    """All of it, as Markdown."""
    lines = [HEAD.rstrip(), ""]
    for section, title in SECTIONS.items():
        lines += [f"## {title}", "", "| | here | | held by |", "| --- | --- | --- | --- |"]
        for row in rows()[section]:
            plain = section != "loop" and section != "sample" and " " not in row["name"].replace(", ", "")
            name = ", ".join(f"`{part}`" for part in row["name"].split(", ")) if plain else row["name"]
            tests = ", ".join(f"`{test}`" for test in row["test"])
            lines.append(f"| {name} | **{row['is']}** | {row.get('says', '')} | {tests} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
