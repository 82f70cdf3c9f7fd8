"""One self-contained HTML page, and figures for a paper, from the folders that training leaves behind."""

try:
    from .write import write_report
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    raise ImportError("fcco.lab.report needs numpy: pip install 'fcco[lab]'") from error

__all__ = ["write_report"]
