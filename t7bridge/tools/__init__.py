"""What a user calls on whole files: load, verify, diff, scan, match, draw."""
