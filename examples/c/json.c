#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 200 };

typedef struct {
    const char *at, *end;
    int depth;
} Reader;

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("run_graph: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

void *need(size_t bytes)
{
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) fail("no memory for %zu bytes", bytes);
    return memory;
}

static void skip_space(Reader *reader)
{
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at) reader->at++;
}

static char peek(Reader *reader)
{
    skip_space(reader);
    return reader->at < reader->end ? *reader->at : '\0';
}

static void expect(Reader *reader, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, text, length)) fail("not JSON: no %s", text);
    reader->at += length;
}

static unsigned hex4(Reader *reader)
{
    char digits[5] = {0}, *stop;
    if (reader->end - reader->at < 4) fail("not JSON: a \\u without digits");
    memcpy(digits, reader->at, 4);
    reader->at += 4;
    unsigned long code = strtoul(digits, &stop, 16);
    if (stop != digits + 4) fail("not JSON: \\u%s", digits);
    return (unsigned)code;
}

static char *utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else { /* the halves of a pair stay apart: no name that is looked up has them */
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

static char *parse_string(Reader *reader)
{
    expect(reader, "\"");
    const char *end = reader->at;
    while (end < reader->end && *end != '"') end += *end == '\\' ? 2 : 1;
    if (end >= reader->end) fail("not JSON: a string without end");
    char *text = need((size_t)(end - reader->at) + 1), *to = text;
    while (reader->at < end) {
        char next = *reader->at++;
        if (next != '\\') {
            *to++ = next;
            continue;
        }
        next = *reader->at++;
        const char *plain = strchr("b\bf\fn\nr\rt\t", next);
        if (next == 'u') to = utf8(to, hex4(reader));
        else *to++ = plain && next ? plain[1] : next;
    }
    reader->at = end + 1;
    return text;
}

static Json parse(Reader *reader);

static void parse_items(Reader *reader, Json *value, char close)
{
    size_t room = 0;
    reader->at++;
    while (peek(reader) != close) {
        if (value->count) {
            expect(reader, ",");
            skip_space(reader);
        }
        if (value->count == room) {
            room = room ? 2 * room : 8;
            value->items = realloc(value->items, room * sizeof *value->items);
            value->names = realloc(value->names, room * sizeof *value->names);
            if (!value->items || !value->names) fail("no memory");
        }
        if (close == '}') {
            value->names[value->count] = parse_string(reader);
            skip_space(reader);
            expect(reader, ":");
        }
        value->items[value->count++] = parse(reader);
    }
    reader->at++;
}

static Json parse(Reader *reader)
{
    Json value = {0};
    if (++reader->depth > DEEPEST) fail("JSON is nested too deep");
    switch (peek(reader)) {
    case '{': value.kind = JSON_OBJECT; parse_items(reader, &value, '}'); break;
    case '[': value.kind = JSON_LIST; parse_items(reader, &value, ']'); break;
    case '"': value.kind = JSON_STRING; value.text = parse_string(reader); break;
    case 't': value.kind = JSON_TRUE; expect(reader, "true"); break;
    case 'f': value.kind = JSON_FALSE; expect(reader, "false"); break;
    case 'n': value.kind = JSON_NULL; expect(reader, "null"); break;
    default: {
        char digits[40] = {0}, *stop;
        size_t length = (size_t)(reader->end - reader->at);
        memcpy(digits, reader->at, length < sizeof digits - 1 ? length : sizeof digits - 1);
        value.kind = JSON_NUMBER;
        value.number = strtod(digits, &stop);
        if (stop == digits) fail("not JSON");
        reader->at += stop - digits;
    }
    }
    reader->depth--;
    return value;
}

Json json_parse(const char *bytes, size_t length)
{
    Reader reader = {bytes, bytes + length, 0};
    Json value = parse(&reader);
    if (peek(&reader)) fail("not JSON: more behind the value");
    return value;
}

const Json *json_get(const Json *object, const char *name)
{
    for (size_t place = 0; object && object->kind == JSON_OBJECT && place < object->count; place++)
        if (!strcmp(object->names[place], name)) return &object->items[place];
    return NULL;
}
