/* The layers that the example computes, as PyTorch's modules do in evaluation mode. */
#ifndef LAYERS_H
#define LAYERS_H
#include "json.h"
#include "tensor.h"

/* The output of a layer. `node` is one of the graph, `weights` the model's. Ends the program where the class of the node
   is not among those it knows, or the input has another shape than it takes. */
Value run_layer(const Json *node, const Tensors *weights, Value input);

/* Tensors that differ in `dim` only, one after the other along it; from the end where `dim` is negative. */
Value concat(const Value *items, size_t count, int dim);

#endif
