"""Limiters, one a file: each owns one idea, none of them waits, sleeps or does I/O."""
