"""One self-contained HTML page, and figures for a paper, from the folders that training leaves behind."""

from .write import write_report

__all__ = ["write_report"]
