"""The form of the frontier's rows on disk: keys are text, values bytes.

Any thread; pure functions. Imports msgspec and the frontier's own models.

    meta            Meta as JSON: format number and fingerprint rules
    counts          Counts as JSON
    p:ID:...        a bundle: msgpack array of entries (see bundles.Bundle.row)
    d:COMMIT        done marks: msgpack array of (bundle, index); a bundle that is finished
                    as a whole is deleted instead
    s:COMMIT        fingerprints accepted by a commit, 8 bytes each
    x:COMMIT        those of them that were dropped at once for want of room (see Batch.shed)
    f:COMMIT        entries that failed or were dropped: msgpack array of (entry, state, reason)
    z:COMMIT        smaller depths met for unfinished URLs: msgpack array of (fingerprint, depth)
    n:KEY           the caller's notes
"""

from __future__ import annotations

import msgspec

from syncrawl.frontier.model import Counts, Entry, Finish

FORMAT = 1
DATABASE = "cache.db"
"""diskcache's name for its one file."""
MARKER = "format.json"
"""A copy of the meta row beside the database: an emptied or lost database is not taken for new."""

encode = msgspec.msgpack.Encoder().encode
decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode
decode_pairs = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
decode_ends = msgspec.msgpack.Decoder(list[Finish]).decode
encode_json = msgspec.json.Encoder().encode
decode_counts = msgspec.json.Decoder(Counts).decode


class Meta(msgspec.Struct, frozen=True):
    """What a state was written with. Another `format` cannot be read, other rules not compared."""

    format: int
    fingerprints: str = ""


decode_meta = msgspec.json.Decoder(Meta).decode
