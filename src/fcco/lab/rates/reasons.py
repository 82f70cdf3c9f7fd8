"""Why intervals miss their claims, as far as it was found out."""

from __future__ import annotations

from dataclasses import replace

from fcco.lab.rates.fit import Row

QUICK = "The quick run is too short to judge; see the full one."
UNKNOWN = "No reason found."

# the start of a row's key -> why; the first that fits is taken
REASONS: tuple[tuple[str, str], ...] = ()


def reason(row: Row, quick: bool) -> Row:
    """The row with the reason of its miss."""
    known = next((why for start, why in REASONS if row.key.startswith(start)), UNKNOWN)
    return replace(row, reason=QUICK if quick else known)
