"""Which encoding a body is in, by WHATWG's order of evidence, and its text in it.

Any thread; pure functions; imports the parse stage's own modules and webencodings, the
label table of https://encoding.spec.whatwg.org/. Where Python's codec of that name is
narrower than the standard's decoder, the wider codec is named: gbk -> gb18030,
shift_jis -> cp932, euc-kr -> cp949, big5 -> big5hkscs.
"""

from __future__ import annotations

import codecs
import re
from functools import cache, lru_cache

import webencodings

from syncrawl.parse.detect import FALLBACK, detect
from syncrawl.parse.media import may_declare_inside
from syncrawl.parse.prescan import labels_inside

# WHATWG looks at 1024 bytes and lets the parser start over when a later `<meta>` disagrees;
# looking further at once comes to the same.
_PRESCAN_BYTES = 16_384

# The longer marks first: UTF-32's begins with UTF-16's.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_BE, "utf-32be"),
    (codecs.BOM_UTF32_LE, "utf-32le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
)
_PARAMETER = re.compile(
    r";[\t\r\n ]*([^\s;=\",]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;\",]*))"
    # What follows must end the value; a comma only does before another media type.
    r"(?=[\t\r\n ]*(?:;|$|,\s*[\w.+*-]+/))"
)
_PLAIN_LABEL = re.compile(r"\s*[A-Za-z0-9._:-]+\s*")
_WIDER = {"gbk": "gb18030"}
_GB18030_ERRORS = "syncrawl.gb18030"


def find_encoding(body: bytes, content_type: str) -> str:
    """The Python codec name to decode a text with: what is declared, else detected.

    `content_type` is the whole header field, "" for none. Costs about a microsecond where
    the field names a charset and a few milliseconds at most where nothing does.
    """
    return declared_encoding(body, content_type) or detect(body)


def declared_encoding(body: bytes, content_type: str) -> str | None:
    """The codec that a byte order mark, the header, or the document itself names, in that order.

    Labels nobody knows are passed over. UTF-16 named inside the document means UTF-8.
    """
    # Three first bytes begin all the marks, and hardly any page.
    if body[:1] in (b"\xef", b"\xfe", b"\xff", b"\0"):
        for mark, name in _BYTE_ORDER_MARKS:
            if body.startswith(mark):
                return name
    name_in_header = _charset_of(content_type)
    if name_in_header == "utf-16le":
        # The label "utf-16" comes down to this, whatever order the server meant.
        return "utf-16be" if body[:1] == b"\0" and body[1:2] != b"\0" else "utf-16le"
    if name_in_header is not None:
        return name_in_header
    return _encoding_inside(body[:_PRESCAN_BYTES]) if may_declare_inside(content_type) else None


def codec_for(label: str) -> str | None:
    """The Python codec of an encoding label; None for an unknown one, or one that is no text.

    Knows WHATWG's labels, and Python's names for the same encodings ("latin-1").
    """
    found = webencodings.lookup(label)
    if found is None:
        # Python would forgive any punctuation, a stray quote included.
        if _PLAIN_LABEL.fullmatch(label) is None:
            return None
        try:
            found = webencodings.lookup(codecs.lookup(label.strip()).name)
        except (LookupError, ValueError):
            return None
    # "replacement" stands for encodings that are unsafe to decode.
    if found is None or found.name == "replacement":
        return None
    if found.name == "x-user-defined":
        return FALLBACK
    python_name: str = _WIDER.get(found.name, found.codec_info.name)
    try:
        same = codecs.lookup(found.name).name == python_name
    except LookupError:
        same = False
    return str(found.name) if same else python_name


def decode(body: bytes, encoding: str) -> str:
    """The body as text: its byte order mark dropped, what is undecodable replaced by U+FFFD.

    A codec name that Python does not know counts as UTF-8.
    """
    errors = _gb18030_errors() if encoding == "gb18030" else "replace"
    try:
        text = body.decode(encoding, errors)
    except (LookupError, UnicodeError):
        text = body.decode("utf-8", "replace")
    return text.removeprefix("\ufeff")


@lru_cache(maxsize=256)
def _charset_of(content_type: str) -> str | None:
    """The codec of the first usable charset parameter (RFC 9110 section 8.3.2)."""
    for name, quoted, token in _PARAMETER.findall(content_type):
        if name.lower() == "charset" and (codec := codec_for(quoted or token)):
            return codec
    return None


def _encoding_inside(head: bytes) -> str | None:
    if head[:1] == b"<" and head[1:2] == b"\0" and head[3:4] == b"\0":
        return "utf-16le"
    if head[:2] == b"\0<" and head[2:3] == b"\0":
        return "utf-16be"
    for label in labels_inside(head):
        name = codec_for(label)
        if name is not None:
            # Had it been UTF-16, this could not have been read.
            return "utf-8" if name.startswith("utf-16") else name
    return None


@cache
def _gb18030_errors() -> str:
    """Makes the error handler known to Python, once, and tells its name."""

    def euro_or_replacement(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        # A lone 0x80 is the euro sign on the Web; Python's codec does not know it.
        if error.object[error.start] == 0x80:
            return "€", error.start + 1
        return "\ufffd", error.end

    codecs.register_error(_GB18030_ERRORS, euro_or_replacement)
    return _GB18030_ERRORS
