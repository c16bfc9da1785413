"""Facts of the public robots corpus that we answer otherwise on purpose, and why.

Keyed by the fact's id, or by section and index where facts have none. The corpus test
fails on a fact missing here and on an entry that is no difference any more.
"""

from __future__ import annotations

UNKNOWN_LINE = "RFC 9309 2.2.4: an unknown line between User-agent lines starts no new group"
WHOLE_TOKEN = (
    "RFC 9309 2.2.1, Google: a group's name is the whole product token, no beginning of it"
)
NO_GROUP = "RFC 9309 2.2.1, Google: rules before any User-agent line bind nobody"
FULL_HEADER = "we are handed a header, whose token is Foo; Google's caller hands over the token"
AGENT_LIST = "a list of names is no user agent; its first name is taken"
ONE_NAME = "Google: a User-agent line names one token, up to its first other character"
LONG_DELAY = "a long Crawl-delay is cut to max_crawl_delay by the engine, it closes no host"

DIFFERENCES = {
    "rb0040": FULL_HEADER,
    **dict.fromkeys(("rb0347", "rb0348", "rb0349", "rb0491"), UNKNOWN_LINE),
    **dict.fromkeys(("rb0477", "rb0478", "rb0480", "rb0481"), WHOLE_TOKEN),
    **dict.fromkeys(("rb0483", "other_fields 4"), NO_GROUP),
    **dict.fromkeys(("rb0718", "rb0720", "rb0722", "rb0726"), AGENT_LIST),
    **dict.fromkeys(("rb0728", "rb0740", "rb0742", "rb0748"), AGENT_LIST),
    **dict.fromkeys(("rb0791", "rb0794", "rb0803", "rb0812", "rb0866"), ONE_NAME),
    "rb0875": LONG_DELAY,
}
