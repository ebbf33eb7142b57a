"""Questions about values, whatever their format: compare, diff, describe, outline, widened types."""
