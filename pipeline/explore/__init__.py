"""`prep explore`: a finished run in the browser, read-only and on this machine only."""
