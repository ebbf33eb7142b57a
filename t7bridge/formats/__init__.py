"""The graph ↔ what other libraries hold. Each module is the only importer of its library."""
