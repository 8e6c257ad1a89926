"""Log segment, replay, snapshot and history."""
