"""The report of a table: figures (`charts`) and the HTML page (`page`)."""
