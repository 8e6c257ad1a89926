"""Write-ahead log: frames, segments, append, replay, truncate; the two historic formats."""
