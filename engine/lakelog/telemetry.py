"""What lakelog tells of its work: log lines always, OpenTelemetry where it is installed."""
