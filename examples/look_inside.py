"""Content of a training checkpoint, and a weight as a numpy array."""

import t7bridge

checkpoint = t7bridge.load("testfiles/models/training_checkpoint.t7")
print("epoch", checkpoint["epoch"], "classes", checkpoint["classes"].as_list())
for number, layer in checkpoint["model"]["modules"].items():
    weight = layer.get("weight")
    print(int(number), layer.class_name, weight.numpy().shape if weight else "")
