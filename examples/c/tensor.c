#include "tensor.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

Value tensor(int dims, const size_t *shape)
{
    Value made = {0};
    if (dims > MOST_DIMS) fail("a tensor of %d dimensions", dims);
    made.dims = dims;
    made.count = 1;
    for (int dim = 0; dim < dims; dim++) {
        made.shape[dim] = shape[dim];
        if (shape[dim] && made.count > ((size_t)1 << 40) / shape[dim]) fail("a tensor that is too large");
        made.count *= shape[dim];
    }
    made.data = need(made.count * sizeof *made.data);
    return made;
}

char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail("%s cannot be read", path);
    long size = ftell(file);
    rewind(file);
    char *bytes = need((size_t)size + 1);
    if (size < 0 || fread(bytes, 1, (size_t)size, file) != (size_t)size) fail("%s cannot be read", path);
    fclose(file);
    *length = (size_t)size;
    return bytes;
}

static double element(const char *at, const char *type)
{
    float f32;
    double f64;
    int64_t i64;
    int32_t i32;
    if (!strcmp(type, "F32")) return memcpy(&f32, at, 4), f32;
    if (!strcmp(type, "F64")) return memcpy(&f64, at, 8), f64;
    if (!strcmp(type, "I64")) return memcpy(&i64, at, 8), (double)i64;
    if (!strcmp(type, "I32")) return memcpy(&i32, at, 4), i32;
    return (unsigned char)*at;
}

Tensors read_safetensors(const char *path)
{
    static const struct {
        const char *name;
        size_t width;
    } types[] = {{"F32", 4}, {"F64", 8}, {"I64", 8}, {"I32", 4}, {"U8", 1}};
    size_t length;
    char *bytes = read_file(path, &length);
    uint64_t header = 0;
    if (length >= 8) memcpy(&header, bytes, 8);
    if (!header || header > length - 8) fail("%s is not a .safetensors file", path);
    Json json = json_parse(bytes + 8, header);
    const char *data = bytes + 8 + header;
    size_t available = length - 8 - header;
    Tensors found = {0, need(json.count * sizeof(char *)), need(json.count * sizeof(Value))};
    for (size_t place = 0; place < json.count; place++) {
        const Json *type = json_get(&json.items[place], "dtype"), *sizes = json_get(&json.items[place], "shape");
        const Json *offsets = json_get(&json.items[place], "data_offsets");
        size_t shape[MOST_DIMS] = {0}, width = 0;
        if (!type || !sizes || !offsets || offsets->count != 2 || sizes->count > MOST_DIMS) continue; /* metadata */
        for (size_t each = 0; each < sizeof types / sizeof *types; each++)
            if (!strcmp(types[each].name, type->text)) width = types[each].width;
        if (!width) fail("%s: elements of type %s", json.names[place], type->text);
        for (size_t dim = 0; dim < sizes->count; dim++) shape[dim] = (size_t)sizes->items[dim].number;
        Value made = tensor((int)sizes->count, shape);
        size_t start = (size_t)offsets->items[0].number, end = (size_t)offsets->items[1].number;
        if (end > available || start > end || end - start != made.count * width)
            fail("%s: offsets that do not fit", json.names[place]);
        for (size_t i = 0; i < made.count; i++) made.data[i] = element(data + start + i * width, type->text);
        found.names[found.count] = json.names[place];
        found.tensors[found.count++] = made;
    }
    return found;
}

const Value *find_tensor(const Tensors *tensors, const char *name)
{
    for (size_t place = 0; place < tensors->count; place++)
        if (!strcmp(tensors->names[place], name)) return &tensors->tensors[place];
    return NULL;
}
