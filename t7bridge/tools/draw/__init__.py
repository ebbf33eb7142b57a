"""Drawing of models: `blocks` and `structure` build the picture, `page` and others write it; `draw` is public."""

FORMATS = (".html", ".svg", ".png", ".dot", ".json")
