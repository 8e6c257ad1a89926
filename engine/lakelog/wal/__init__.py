"""The write-ahead log: small writes made durable on local disk, replayed as Arrow tables."""
