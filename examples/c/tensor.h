/* Tensors, lists of tensors, and files of named tensors. */
#ifndef TENSOR_H
#define TENSOR_H
#include <stddef.h>

enum { MOST_DIMS = 8 };

/* A tensor, contiguous and in double precision; or, where `items` is set, a list of `count` values. */
typedef struct Value Value;
struct Value {
    int dims;
    size_t shape[MOST_DIMS];
    double *data;
    size_t count; /* elements of a tensor, or values of a list */
    Value *items;
};

/* A tensor of zeros. */
Value tensor(int dims, const size_t *shape);

/* The bytes of a file; ends the program where it cannot be read. */
char *read_file(const char *path, size_t *length);

typedef struct {
    size_t count;
    char **names;
    Value *tensors;
} Tensors;

/* Read a .safetensors file: 8 bytes length of the header, the header as JSON, the elements, all little-endian.
   Takes F32, F64, I64, I32 and U8. The machine must be little-endian. */
Tensors read_safetensors(const char *path);

/* The tensor of a name, or NULL. */
const Value *find_tensor(const Tensors *tensors, const char *name);

#endif
