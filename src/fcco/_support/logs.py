"""What log 0 is written as."""

from __future__ import annotations

#: Far below every log g that scores can give, and finite.
ZERO = -1.0e6
