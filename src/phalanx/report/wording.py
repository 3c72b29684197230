"""How numbers are written in sentences and tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"


def seconds(value: float) -> str:
    """A time with three significant digits: 0.714 s, 12.4 s, 1,204 s."""
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 10:
        return f"{value:.1f} s"
    return f"{value:.2f} s" if value >= 1 else f"{value:#.3g} s"


def fixed(value_s: float | None) -> str:
    """A time for a column of seconds: as `seconds`, without the unit."""
    return UNKNOWN if value_s is None else seconds(value_s).removesuffix(" s")


def grouped(value: float | None) -> str:
    """A large number with its thousands set apart."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(share: float, decimals: int) -> str:
    return f"{share * 100:.{decimals}f} %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign: +0.05."""
    text = f"{difference * 100:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", MINUS)


def joined(parts: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
