"""Drawing of models: `blocks` makes the picture's content, `shapes` infers its shapes, `view` selects what is shown,
`layout` and `pictures` write it, `drawing` has the verb.
"""
