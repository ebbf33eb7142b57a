/* Run a model without Python, Lua or PyTorch: from its graph as data and its weights.

       t7bridge draw model.t7 -o model.json
       t7bridge convert model.t7 model.safetensors
       cc -std=c99 -O2 -o run_graph run_graph.c layers.c tensor.c json.c -lm
       ./run_graph model.json model.safetensors values.safetensors

   The values are tensors named `input`, or `input.0`, `input.1`, … of a model that takes several, and, if one wants to
   compare, `output` or `output.0`, …. The exit code is 1 where an output differs by more than 1e-5, and 2 on errors.
   The format of the graph is described in docs/graph-json.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "layers.h"
#include "tensor.h"

static const Json *nodes;
static Tensors weights;

static const Json *node_of(const Json *number)
{
    if (!number || number->number < 0 || number->number >= (double)nodes->count) fail("a node that is not there");
    return &nodes->items[(size_t)number->number];
}

static const char *text_of(const Json *node, const char *name)
{
    const Json *found = json_get(node, name);
    return found && found->kind == JSON_STRING ? found->text : "";
}

static Value run(const Json *node, Value input, int depth);

/* One run of a container whose edges say what flows where. */
typedef struct {
    const Json *node, *children, *edges;
    Value input, *outputs;
    char *state; /* of each child: 0, 1 while it is computed, 2 when it is */
    int depth;
} Graph;

static size_t child_number(const Graph *graph, double id)
{
    for (size_t place = 0; place < graph->children->count; place++)
        if (graph->children->items[place].number == id) return place;
    fail("an edge to a node that is not in the container");
    return 0;
}

/* A label is `2: [0][1]`: the second input is the second element of the first element of the output. Each part may be
   absent. Elements count from 0, inputs from 1. */
static Value carried(Value value, const char *label, size_t *number)
{
    const char *at = label;
    if (*at >= '1' && *at <= '9') *number = (size_t)strtoul(at, (char **)&at, 10);
    at += strspn(at, ": ");
    while (*at == '[') {
        size_t element = (size_t)strtoul(at + 1, (char **)&at, 10);
        if (!value.items || element >= value.count) fail("an edge carries element %zu, which is not there", element);
        value = value.items[element];
        at += *at == ']';
    }
    return value;
}

/* The number of values that edges carry to a child. */
static size_t incoming(const Graph *graph, double id)
{
    size_t count = 0;
    for (size_t place = 0; place < graph->edges->count; place++) {
        const Json *edge = &graph->edges->items[place];
        if (edge->count != 3 || edge->items[2].kind != JSON_STRING) fail("an edge that is not [from, to, label]");
        if (edge->items[1].number != id) continue;
        for (const char *at = edge->items[2].text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) count++;
    }
    return count;
}

static Value output_of(Graph *graph, size_t child)
{
    if (graph->state[child] == 2) return graph->outputs[child];
    if (graph->state[child] == 1) fail("a graph with a cycle");
    graph->state[child] = 1;
    const Json *node = node_of(&graph->children->items[child]);
    double id = graph->children->items[child].number;
    size_t count = 0, numbered = 0;
    Value list = {0};
    size_t most = incoming(graph, id);
    list.items = need((most + 1) * sizeof *list.items);
    for (size_t place = 0; place < graph->edges->count; place++) {
        const Json *edge = &graph->edges->items[place];
        if (edge->items[1].number != id) continue;
        Value source = output_of(graph, child_number(graph, edge->items[0].number));
        for (const char *label = edge->items[2].text; label; label = strstr(label, ", ") ? strstr(label, ", ") + 2 : NULL) {
            size_t number = 0;
            Value value = carried(source, label, &number);
            if (number > most) fail("input %zu of %zu", number, most);
            list.items[number ? number - 1 : count] = value;
            numbered += number > 0;
            count++;
        }
    }
    list.count = count;
    Value taken = count == 1 && !numbered ? list.items[0] : list;
    if (child + 2 == graph->children->count) taken = graph->input;
    if (!strcmp(text_of(node, "kind"), "end")) {
        const Json *lines = json_get(node, "lines");
        const char *role = lines && lines->count ? lines->items[0].text : "";
        int dim;
        if (!strcmp(role, "table")) taken = list;
        if (sscanf(role, "concat, dim %d", &dim) == 1) taken = concat(list.items, count, dim);
        graph->outputs[child] = taken;
    } else {
        graph->outputs[child] = run(node, taken, graph->depth + 1);
    }
    graph->state[child] = 2;
    return graph->outputs[child];
}

