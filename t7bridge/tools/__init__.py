"""Operations on whole files: load, verify, diff, scan, match, draw."""
