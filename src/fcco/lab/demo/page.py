"""The demo's page: the same tables and figure in one HTML file, each term explained at a hover."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from fcco.lab.demo.story import TERMS, Part
from fcco.lab.files import write_aside

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2024; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: right; border-bottom: 1px solid #d8dce0; }
th:first-child, td:first-child { text-align: left; }
abbr { text-decoration: underline dotted; cursor: help; }
.lesson { border-left: 4px solid #D55E00; padding-left: .8rem; }
img { max-width: 100%; height: auto; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; }
"""


def write(path: Path, title: str, parts: Sequence[Part], plot: Path) -> None:
    """Write the page; the figure is embedded."""
    picture = base64.b64encode(plot.read_bytes()).decode("ascii")
    body = [f"<h1>{html.escape(title)}</h1>"]
    for part in parts:
        body.append(_section(part))
    alt = "Left: precision against recall. Right: F - F* against oracle calls."
    body.append(f'<h2>Figure</h2><img src="data:image/png;base64,{picture}" alt="{alt}">')
    body.append(f"<h2>Terms</h2>{_definitions(TERMS)}")
    text = "\n".join(body)
    write_aside(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style></head>\n'
        f"<body>\n{text}\n</body></html>\n",
    )


def _section(part: Part) -> str:
    head = "".join(f"<th>{_explained(name)}</th>" for name in part.columns)
    rows = "\n".join(_row(row) for row in part.rows)
    return (
        f"<h2>{html.escape(part.title)}</h2>\n<p>{html.escape(part.done)}</p>\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>\n"
        f'<p class="lesson">{html.escape(part.lesson)}</p>'
    )


def _row(row: Sequence[str]) -> str:
    name, *values = row
    cells = [_explained(name), *map(html.escape, values)]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _explained(name: str) -> str:
    """Return a column's name; a hover says what it means where a term is known."""
    shown = html.escape(name)
    for term, meaning in TERMS.items():
        if term in name:
            return f'<abbr title="{html.escape(meaning)}">{shown}</abbr>'
    return shown


def _definitions(terms: Mapping[str, str]) -> str:
    rows = ""
    for term, meaning in terms.items():
        rows += f"<dt>{html.escape(term)}</dt><dd>{html.escape(meaning)}</dd>"
    return f"<dl>{rows}</dl>"