static Value run(const Json *node, Value input, int depth)
{
    const char *kind = text_of(node, "kind");
    const Json *children = json_get(node, "children"), *same = json_get(node, "same_as");
    if (depth > 1000) fail("modules are nested too deep");
    if (same) return run(node_of(same), input, depth + 1);
    if (!strcmp(kind, "layer")) return run_layer(node, &weights, input);
    if (!strcmp(kind, "chain")) {
        for (size_t place = 0; place < children->count; place++) input = run(node_of(&children->items[place]), input, depth + 1);
        return input;
    }
    if (strcmp(kind, "graph")) fail("%s is not among the containers of this example", text_of(node, "title"));
    Graph graph = {node, children, json_get(node, "edges"), input, NULL, NULL, depth};
    graph.outputs = need(children->count * sizeof *graph.outputs);
    graph.state = need(children->count);
    return output_of(&graph, children->count - 1);
}

/* The value `name`, or the list of `name.0`, `name.1`, …. */
static int named_value(const Tensors *tensors, const char *name, Value *value)
{
    const Value *whole = find_tensor(tensors, name), *part;
    char key[64];
    if (whole) return *value = *whole, 1;
    *value = (Value){0};
    value->items = need((tensors->count + 1) * sizeof *value->items);
    for (;; value->count++) {
        snprintf(key, sizeof key, "%s.%zu", name, value->count);
        if (!(part = find_tensor(tensors, key))) return value->count > 0;
        value->items[value->count] = *part;
    }
}

static int report(const char *name, Value value, const Value *expected)
{
    int bad = 0;
    if (value.items) {
        for (size_t place = 0; place < value.count; place++) {
            char inner[96];
            snprintf(inner, sizeof inner, "%.60s.%zu", name, place);
            if (expected && (!expected->items || place >= expected->count)) fail("%s is one output too many", inner);
            bad |= report(inner, value.items[place], expected ? &expected->items[place] : NULL);
        }
        return bad;
    }
    printf("%s:", name);
    for (int dim = 0; dim < value.dims; dim++) printf("%s%zu", dim ? "x" : " ", value.shape[dim]);
    if (expected) {
        double largest = 0;
        if (expected->items || expected->count != value.count) fail("%s has another number of elements", name);
        for (size_t i = 0; i < value.count; i++) {
            double difference = fabs(value.data[i] - expected->data[i]) / fmax(1, fabs(expected->data[i]));
            largest = difference > largest || isnan(difference) ? difference : largest;
        }
        bad = !(largest <= 1e-5);
        printf(", largest difference %.1e%s\n", largest, bad ? ", TOO LARGE" : "");
    } else {
        for (size_t i = 0; i < value.count && i < 8; i++) printf(" %g", value.data[i]);
        puts(value.count > 8 ? " …" : "");
    }
    return bad;
}

/* The keys of the graph are those of the model; a model inside of a checkpoint has a name in front of them. */
static void add_prefix(const char *prefix)
{
    size_t length = strlen(prefix);
    for (size_t place = 0; length && place < weights.count; place++)
        if (!strncmp(weights.names[place], prefix, length)) weights.names[place] += length;
}

int main(int count, char **arguments)
{
    if (count != 4) fail("usage: run_graph MODEL.json MODEL.safetensors VALUES.safetensors");
    size_t length;
    char *bytes = read_file(arguments[1], &length);
    Json graph = json_parse(bytes, length);
    const Json *version = json_get(&graph, "version");
    nodes = json_get(&graph, "nodes");
    if (strcmp(text_of(&graph, "format"), "t7bridge-graph") || !version || version->number != 2 || !nodes)
        fail("%s is not a graph of version 2", arguments[1]);
    weights = read_safetensors(arguments[2]);
    add_prefix(text_of(&graph, "prefix"));
    Tensors values = read_safetensors(arguments[3]);
    Value input, expected;
    if (!named_value(&values, "input", &input)) fail("%s has no tensor named input", arguments[3]);
    int compare = named_value(&values, "output", &expected);
    return report("output", run(node_of(json_get(&graph, "root")), input, 0), compare ? &expected : NULL);
}
