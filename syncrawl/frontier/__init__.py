"""The frontier: every URL ever accepted, its state, and what is due next.

`model` has the data and the protocol, `memory` the reference implementation, `disk` the
durable one: `bytesdisk` opens its diskcache, `rows` says what is in it, `reader` and
`load` read it back, `revive` takes failed URLs back, `bundles` is the index in memory with
`marks` (what is finished) and `depths` (how many links away from a seed), `faults`
translates exceptions. All of it is confined to the commit thread, except `seen`, and
`inspect`, which any process may use.
"""
