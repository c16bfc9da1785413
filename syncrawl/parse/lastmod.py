"""The dates that sitemaps and feeds give, as instants.

Any thread; pure functions; the standard library only.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_LONGEST = 64

# The profile of ISO 8601 at https://www.w3.org/TR/NOTE-datetime; a blank for the T and a zone
# without its colon or left out (read as UTC) are met so often that they are taken as well.
_W3C = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)(?:-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?)?"
    r"\s?(?:[Zz]|(?P<zone>[+-]\d\d:?\d\d))?)?)?)?",
    re.ASCII,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
# RFC 5322 section 3.3, with the years of two digits and the zone names of section 4.3. Without
# a zone it names no instant, and is refused.
_MAIL = re.compile(
    r"(?:[a-z]+,?\s+)?(?P<day>\d\d?)\s+(?P<month>[a-z]{3})[a-z]*\s+(?P<year>\d{4}|\d\d)\s+"
    r"(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d))?\s+(?P<zone>[+-]\d{4}|[a-z]{1,3})",
    re.ASCII | re.IGNORECASE,
)
_ZONES = {"gmt": 0, "ut": 0, "utc": 0, "z": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5}
_ZONES |= {"mst": -7, "mdt": -6, "pst": -8, "pdt": -7}


def instant(text: str) -> datetime | None:
    """What a W3C datetime or a mail date says, in UTC; None for anything else.

    A date without a time is its first instant, a month or year alone its first day.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return None
    read = _w3c if text[:4].isdigit() else _mail
    try:
        return read(text)
    except (ValueError, OverflowError):
        return None  # a month 13, a 31st of June, a year 10000


def _w3c(text: str) -> datetime | None:
    found = _W3C.fullmatch(text)
    if found is None:
        return None
    part = (found["part"] or "").ljust(6, "0")[:6]
    return datetime(
        int(found["year"]),
        int(found["month"] or 1),
        int(found["day"] or 1),
        int(found["hour"] or 0),
        int(found["minute"] or 0),
        int(found["second"] or 0),
        int(part),
        tzinfo=_offset(found["zone"] or "+0000"),
    ).astimezone(UTC)


def _mail(text: str) -> datetime | None:
    found = _MAIL.fullmatch(text)
    if found is None or found["month"].lower() not in _MONTHS:
        return None
    zone = found["zone"].lower()
    if zone[0] in "+-":
        offset = _offset(zone)
    elif zone in _ZONES:
        offset = timezone(timedelta(hours=_ZONES[zone]))
    else:
        return None
    year = int(found["year"])
    if year < 100:
        year += 2000 if year < 50 else 1900
    return datetime(
        year,
        _MONTHS.index(found["month"].lower()) + 1,
        int(found["day"]),
        int(found["hour"]),
        int(found["minute"]),
        int(found["second"] or 0),
        tzinfo=offset,
    ).astimezone(UTC)


def _offset(zone: str) -> timezone:
    digits = zone[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-ahead if zone[0] == "-" else ahead)
