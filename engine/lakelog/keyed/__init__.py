"""A store of keys and values over the write-ahead log: the flush protocol, whole."""
