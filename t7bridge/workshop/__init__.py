"""What one can do with models besides converting them. Each room has one door, its `__init__`, and could be a
package of its own: `t7bridge/__init__`, `cli` and `zoo` enter by the doors, and the core imports nothing of it.
"""
