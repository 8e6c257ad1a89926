"""Mending a log: what is broken, what can be made again from what is left, and what cannot."""
