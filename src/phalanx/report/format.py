"""Formatting of numbers in sentences and tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # benchmarks format sizes here and need no interval
    from phalanx.report.statistics import Interval

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"


def seconds(value: float) -> str:
    """A time with three significant digits: 0.714 s, 12.4 s, 1,204 s."""
    return f"{three_digits(value)} s" if value >= 1 else f"{value:#.3g} s"


def fixed(value_s: float) -> str:
    """A time for a column of seconds: as `seconds`, without the unit."""
    return seconds(value_s).removesuffix(" s")


def grouped(value: float) -> str:
    """A large number with its thousands set apart."""
    return f"{value:,.0f}"


def percent(share: float, decimals: int) -> str:
    return f"{share * 100:.{decimals}f} %"


def whole_percent(share: float) -> str:
    return percent(share, 0)


def one_decimal(share: float) -> str:
    """A share in percent: 31.4 %."""
    return percent(share, 1)


def two_decimals(share: float) -> str:
    return percent(share, 2)


def signed_percent(difference: float) -> str:
    """A relative difference with its sign: +3.1 %."""
    return f"{_signed(difference * 100, 1)} %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign: +0.05."""
    return _signed(difference * 100, 2)


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+.{decimals}f}"
    return text.replace("-", MINUS) if float(text) else text[1:]


def span(interval: Interval) -> str:
    """Format an interval: 1.81\N{EN DASH}2.05."""
    return f"{interval.low:.2f}\N{EN DASH}{interval.high:.2f}"


def ends(interval: Interval, form: Callable[[float], str]) -> str:
    """The ends of an interval: 7.9 % to 8.4 %."""
    return f"{form(interval.low)} to {form(interval.high)}"


def points_with_span(interval: Interval) -> str:
    """A difference of shares: +0.09 points (+0.06 to +0.14)."""
    return f"{points(interval.estimate)} points ({ends(interval, points)})"


def joined(parts: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


NAMED = 3  # items of a list in a sentence


def first_few(names: Sequence[str]) -> str:
    """a, b, c and 2 more."""
    rest = len(names) - NAMED
    return joined([*names[:NAMED], *([f"{rest} more"] if rest > 0 else [])])


def counted(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sentence(text: str) -> str:
    """Begin with a capital and end with a full stop; names such as HDF5 keep theirs."""
    return f"{text[0].upper()}{text[1:]}."


def capitals(label: str) -> str:
    """Return the label of a model in capitals; `file.py:function` stays as it is."""
    return label if ":" in label else label.upper()


def microseconds(value_s: float) -> str:
    """A time for a column of microseconds, with three digits or more: 0.87, 10.6, 1,204."""
    return three_digits(value_s * 1e6)


def duration(value_s: float) -> str:
    """A short time in the unit that suits it: 870 ns, 10.6 µs, 1.20 ms, 2.50 s."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value_s >= unit:
            return f"{three_digits(value_s / unit)} {name}"
    return f"{value_s * 1e9:.0f} ns"


def three_digits(value: float) -> str:
    """3.14, 31.4, 314, 3,142."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(num_bytes: int) -> str:
    """Format bytes as on the command line, where a KB is 1024: 4 B, 64 KB, 25 MB, 1,000 B."""
    for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "KB")):
        if num_bytes >= unit and num_bytes % (unit // 4) == 0:
            return f"{num_bytes / unit:g} {name}"
    return f"{num_bytes:,} B"


def amount(num_bytes: float) -> str:
    """Measured bytes with three digits, where a KB is 1024: 12 B, 1.23 KB, 45.6 MB."""
    for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "KB")):
        if num_bytes >= unit:
            return f"{three_digits(num_bytes / unit)} {name}"
    return f"{num_bytes:.0f} B"
