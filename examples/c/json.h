/* A JSON value, as much of it as graphs and safetensors headers need. */
#ifndef JSON_H
#define JSON_H
#include <stddef.h>

typedef struct Json Json;
struct Json {
    enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT } kind;
    double number;
    char *text;   /* of a string */
    size_t count; /* of a list or an object */
    char **names; /* of an object */
    Json *items;
};

/* Parse `length` bytes; end the program with a message if they are not JSON. */
Json json_parse(const char *bytes, size_t length);

/* The value of a name in an object, or NULL. */
const Json *json_get(const Json *object, const char *name);

/* End the program with a message. */
void fail(const char *format, ...);

/* malloc that ends the program where there is no memory. What it returns lives as long as the program. */
void *need(size_t bytes);

#endif
