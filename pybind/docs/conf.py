"""Sphinx's settings; `.ci/docs` builds the site."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_package"))

import lossfeed

project = "lossfeed"
copyright = "the lossfeed authors"
version = release = lossfeed.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["examples", "_package"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "lossfeed"
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
#: The groups of the loader's keywords.
GROUPS = "Samples", "Batches", "Order", "Cache", "Reading", "Ranks", "Watching"
napoleon_custom_sections = [(name, "params_style") for name in GROUPS]
suppress_warnings = ["toc.empty_glob"]


def examples():
    """Public name -> its example, as reStructuredText. The tests run them."""
    found = {}
    for page in sorted((HERE / "examples").glob("*.md")):
        for name, body in re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL):
            blocks = re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
            found[name] = "\n".join(blocks).splitlines()
    return found


EXAMPLES = examples()


def add_example(app, what, name, thing, options, lines):
    example = EXAMPLES.pop(name.removeprefix("lossfeed."), None)
    if example:
        lines += ["", ".. code-block:: pycon", "", *("   " + line for line in example), ""]


def plain_signature(app, what, name, thing, options, signature, returns):
    def plain(text):
        return text and text.replace("literals.", "lossfeed.typing.").replace("'", "")

    return plain(signature), plain(returns)


def setup(app):
    app.connect("autodoc-process-docstring", add_example, priority=900)
    app.connect("autodoc-process-signature", plain_signature)
