#include "layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Json *node;
    const Tensors *weights;
} Layer;

/* Arguments are Python text: `2`, `(2, 3)`, `True`, `None`. Number `place` of a tuple; any place of a plain number. */
static double argument(Layer layer, const char *name, int place, double otherwise)
{
    const Json *found = json_get(json_get(layer.node, "arguments"), name);
    if (!found || !found->text || !strcmp(found->text, "None")) return otherwise;
    const char *text = found->text;
    if (!strcmp(text, "True")) return 1;
    if (!strcmp(text, "False")) return 0;
    if (*text == '(')
        for (text++; place-- && (text = strchr(text, ',')); text++) {}
    if (!text) fail("argument %s is %s", name, found->text);
    return strtod(text, NULL);
}

/* The positional arguments from `first` on; their number. */
static int sizes(Layer layer, int first, long *found)
{
    char name[8] = "0";
    int count = 0;
    for (name[0] = (char)('0' + first); json_get(json_get(layer.node, "arguments"), name) && count < MOST_DIMS; name[0]++)
        found[count++] = (long)argument(layer, name, 0, 0);
    return count;
}

static const Value *found_tensor(const Tensors *weights, const char *key)
{
    const Value *found = find_tensor(weights, key);
    if (!found) fail("the weights have no %s", key);
    return found;
}

static const Value *weight(Layer layer, const char *name, int needed)
{
    const Json *listed = json_get(layer.node, "weights");
    for (size_t place = 0; listed && place < listed->count; place++)
        if (!strcmp(json_get(&listed->items[place], "name")->text, name))
            return found_tensor(layer.weights, json_get(&listed->items[place], "key")->text);
    if (needed) fail("a layer without %s", name);
    return NULL;
}

static Value batched(Value input, int dims)
{
    if (input.items || (input.dims != dims && input.dims != dims - 1)) fail("a layer takes other dimensions");
    if (input.dims == dims) return input;
    memmove(input.shape + 1, input.shape, (size_t)(dims - 1) * sizeof *input.shape);
    input.shape[0] = 1;
    input.dims = dims;
    return input;
}

static Value unbatched(Value output, int plain)
{
    if (plain) memmove(output.shape, output.shape + 1, (size_t)--output.dims * sizeof *output.shape);
    return output;
}

static Value map(Value input, double (*function)(double))
{
    Value output = tensor(input.dims, input.shape);
    for (size_t i = 0; i < input.count; i++) output.data[i] = function(input.data[i]);
    return output;
}

