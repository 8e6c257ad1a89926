"""How a log is spelled: one subpackage a dialect, and the NDJSON codec that both share."""
