"""What may go: log cleanup, vacuum of data files, and what a retention would cost."""
