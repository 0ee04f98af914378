"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts; whatever is in them is shown as text."""
    style = "text-align: left"
    lines = (f'<tr><th style="{style}">{escape(name)}</th><td style="{style}">{escape(text)}</td></tr>' for name, text in rows)
    return f'<table><caption style="{style}">{escape(title)}</caption>{"".join(lines)}</table>'