static double relu(double x) { return x > 0 ? x : 0; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static Value linear(Layer layer, Value input)
{
    const Value *matrix = weight(layer, "weight", 1), *bias = weight(layer, "bias", 0);
    int last = input.dims - 1;
    if (last < 0 || matrix->dims != 2 || input.shape[last] != matrix->shape[1]) fail("Linear takes another width");
    size_t in = matrix->shape[1], out = matrix->shape[0], shape[MOST_DIMS];
    memcpy(shape, input.shape, sizeof shape);
    shape[last] = out;
    Value output = tensor(input.dims, shape);
    for (size_t row = 0; row < output.count / out; row++)
        for (size_t o = 0; o < out; o++) {
            double sum = bias ? bias->data[o] : 0;
            for (size_t i = 0; i < in; i++) sum += matrix->data[o * in + i] * input.data[row * in + i];
            output.data[row * out + o] = sum;
        }
    return output;
}

static Value conv(Layer layer, Value input)
{
    const Value *kernel = weight(layer, "weight", 1), *bias = weight(layer, "bias", 0);
    int plain = input.dims == 3;
    input = batched(input, 4);
    size_t groups = (size_t)argument(layer, "groups", 0, 1), out = kernel->shape[0], in = kernel->shape[1];
    long extent[2], stride[2], pad[2], dilation[2];
    if (input.shape[1] != in * groups) fail("Conv2d takes %zu planes and not %zu", in * groups, input.shape[1]);
    for (int d = 0; d < 2; d++) {
        stride[d] = (long)argument(layer, "stride", d, 1);
        pad[d] = (long)argument(layer, "padding", d, 0);
        dilation[d] = (long)argument(layer, "dilation", d, 1);
        long reach = (long)input.shape[2 + d] + 2 * pad[d] - dilation[d] * ((long)kernel->shape[2 + d] - 1) - 1;
        if (reach < 0 || stride[d] < 1) fail("an image that is too small for Conv2d");
        extent[d] = reach / stride[d] + 1;
    }
    Value output = tensor(4, (size_t[]){input.shape[0], out, (size_t)extent[0], (size_t)extent[1]});
    long height = (long)input.shape[2], width = (long)input.shape[3];
    long kh = (long)kernel->shape[2], kw = (long)kernel->shape[3];
    double *to = output.data;
    for (size_t n = 0; n < input.shape[0]; n++)
        for (size_t o = 0; o < out; o++)
            for (long y = 0; y < extent[0]; y++)
                for (long x = 0; x < extent[1]; x++) {
                    double sum = bias ? bias->data[o] : 0;
                    for (size_t i = 0; i < in; i++) {
                        size_t number = n * input.shape[1] + o / (out / groups) * in + i;
                        const double *plane = input.data + number * (size_t)(height * width);
                        const double *window = kernel->data + (o * in + i) * (size_t)(kh * kw);
                        for (long v = 0; v < kh; v++)
                            for (long u = 0; u < kw; u++) {
                                long row = y * stride[0] - pad[0] + v * dilation[0];
                                long column = x * stride[1] - pad[1] + u * dilation[1];
                                if (row >= 0 && row < height && column >= 0 && column < width)
                                    sum += window[v * kw + u] * plane[row * width + column];
                            }
                    }
                    *to++ = sum;
                }
    return unbatched(output, plain);
}

static Value transposed_conv(Layer layer, Value input)
{
    const Value *kernel = weight(layer, "weight", 1), *bias = weight(layer, "bias", 0);
    int plain = input.dims == 3;
    input = batched(input, 4);
    if (argument(layer, "groups", 0, 1) != 1) fail("a transposed convolution in groups");
    size_t in = kernel->shape[0], out = kernel->shape[1];
    long extent[2], stride[2], pad[2], kh = (long)kernel->shape[2], kw = (long)kernel->shape[3];
    if (input.shape[1] != in) fail("a transposed convolution takes %zu planes and not %zu", in, input.shape[1]);
    for (int d = 0; d < 2; d++) {
        stride[d] = (long)argument(layer, "stride", d, 1);
        pad[d] = (long)argument(layer, "padding", d, 0);
        extent[d] = ((long)input.shape[2 + d] - 1) * stride[d] - 2 * pad[d] + (d ? kw : kh);
        extent[d] += (long)argument(layer, "output_padding", d, 0);
        if (extent[d] < 1) fail("an image that is too small for a transposed convolution");
    }
    Value output = tensor(4, (size_t[]){input.shape[0], out, (size_t)extent[0], (size_t)extent[1]});
    long height = (long)input.shape[2], width = (long)input.shape[3];
    size_t plane = (size_t)(extent[0] * extent[1]);
    for (size_t i = 0; bias && i < output.count; i++) output.data[i] = bias->data[i / plane % out];
    for (size_t n = 0; n < input.shape[0]; n++)
        for (size_t i = 0; i < in; i++)
            for (long y = 0; y < height; y++)
                for (long x = 0; x < width; x++) {
                    double value = input.data[((n * in + i) * (size_t)height + (size_t)y) * (size_t)width + (size_t)x];
                    for (size_t o = 0; o < out; o++)
                        for (long v = 0; v < kh; v++)
                            for (long u = 0; u < kw; u++) {
                                long row = y * stride[0] - pad[0] + v, column = x * stride[1] - pad[1] + u;
                                if (row < 0 || row >= extent[0] || column < 0 || column >= extent[1]) continue;
                                size_t to = (n * out + o) * plane + (size_t)(row * extent[1] + column);
                                output.data[to] += value * kernel->data[(i * out + o) * (size_t)(kh * kw) + (size_t)(v * kw + u)];
                            }
                }
    return unbatched(output, plain);
}

/* The largest or the mean value of each window. The mean divides by all elements of the window inside the padded image. */
static Value pool(Layer layer, Value input, int mean)
{
    int plain = input.dims == 3;
    input = batched(input, 4);
    long kernel[2], stride[2], pad[2], extent[2], image[2] = {(long)input.shape[2], (long)input.shape[3]};
    int ceil_mode = (int)argument(layer, "ceil_mode", 0, 0), padded = (int)argument(layer, "count_include_pad", 0, 1);
    for (int d = 0; d < 2; d++) {
        kernel[d] = (long)argument(layer, "kernel_size", d, 0);
        if (kernel[d] < 1) kernel[d] = (long)argument(layer, "0", d, 1);
        stride[d] = (long)argument(layer, "stride", d, kernel[d]);
        pad[d] = (long)argument(layer, "padding", d, 0);
        long reach = image[d] + 2 * pad[d] - kernel[d];
        if (reach < 0 || argument(layer, "dilation", d, 1) != 1) fail("a pooling that the example does not compute");
        extent[d] = (reach + (ceil_mode ? stride[d] - 1 : 0)) / stride[d] + 1;
        if (ceil_mode && (extent[d] - 1) * stride[d] >= image[d] + pad[d]) extent[d]--;
    }
    Value output = tensor(4, (size_t[]){input.shape[0], input.shape[1], (size_t)extent[0], (size_t)extent[1]});
    double *to = output.data;
    for (size_t n = 0; n < input.shape[0] * input.shape[1]; n++)
        for (long y = 0; y < extent[0]; y++)
            for (long x = 0; x < extent[1]; x++) {
                double best = -INFINITY, sum = 0;
                long count = 0, inside = 0;
                for (long row = y * stride[0] - pad[0]; row < y * stride[0] - pad[0] + kernel[0]; row++)
                    for (long column = x * stride[1] - pad[1]; column < x * stride[1] - pad[1] + kernel[1]; column++) {
                        count += row < image[0] + pad[0] && column < image[1] + pad[1];
                        if (row < 0 || row >= image[0] || column < 0 || column >= image[1]) continue;
                        double value = input.data[(n * input.shape[2] + (size_t)row) * input.shape[3] + (size_t)column];
                        inside++;
                        sum += value;
                        best = value > best || isnan(value) ? value : best;
                    }
                *to++ = mean ? sum / (double)(padded ? count : inside) : best;
            }
    return unbatched(output, plain);
}

/* With the recorded mean and variance; channels are dimension 1, or the only one. */
static Value batch_norm(Layer layer, Value input)
{
    const Value *mean = weight(layer, "running_mean", 1), *variance = weight(layer, "running_var", 1);
    const Value *scale = weight(layer, "weight", 0), *bias = weight(layer, "bias", 0);
    double eps = argument(layer, "eps", 0, 1e-5);
    size_t channels = mean->count, inner = 1;
    int at = input.dims > 1 ? 1 : 0;
    if (input.dims < 1 || input.shape[at] != channels) fail("BatchNorm takes %zu channels", channels);
    for (int dim = at + 1; dim < input.dims; dim++) inner *= input.shape[dim];
    Value output = tensor(input.dims, input.shape);
    for (size_t i = 0; i < input.count; i++) {
        size_t c = i / inner % channels;
        double value = (input.data[i] - mean->data[c]) / sqrt(variance->data[c] + eps);
        output.data[i] = value * (scale ? scale->data[c] : 1) + (bias ? bias->data[c] : 0);
    }
    return output;
}

/* Along dimension 1 of a batch, and dimension 0 of one example, as in Lua: of 1 or 3 dimensions the first. */
static Value softmax(Value input, int logarithm)
{
    int dim = input.dims % 2 ? 0 : 1;
    size_t inner = 1, length;
    if (input.dims < 1 || input.dims > 4) fail("a softmax of %d dimensions", input.dims);
    length = input.shape[dim];
    for (int d = dim + 1; d < input.dims; d++) inner *= input.shape[d];
    Value output = tensor(input.dims, input.shape);
    for (size_t start = 0; start < input.count; start++) {
        if (start / inner % length) continue;
        double most = -INFINITY, sum = 0;
        for (size_t i = 0; i < length; i++) most = fmax(most, input.data[start + i * inner]);
        for (size_t i = 0; i < length; i++) sum += exp(input.data[start + i * inner] - most);
        for (size_t i = 0; i < length; i++) {
            double shifted = input.data[start + i * inner] - most;
            output.data[start + i * inner] = logarithm ? shifted - log(sum) : exp(shifted) / sum;
        }
    }
    return output;
}

static Value shaped(Value input, int dims, const long *wanted, long batch)
{
    Value output = input;
    size_t known = 1;
    int at = 0, open = -1;
    if (batch >= 0) known = output.shape[at++] = (size_t)batch;
    for (int d = 0; d < dims && at < MOST_DIMS; d++, at++) {
        if (wanted[d] < 0) open = at;
        else known *= output.shape[at] = (size_t)wanted[d];
    }
    if (open >= 0 && known) known *= output.shape[open] = input.count / known;
    if (known != input.count) fail("%zu elements do not fit a shape of %zu", input.count, known);
    output.dims = at;
    return output;
}

static Value reshape(Layer layer, Value input)
{
    long wanted[MOST_DIMS], mode = (long)argument(layer, "batch_mode", 0, -1);
    int dims = sizes(layer, 0, wanted);
    size_t elements = 1;
    for (int d = 0; d < dims; d++) elements *= (size_t)wanted[d];
    if (mode < 0) mode = input.count != elements || input.shape[0] == 1;
    return shaped(input, dims, wanted, mode ? (long)input.shape[0] : -1);
}

static Value view(Layer layer, Value input)
{
    long wanted[MOST_DIMS], example = (long)argument(layer, "n_input_dims", 0, -1), batch = 1, elements = 1;
    int dims = sizes(layer, 0, wanted), front = example < 0 || input.dims < example ? 0 : input.dims - (int)example, open = 0;
    for (int d = 0; d < front; d++) batch *= (long)input.shape[d];
    for (int d = 0; d < dims; d++) {
        open |= wanted[d] < 0;
        elements *= wanted[d];
    }
    if (!open) batch = elements ? (long)input.count / elements : 0;
    return shaped(input, dims, wanted, batch == 1 && !front ? -1 : batch);
}

static int dimension(Layer layer, int dims)
{
    long at = (long)argument(layer, "0", 0, 0), example = (long)argument(layer, "n_input_dims", 0, -1);
    if (at >= 0 && example >= 0 && dims == example + 1) at++;
    if (at < 0) at += dims;
    if (at < 0 || at >= dims) fail("dimension %ld of %d", at, dims);
    return (int)at;
}

Value concat(const Value *items, size_t count, int dim)
{
    size_t shape[MOST_DIMS], inner = 1, outer = 1, done = 0;
    if (!count || items[0].items) fail("nothing to join");
    if (dim < 0) dim += items[0].dims;
    if (dim < 0 || dim >= items[0].dims) fail("tensors joined along dimension %d", dim);
    memcpy(shape, items[0].shape, sizeof shape);
    for (size_t k = 1; k < count; k++) {
        for (int d = 0; d < items[0].dims; d++)
            if (items[k].items || items[k].dims != items[0].dims || (d != dim && items[k].shape[d] != shape[d]))
                fail("tensors of other shapes are joined");
        shape[dim] += items[k].shape[dim];
    }
    for (int d = 0; d < items[0].dims; d++) {
        if (d < dim) outer *= shape[d];
        if (d > dim) inner *= shape[d];
    }
    Value output = tensor(items[0].dims, shape);
    for (size_t k = 0; k < count; k++) {
        size_t run = items[k].shape[dim] * inner;
        for (size_t o = 0; o < outer; o++)
            memcpy(output.data + o * shape[dim] * inner + done, items[k].data + o * run, run * sizeof(double));
        done += run;
    }
    return output;
}

static Value split(Layer layer, Value input)
{
    int dim = dimension(layer, input.dims);
    size_t shape[MOST_DIMS], inner = 1, rank = 0;
    for (int d = 0; d < input.dims; d++) {
        if (d != dim) shape[rank++] = input.shape[d];
        if (d > dim) inner *= input.shape[d];
    }
    Value list = {0};
    list.count = input.shape[dim];
    list.items = need((list.count + 1) * sizeof *list.items);
    for (size_t k = 0; k < list.count; k++) {
        list.items[k] = tensor((int)rank, shape);
        for (size_t i = 0; i < list.items[k].count; i++)
            list.items[k].data[i] = input.data[(i / inner * list.count + k) * inner + i % inner];
    }
    return list;
}

/* The sum or the product of the tensors of a list. */
static Value fold(Value input, int product)
{
    if (!input.items || !input.count || input.items[0].items) fail("a layer that takes a list takes another value");
    Value output = tensor(input.items[0].dims, input.items[0].shape);
    memcpy(output.data, input.items[0].data, output.count * sizeof(double));
    for (size_t k = 1; k < input.count; k++) {
        if (input.items[k].items || input.items[k].count != output.count) fail("tensors of other shapes are added or multiplied");
        for (size_t i = 0; i < output.count; i++)
            output.data[i] = product ? output.data[i] * input.items[k].data[i] : output.data[i] + input.items[k].data[i];
    }
    return output;
}

/* Rows of a matrix, or of the unit matrix where there is none, by numbers that count from `index_base`. */
static Value rows(Layer layer, Value input, int embedding)
{
    const Value *matrix = embedding ? weight(layer, "weight", 1) : NULL;
    size_t width = embedding ? matrix->shape[1] : (size_t)argument(layer, "0", 0, 0), shape[MOST_DIMS];
    size_t most = embedding ? matrix->shape[0] : width;
    double base = argument(layer, "index_base", 0, embedding ? 1 : 0);
    if (input.items || input.dims >= MOST_DIMS) fail("indices of too many dimensions");
    memcpy(shape, input.shape, sizeof shape);
    shape[input.dims] = width;
    Value output = tensor(input.dims + 1, shape);
    for (size_t i = 0; i < input.count; i++) {
        double row = input.data[i] - base;
        if (!(row >= 0 && row < (double)most)) fail("index %g of %zu", input.data[i], most);
        if (embedding) memcpy(output.data + i * width, matrix->data + (size_t)row * width, width * sizeof(double));
        else output.data[i * width + (size_t)row] = 1;
    }
    return output;
}

static Value narrow(Layer layer, Value input)
{
    int dim = dimension(layer, input.dims);
    size_t start = (size_t)argument(layer, "1", 0, 0), length = (size_t)argument(layer, "2", 0, 1), shape[MOST_DIMS], inner = 1;
    memcpy(shape, input.shape, sizeof shape);
    if (start > shape[dim] || length > shape[dim] - start) fail("a part of %zu elements of %zu", length, shape[dim]);
    shape[dim] = length;
    for (int d = dim + 1; d < input.dims; d++) inner *= shape[d];
    Value output = tensor(input.dims, shape);
    for (size_t i = 0; i < output.count; i++) {
        size_t row = i / (length * inner), rest = i % (length * inner);
        output.data[i] = input.data[(row * input.shape[dim] + start) * inner + rest];
    }
    return output;
}

static Value scaled(Value input, double factor, double constant)
{
    Value output = tensor(input.dims, input.shape);
    for (size_t i = 0; i < input.count; i++) output.data[i] = input.data[i] * factor + constant;
    return output;
}

Value run_layer(const Json *node, const Tensors *weights, Value input)
{
    Layer layer = {node, weights};
    const char *title = json_get(node, "title")->text;
    int list = !strcmp(title, "JoinTable") || !strcmp(title, "CAddTable") || !strcmp(title, "CMulTable");
    if (!strcmp(title, "Identity") || !strncmp(title, "Dropout", 7)) return input;
    if (!strcmp(title, "SelectTable")) {
        long place = (long)argument(layer, "0", 0, 0) + (argument(layer, "0", 0, 0) < 0 ? (long)input.count : 0);
        if (!input.items || place < 0 || place >= (long)input.count) fail("element %ld of %zu", place, input.count);
        return input.items[place];
    }
    if (!list && input.items) fail("%s takes one tensor", title);
    if (list && !input.items) fail("%s takes a list", title);
    if (!strcmp(title, "Linear")) return linear(layer, input);
    if (!strcmp(title, "Conv2d")) return conv(layer, input);
    if (!strcmp(title, "ConvTranspose2d") || !strcmp(title, "FullConvolution2d")) return transposed_conv(layer, input);
    if (!strcmp(title, "MaxPool2d")) return pool(layer, input, 0);
    if (!strcmp(title, "AvgPool2d")) return pool(layer, input, 1);
    if (!strncmp(title, "BatchNorm", 9)) return batch_norm(layer, input);
    if (!strcmp(title, "ReLU")) return map(input, relu);
    if (!strcmp(title, "Tanh")) return map(input, tanh);
    if (!strcmp(title, "Sigmoid")) return map(input, sigmoid);
    if (!strcmp(title, "Softmax") || !strcmp(title, "LogSoftmax")) return softmax(input, title[0] == 'L');
    if (!strcmp(title, "Reshape")) return reshape(layer, input);
    if (!strcmp(title, "View")) return view(layer, input);
    if (!strcmp(title, "JoinTable")) return concat(input.items, input.count, dimension(layer, input.items[0].dims));
    if (!strcmp(title, "SplitTable")) return split(layer, input);
    if (!strcmp(title, "CAddTable")) return fold(input, 0);
    if (!strcmp(title, "CMulTable")) return fold(input, 1);
    if (!strcmp(title, "LookupTable")) return rows(layer, input, 1);
    if (!strcmp(title, "Narrow")) return narrow(layer, input);
    if (!strcmp(title, "MulConstant")) return scaled(input, argument(layer, "0", 0, 1), 0);
    if (!strcmp(title, "AddConstant")) return scaled(input, 1, argument(layer, "0", 0, 0));
    if (!strcmp(title, "OneHot")) return rows(layer, input, 0);
    fail("%s is not among the layers of this example", title);
    return input;
}
