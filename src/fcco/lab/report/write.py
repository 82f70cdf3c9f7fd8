"""From run folders to one HTML page and the figures beside it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fcco._support.files import replace_file

from .figures import write_figures
from .groups import group_runs
from .payload import build, draw_curves
from .runs import read_runs

STYLES = ("page.css", "parts.css")
SCRIPTS = ("dom.js", "format.js", "scale.js", "chart.js", "hover.js", "tables.js", "target.js", "head.js", "app.js")


def write_report(
    runs: Sequence[Path],
    out: Path,
    title: str = "fcco report",
    *,
    note: str = "",
    by: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML page, and PNG and PDF figures beside it.

    Args:
        runs: run folders, or folders that hold run folders at any depth.
        out: the page's path (NAME.html), or the folder in which report.html is written.
        title: the page's title.
        note: stands on the page and under every figure: what a reader must know (a shortened budget, a chosen margin).
        by: names of the configuration that tell groups apart; none: runs that differ in their seed alone are a group.

    Returns:
        The page's path. The figures are NAME-METRIC-AXIS.png and .pdf in the same folder.

    Raises:
        ValueError: a path is not a folder, there is no run, or `by` names what no configuration has.
        OSError: `out` cannot be written.
    """
    found = read_runs([Path(path) for path in runs])
    groups = group_runs(found, by)
    curves = draw_curves(groups)
    page = render(build(found, groups, curves, title, note))
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, page)
    write_figures(groups, curves, path.with_suffix(""), note)
    return path


def render(data: dict[str, Any]) -> str:
    """Return the page as HTML.

    The policy lets the page's own style and script run, by their hashes, and nothing else. Names arrive as JSON
    and are set as text.
    """
    style = "\n".join(_asset(name) for name in STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"
    parts = {
        "policy": f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:",
        "title": html.escape(data["title"]),
        "style": style,
        "data": embed(data),
        "script": script,
    }
    first, *rest = _asset("page.html").split("@@")  # text, name, text, name, ..., text
    page = first
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        page += parts[name] + text
    return page


def embed(data: object) -> str:
    """Return JSON that is safe inside a script element: no <, > or & is left in it.

    >>> embed("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()


def _write(path: Path, text: str) -> None:
    """Write the page all or nothing: a full disk leaves the page that was there."""
    replace_file(path, lambda file: file.write(text.encode("utf-8", errors="replace")))
