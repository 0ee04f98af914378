"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts; whatever is in them is shown as text."""
    style = "text-align: left"
    head, cell = f'<tr><th style="{style}">', f'</th><td style="{style}">'
    lines = (f"{head}{escape(name)}{cell}{escape(text)}</td></tr>" for name, text in rows)
    return f'<table><caption style="{style}">{escape(title)}</caption>{"".join(lines)}</table>'
