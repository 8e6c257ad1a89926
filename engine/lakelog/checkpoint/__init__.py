"""Checkpoints: planned, written, proved against replay, published, scheduled, repaired."""
