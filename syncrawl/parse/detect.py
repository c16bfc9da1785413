"""A guess at the encoding of text that declares none.

Any thread; pure functions; imports nothing from the package, charset_normalizer only when
a body is neither ASCII nor UTF-8 nor plainly Western.
"""

from __future__ import annotations

import codecs
import re

FALLBACK = "windows-1252"

# The encodings that undeclared pages on the Web are in, as Python names them, and what we call
# them. Without this list the detector tries every codec, EBCDIC among them, at 10 times the cost.
_CANDIDATES = {
    "cp1252": FALLBACK,
    "cp1250": "windows-1250",
    "cp1251": "windows-1251",
    "cp1253": "windows-1253",
    "cp1254": "windows-1254",
    "cp1255": "windows-1255",
    "cp1256": "windows-1256",
    "cp874": "cp874",
    "iso8859_2": "iso-8859-2",
    "koi8_r": "koi8-r",
    "cp932": "cp932",
    "euc_jp": "euc-jp",
    "gb18030": "gb18030",
    "big5": "big5hkscs",
    "cp949": "cp949",
}
_WINDOW_BYTES = 16_384
_SAMPLE_BYTES = 3_072
_CHECKED_AT_ONCE = 1 << 16
# Fewer different bytes beyond ASCII prove nothing: a copyright sign alone is half-width kana too.
_MIN_DISTINCT = 4
_TAG = re.compile(rb"<[^<>]*>")
_NON_ASCII = re.compile(rb"[\x80-\xff]")


def is_utf8(body: bytes) -> bool:
    """Whether the whole body is valid UTF-8; no copy of a large one is made."""
    if body.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    try:
        for start in range(0, len(body), _CHECKED_AT_ONCE):
            decoder.decode(view[start : start + _CHECKED_AT_ONCE])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def detect(body: bytes) -> str:
    """The likeliest encoding of `body`: UTF-8 where valid, a detector's guess, else windows-1252.

    The guess looks at no more than a few KiB around the first byte that is not ASCII.
    """
    if is_utf8(body):
        return "utf-8"
    sample = _sample(body)
    if sum(byte >= 0x80 for byte in set(sample)) < _MIN_DISTINCT:
        return FALLBACK
    return _guess(sample)


def _sample(body: bytes) -> bytes:
    """Bytes that are worth a look: from the first that is not ASCII on, without markup."""
    first = _NON_ASCII.search(body)
    start = first.start() if first else 0
    # A few ASCII bytes before it give the detector a word to start with.
    window = body[max(0, start - 64) : start + _WINDOW_BYTES]
    return _TAG.sub(b" ", window)[:_SAMPLE_BYTES]


def _guess(sample: bytes) -> str:
    from charset_normalizer import from_bytes  # costs 10 ms and most crawls never need it

    matches = list(from_bytes(sample, cp_isolation=list(_CANDIDATES)))
    if not matches:
        return FALLBACK
    best = matches[0]
    for match in matches:
        western = match.encoding == "cp1252" or "cp1252" in match.could_be_from_charset
        # Central European readings of Western text score the same; the commoner one wins.
        if western and match.chaos <= best.chaos and match.coherence >= best.coherence:
            return FALLBACK
    return _CANDIDATES.get(best.encoding, FALLBACK)
