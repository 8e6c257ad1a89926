"""Statistics and partition values: typed, as text, and as reasons to leave a file out."""
