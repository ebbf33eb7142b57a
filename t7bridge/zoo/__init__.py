"""Conversion of many files: plan, journal, engines and report. `convert_zoo` is the entry point."""
