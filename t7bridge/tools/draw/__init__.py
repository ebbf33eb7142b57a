"""A model as a picture: `blocks` says what is drawn, `layout` where, `svg` and `dot` write it, `draw` is for users."""

FORMATS = (".svg", ".dot")
