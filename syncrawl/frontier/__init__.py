"""The frontier: every URL ever accepted, its state, and what is due next.

`model` has the data and the protocol, `memory` the reference implementation, `disk` the
durable one on diskcache. All of it is confined to the commit thread, except `seen`.
"""
