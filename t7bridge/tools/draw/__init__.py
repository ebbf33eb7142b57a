"""A model as a picture: `blocks` and `structure` say what is drawn, `page` and others write it, `draw` is for users."""

FORMATS = (".html", ".svg", ".png", ".dot", ".json")
