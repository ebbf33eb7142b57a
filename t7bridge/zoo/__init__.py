"""Many files at once: plan, journal, engines and report. `convert_zoo` is what a user calls."""
