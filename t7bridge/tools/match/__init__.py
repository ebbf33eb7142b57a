"""Mapping the keys of one state dict to another model's, by structure, order and shape.

`sides` opens files, calls factories and reads graphs, cuts state dicts into parts and determines which look alike,
`align` pairs them, `matching` combines these with the user's mapping, `result` is what follows, `libraries` knows the
models of torchvision and timm.
"""
