/* api/blocks.c - the dialects of /v1/responses and /v1/messages. Both write a reply as a list of
 * blocks (output items, content blocks). A block is a text, a reasoning, or a call of a tool with
 * its arguments. In a stream a block begins, grows by deltas and ends. Both have one choice, and
 * keep its parts until the end: part by part they are the blocks. I/O thread only. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"

#define PUT(o, literal) rose_api_put(o, literal, sizeof literal - 1)

/* Tells whether a piece belongs to the block that is open. */
static bool continues(const rose_api_choice *c, const rose_api_piece *p)
{
    if (!c->block_open) return false;
    if (p->kind == ROSE_API_PART_ARGS) return c->block_kind == ROSE_API_PART_CALL;
    return p->kind == c->block_kind && p->kind != ROSE_API_PART_CALL;
}

static void note_open(rose_api_choice *c, const rose_api_piece *p)
{
    c->block_open = true;
    c->block_kind = p->kind;
    c->block_part = p->part;
    c->n_blocks++;
}

static void put_part(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    rose_api_put_string(o, part == NULL ? "" : c->text.data + part->begin,
                        part == NULL ? 0 : part->len);
}

/* ---- responses ---- */

/* Returns the part with which the open block begins; NULL: the reply is empty, and so is its only
 * block. */
static const rose_api_part *open_part(const rose_api_choice *c)
{
    return c->block_part < c->n_parts ? &c->parts[c->block_part] : NULL;
}

static void begin_event(rose_api_out *o, rose_api_job *j, const char *type)
{
    PUT(o, "event: ");
    rose_api_puts(o, type);
    PUT(o, "\ndata: {\"type\":\"");
    rose_api_puts(o, type);
    PUT(o, "\",\"sequence_number\":");
    rose_api_put_u64(o, j->n_events++);
}

static void end_event(rose_api_out *o)
{
    PUT(o, "}\n\n");
}

/* The id of block k is made of the reply's id. */
static void put_item_id(rose_api_out *o, const rose_api_choice *c, uint32_t k,
                        const rose_api_part *part)
{
    static const char *const prefixes[] = {[ROSE_API_PART_TEXT] = "msg_",
                                           [ROSE_API_PART_REASONING] = "rs_",
                                           [ROSE_API_PART_CALL] = "fc_",
                                           [ROSE_API_PART_ARGS] = "fc_"};
    rose_api_json(o, "'%s%s_%u'", prefixes[part == NULL ? ROSE_API_PART_TEXT : part->kind],
                  c->job->id + strlen(c->job->dialect->id), k);
}

/* The content of a message or of a reasoning. */
static void put_content(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part,
                        bool filled)
{
    const bool reasons = part != NULL && part->kind == ROSE_API_PART_REASONING;
    rose_api_puts(o, reasons ? "{\"type\":\"reasoning_text\",\"text\":"
                             : "{\"type\":\"output_text\",\"annotations\":[],\"text\":");
    put_part(o, c, filled ? part : NULL);
    if (!reasons) {
        PUT(o, ",\"logprobs\":");
        if (filled)
            rose_api_extra_list(o, c, part);
        else
            PUT(o, "[]");
    }
    PUT(o, "}");
}

/* How the client calls the tool of a call: an object of tool_names; NULL: as the model does. */
static const rose_json *client_name(const rose_api_choice *c, const rose_api_part *part)
{
    char name[ROSE_API_MAX_TOOL_NAME + 1];
    if (part == NULL || part->kind != ROSE_API_PART_CALL || part->len >= sizeof name) return NULL;
    memcpy(name, c->text.data + part->begin, part->len);
    name[part->len] = '\0';
    return rose_json_get(c->job->reading.tool_names, name);
}

static bool is_custom(const rose_api_choice *c, const rose_api_part *part)
{
    return rose_json_is_true(rose_json_get(client_name(c, part), "custom"));
}

static void put_name(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    const rose_json *own = client_name(c, part), *space = rose_json_get(own, "namespace");
    PUT(o, ",\"name\":");
    if (own == NULL)
        put_part(o, c, part);
    else
        rose_api_put_json(o, rose_json_get(own, "name"));
    if (space == NULL) return;
    PUT(o, ",\"namespace\":");
    rose_api_put_json(o, space);
}

/* Joins the arguments of a call, which are the next parts, into text, and returns what they are;
 * NULL if they are cut or malformed. The caller frees both. */
static rose_json *read_args(rose_buf *text, rose_api_out *o, const rose_api_choice *c,
                            const rose_api_part *part)
{
    const rose_api_part *end = c->parts + c->n_parts;
    rose_json *arguments = NULL;
    for (part++; part < end && part->kind == ROSE_API_PART_ARGS; part++) {
        if (rose_buf_add(text, c->text.data + part->begin, part->len) != ROSE_OK) o->oom = true;
    }
    if (text->len > 0 && rose_json_parse(&arguments, text->data, text->len,
                                         ROSE_JSON_NUL | ROSE_JSON_LAST_WINS, NULL) == ROSE_E_NOMEM)
        o->oom = true;
    return arguments;
}

/* The input of a custom tool: the member `input` of its arguments, or all of them as the model
 * wrote them, if they are cut or malformed. */
static void put_input(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    rose_buf text = {0};
    rose_json *arguments = read_args(&text, o, c, part);
    const rose_json *input = rose_json_get(arguments, "input");
    if (rose_json_is_string(input))
        rose_api_put_string(o, rose_json_text(input), rose_json_text_len(input));
    else
        rose_api_put_string(o, text.len > 0 ? text.data : "", text.len);
    rose_json_decref(arguments);
    rose_buf_free(&text);
}

/* The arguments of a function, or the input of a custom tool; empty while they are written. */
static void put_what(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part,
                     bool filled)
{
    const bool custom = is_custom(c, part);
    rose_api_puts(o, custom ? ",\"input\":" : ",\"arguments\":");
    if (!filled)
        PUT(o, "\"\"");
    else if (custom)
        put_input(o, c, part);
    else
        rose_api_put_args(o, c, part);
}

/* filled: else the item has only begun. */
static void put_item(rose_api_out *o, const rose_api_choice *c, uint32_t k,
                     const rose_api_part *part, const char *status, bool filled)
{
    const rose_api_part_kind kind = part == NULL ? ROSE_API_PART_TEXT : part->kind;
    rose_api_json(o, "{'id':");
    put_item_id(o, c, k, part);
    rose_api_json(o, ",'status':'%s',", status);
    if (kind == ROSE_API_PART_CALL) {
        rose_api_json(o, "'type':'%s','call_id':%-s",
                      is_custom(c, part) ? "custom_tool_call" : "function_call", part->id);
        put_name(o, c, part);
        put_what(o, c, part, filled);
        PUT(o, "}");
        return;
    }
    if (kind == ROSE_API_PART_REASONING)
        rose_api_json(o, "'type':'reasoning','summary':[],'content':[");
    else
        rose_api_json(o, "'type':'message','role':'assistant','content':[");
    if (filled) put_content(o, c, part, true);
    PUT(o, "]}");
}

static bool is_cut(const rose_api_choice *c)
{
    return c->finish != NULL && strcmp(c->finish, "length") == 0;
}

/* Returns the status of item k of n when all text is there: only the last item can be cut. */
static const char *item_status(const rose_api_choice *c, uint32_t k, uint32_t n)
{
    const bool broken = c->finish == NULL || is_cut(c);
    return k + 1 == n && broken ? "incomplete" : "completed";
}

static void put_output(rose_api_out *o, const rose_api_choice *c)
{
    uint32_t n = 0, k = 0;
    for (uint32_t i = 0; i < c->n_parts; i++)
        n += c->parts[i].kind != ROSE_API_PART_ARGS;
    PUT(o, "[");
    for (uint32_t i = 0; i < c->n_parts; i++) {
        if (c->parts[i].kind == ROSE_API_PART_ARGS) continue;
        if (k > 0) PUT(o, ",");
        put_item(o, c, k, &c->parts[i], item_status(c, k, n), true);
        k++;
    }
    /* an empty reply is an empty message */
    if (n == 0 && c->finish != NULL) put_item(o, c, 0, NULL, item_status(c, 0, 1), true);
    PUT(o, "]");
}

static void put_response_usage(rose_api_out *o, const rose_api_job *j)
{
    const uint32_t in = j->n_prompt_tokens, out = j->choices[0].n_tokens;
    rose_api_json(o, "{'input_tokens':%u,'input_tokens_details':{'cached_tokens':%llu},", in,
                  (unsigned long long)rose_api_cached_tokens(j));
    rose_api_json(o, "'output_tokens':%u,'output_tokens_details':{'reasoning_tokens':%u},", out,
                  j->choices[0].n_reasoning);
    rose_api_json(o, "'total_tokens':%llu}", (unsigned long long)in + out);
}

static void put_response_error(rose_api_out *o, const rose_api_error *e)
{
    const char *code = e->status == 429 ? "rate_limit_exceeded"
                                        : (e->status >= 500 ? "server_error" : "invalid_prompt");
    rose_api_json(o, "{'code':'%s','message':%-s}", code, e->msg);
}

/* ended: the response has its output and its usage. */
static void put_response(rose_api_out *o, const rose_api_job *j, const char *status, bool ended)
{
    const rose_api_choice *c = &j->choices[0];
    const bool failed = j->err.status != 0;
    rose_api_json(o,
                  "{'id':%-s,'object':'response','created_at':%lld,'status':'%s','error':", j->id,
                  (long long)j->created, status);
    if (failed)
        put_response_error(o, &j->err);
    else
        PUT(o, "null");
    rose_api_json(o, ",'incomplete_details':%s",
                  ended && !failed && is_cut(c) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    rose_api_put(o, j->head.b.data, j->head.b.len);
    if (!ended) {
        rose_api_json(o, ",'output':[],'usage':null}");
        return;
    }
    rose_api_json(o, ",'output':");
    put_output(o, c);
    rose_api_json(o, ",'usage':");
    put_response_usage(o, j);
    PUT(o, "}");
}

/* Writes ,"key":value as the client sent it, or what `absent` says. */
static void echo(rose_api_out *o, const rose_api_params *p, const char *key, const char *absent)
{
    const rose_json *v = rose_json_get(p->body, key);
    rose_api_json(o, ",'%s':", key);
    if (v == NULL || rose_json_is_null(v))
        rose_api_puts(o, absent);
    else
        rose_api_put_json(o, v);
}

/* The fields of the request that its response repeats. */
static void responses_head(rose_api_out *o, const rose_api_job *j, const rose_api_params *p)
{
    rose_api_json(o, ",'model':%-s", j->api->o.model_id);
    echo(o, p, "instructions", "null");
    echo(o, p, "max_output_tokens", "null");
    echo(o, p, "max_tool_calls", "null");
    echo(o, p, "metadata", "{}");
    echo(o, p, "parallel_tool_calls", "true");
    echo(o, p, "prompt_cache_key", "null");
    echo(o, p, "reasoning", "{\"effort\":null,\"summary\":null}");
    echo(o, p, "safety_identifier", "null");
    echo(o, p, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(o, p, "tool_choice", "\"auto\"");
    echo(o, p, "tools", "[]");
    echo(o, p, "top_logprobs", "0");
    echo(o, p, "user", "null");
    rose_api_json(o, ",'temperature':%g,'top_p':%g", p->temperature, p->top_p);
    rose_api_json(o, ",'background':false,'previous_response_id':null,'service_tier':'default',"
                     "'store':false,'truncation':'disabled'");
}

/* Begins an event of the item that is open. with_content: it is about the item's only content. */
static void begin_item_event(rose_api_out *o, const rose_api_choice *c, const char *type,
                             bool with_content)
{
    const uint32_t k = c->n_blocks - 1;
    begin_event(o, c->job, type);
    PUT(o, ",\"item_id\":");
    put_item_id(o, c, k, open_part(c));
    PUT(o, ",\"output_index\":");
    rose_api_put_u64(o, k);
    if (with_content) PUT(o, ",\"content_index\":0");
}

static void put_item_event(rose_api_out *o, const rose_api_choice *c, const char *type,
                           const char *status, bool filled)
{
    begin_event(o, c->job, type);
    rose_api_json(o, ",'output_index':%u,'item':", c->n_blocks - 1);
    put_item(o, c, c->n_blocks - 1, open_part(c), status, filled);
    end_event(o);
}

static void put_content_event(rose_api_out *o, const rose_api_choice *c, const char *type,
                              bool filled)
{
    begin_item_event(o, c, type, true);
    PUT(o, ",\"part\":");
    put_content(o, c, open_part(c), filled);
    end_event(o);
}

static void open_item(rose_api_out *o, rose_api_choice *c, const rose_api_piece *p)
{
    note_open(c, p);
    put_item_event(o, c, "response.output_item.added", "in_progress", false);
    if (p->kind != ROSE_API_PART_CALL)
        put_content_event(o, c, "response.content_part.added", false);
}

static void put_item_delta(rose_api_out *o, rose_api_choice *c, const rose_api_piece *p)
{
    static const char *const types[] = {[ROSE_API_PART_TEXT] = "response.output_text.delta",
                                        [ROSE_API_PART_REASONING] = "response.reasoning_text.delta",
                                        [ROSE_API_PART_ARGS] =
                                            "response.function_call_arguments.delta"};
    if (p->kind == ROSE_API_PART_CALL) return; /* the item has the name */
    if (p->kind == ROSE_API_PART_ARGS && is_custom(c, open_part(c))) return; /* when it is whole */
    begin_item_event(o, c, types[p->kind], p->kind != ROSE_API_PART_ARGS);
    PUT(o, ",\"delta\":");
    rose_api_put_string(o, p->text, p->len);
    if (p->kind == ROSE_API_PART_TEXT) {
        PUT(o, ",\"logprobs\":");
        rose_api_extra_list_new(o, c, &c->parts[p->part]);
    }
    end_event(o);
}

static void close_item(rose_api_out *o, rose_api_choice *c, bool last)
{
    const rose_api_part *part = open_part(c);
    if (!c->block_open) return;
    c->block_open = false;
    if (c->block_kind == ROSE_API_PART_CALL && is_custom(c, part)) {
        begin_item_event(o, c, "response.custom_tool_call_input.delta", false);
        PUT(o, ",\"delta\":");
        put_input(o, c, part);
        end_event(o);
        begin_item_event(o, c, "response.custom_tool_call_input.done", false);
        put_what(o, c, part, true);
        end_event(o);
    } else if (c->block_kind == ROSE_API_PART_CALL) {
        begin_item_event(o, c, "response.function_call_arguments.done", false);
        put_name(o, c, part);
        put_what(o, c, part, true);
        end_event(o);
    } else {
        const bool reasons = c->block_kind == ROSE_API_PART_REASONING;
        begin_item_event(
            o, c, reasons ? "response.reasoning_text.done" : "response.output_text.done", true);
        PUT(o, ",\"text\":");
        put_part(o, c, part);
        if (!reasons) {
            PUT(o, ",\"logprobs\":");
            rose_api_extra_list(o, c, part);
        }
        end_event(o);
        put_content_event(o, c, "response.content_part.done", true);
    }
    put_item_event(o, c, "response.output_item.done",
                   last ? item_status(c, c->n_blocks - 1, c->n_blocks) : "completed", true);
}

static void put_response_event(rose_api_out *o, rose_api_job *j, const char *type,
                               const char *status, bool ended)
{
    begin_event(o, j, type);
    PUT(o, ",\"response\":");
    put_response(o, j, status, ended);
    end_event(o);
}

/* The events with which every stream begins. */
static void begin_response(rose_api_out *o, rose_api_choice *c)
{
    if (c->begun) return;
    put_response_event(o, c->job, "response.created", "in_progress", false);
    put_response_event(o, c->job, "response.in_progress", "in_progress", false);
    c->begun = true;
}

static void responses_event(rose_api_out *o, rose_api_choice *c, bool last)
{
    rose_api_piece p;
    begin_response(o, c);
    while (rose_api_piece_next(c, &p)) {
        if (!continues(c, &p)) {
            close_item(o, c, false);
            open_item(o, c, &p);
        }
        put_item_delta(o, c, &p);
    }
    if (!last) return;
    if (c->n_blocks == 0) open_item(o, c, &(rose_api_piece){.kind = ROSE_API_PART_TEXT});
    close_item(o, c, true);
}

static const char *response_status(const rose_api_job *j)
{
    if (j->err.status != 0) return "failed";
    return is_cut(&j->choices[0]) ? "incomplete" : "completed";
}

static void responses_end(rose_api_out *o, rose_api_job *j)
{
    char type[40];
    begin_response(o, &j->choices[0]); /* the stream may have failed before its first token */
    snprintf(type, sizeof type, "response.%s", response_status(j));
    put_response_event(o, j, type, response_status(j), true);
}

static void responses_whole(rose_api_out *o, const rose_api_job *j)
{
    put_response(o, j, response_status(j), true);
}

static const rose_api_rename responses_renames[] = {{"max_completion_tokens", "max_output_tokens"},
                                                    {"messages", "input"},
                                                    {"response_format", "text.format"},
                                                    {"reasoning_effort", "reasoning.effort"},
                                                    {"verbosity", "text.verbosity"},
                                                    {".function", ""},
                                                    {NULL, NULL}};

const rose_api_dialect rose_api_dialect_responses = {.id = "resp_",
                                                     .translate = rose_api_responses_translate,
                                                     .renames = responses_renames,
                                                     .count =
                                                         "{\"object\":\"response.input_tokens\","
                                                         "\"input_tokens\":",
                                                     .ping = ROSE_API_PING,
                                                     .head = responses_head,
                                                     .event = responses_event,
                                                     .end = responses_end,
                                                     .whole = responses_whole,
                                                     .error = rose_api_error_json};

/* ---- messages ---- */

static const char messages_ping[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/* Cached tokens of the prompt are not part of input_tokens. */
static void put_message_usage(rose_api_out *o, const rose_api_choice *c)
{
    const uint32_t cached = c->req != NULL ? rose_request_cached_tokens(c->req) : c->n_cached;
    rose_api_json(o,
                  "{'input_tokens':%u,'cache_creation_input_tokens':0,"
                  "'cache_read_input_tokens':%u,'output_tokens':%u}",
                  c->prompt_n - cached, cached, c->n_tokens);
}

/* The stop string is the client's own, and not the one that the plain template implies. */
static bool is_own_stop(const rose_api_choice *c)
{
    const rose_api_job *j = c->job;
    return c->stop_kind == ROSE_API_STOP_STRING &&
           !(j->asked.plain && c->stop.which == j->stops.n - 1);
}

static void put_stop_members(rose_api_out *o, const rose_api_choice *c)
{
    const char *reason = "end_turn";
    if (is_cut(c))
        reason = c->job->asked.shortened ? "model_context_window_exceeded" : "max_tokens";
    else if (rose_api_has_part(c, ROSE_API_PART_CALL))
        reason = "tool_use";
    else if (is_own_stop(c))
        reason = "stop_sequence";
    rose_api_json(o, "'stop_reason':'%s','stop_sequence':", reason);
    if (is_own_stop(c))
        rose_api_put_string(o, c->job->stops.v[c->stop.which].text,
                            c->job->stops.v[c->stop.which].len);
    else
        PUT(o, "null");
}

/* Writes a message up to its content. */
static void begin_message(rose_api_out *o, const rose_api_job *j)
{
    rose_api_json(o, "{'id':%-s,'type':'message','role':'assistant','model':%-s,'content':[", j->id,
                  j->api->o.model_id);
}

/* Writes the arguments of a call as an object. Arguments that are no object, because the reply was
 * cut or the model made a mistake, are one string in it. */
static void put_tool_input(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    rose_buf text = {0};
    rose_json *input = read_args(&text, o, c, part);
    if (rose_json_is_object(input)) {
        rose_api_put(o, text.data, text.len);
    } else if (text.len == 0) {
        PUT(o, "{}");
    } else {
        rose_api_json(o, "{'_raw_arguments':%-.*s}", (int)text.len, text.data);
    }
    rose_json_decref(input);
    rose_buf_free(&text);
}

static void put_block(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    if (part->kind == ROSE_API_PART_CALL) {
        rose_api_json(o, "{'type':'tool_use','id':%-s,'name':", part->id);
        put_part(o, c, part);
        rose_api_json(o, ",'input':");
        put_tool_input(o, c, part);
    } else if (part->kind == ROSE_API_PART_REASONING) {
        rose_api_json(o, "{'type':'thinking','thinking':");
        put_part(o, c, part);
        rose_api_json(o, ",'signature':''");
    } else {
        rose_api_json(o, "{'type':'text','text':");
        put_part(o, c, part);
    }
    PUT(o, "}");
}

static void messages_whole(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_choice *c = &j->choices[0];
    begin_message(o, j);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        if (c->parts[i].kind == ROSE_API_PART_ARGS) continue;
        if (i > 0) PUT(o, ",");
        put_block(o, c, &c->parts[i]);
    }
    PUT(o, "],");
    put_stop_members(o, c);
    PUT(o, ",\"usage\":");
    put_message_usage(o, c);
    PUT(o, "}");
}

static void open_block(rose_api_out *o, rose_api_choice *c, const rose_api_piece *p)
{
    note_open(c, p);
    rose_api_json(o, "event: content_block_start\ndata: {'type':'content_block_start',");
    rose_api_json(o, "'index':%u,'content_block':{", c->n_blocks - 1);
    if (p->kind == ROSE_API_PART_CALL)
        rose_api_json(o, "'type':'tool_use','id':%-s,'name':%-.*s,'input':{}}}\n\n", p->id,
                      (int)p->len, p->text);
    else if (p->kind == ROSE_API_PART_REASONING)
        rose_api_json(o, "'type':'thinking','thinking':'','signature':''}}\n\n");
    else
        rose_api_json(o, "'type':'text','text':''}}\n\n");
}

static void put_block_delta(rose_api_out *o, const rose_api_choice *c, const rose_api_piece *p)
{
    static const char *const deltas[] = {
        [ROSE_API_PART_TEXT] = "\"text_delta\",\"text\":",
        [ROSE_API_PART_REASONING] = "\"thinking_delta\",\"thinking\":",
        [ROSE_API_PART_ARGS] = "\"input_json_delta\",\"partial_json\":"};
    if (p->kind == ROSE_API_PART_CALL) return;
    PUT(o, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    rose_api_put_u64(o, c->n_blocks - 1);
    PUT(o, ",\"delta\":{\"type\":");
    rose_api_puts(o, deltas[p->kind]);
    rose_api_put_string(o, p->text, p->len);
    PUT(o, "}}\n\n");
}

static void close_block(rose_api_out *o, rose_api_choice *c)
{
    if (!c->block_open) return;
    c->block_open = false;
    rose_api_json(o,
                  "event: content_block_stop\ndata: {'type':'content_block_stop','index':%u}\n\n",
                  c->n_blocks - 1);
}

static void messages_event(rose_api_out *o, rose_api_choice *c, bool last)
{
    rose_api_piece p;
    if (!c->begun) {
        rose_api_json(o, "event: message_start\ndata: {'type':'message_start','message':");
        begin_message(o, c->job);
        rose_api_json(o, "],'stop_reason':null,'stop_sequence':null,'usage':");
        put_message_usage(o, c);
        PUT(o, "}}\n\n");
        PUT(o, messages_ping);
        c->begun = true;
    }
    while (rose_api_piece_next(c, &p)) {
        if (!continues(c, &p)) {
            close_block(o, c);
            open_block(o, c, &p);
        }
        put_block_delta(o, c, &p);
    }
    if (!last) return;
    close_block(o, c);
    rose_api_json(o, "event: message_delta\ndata: {'type':'message_delta','delta':{");
    put_stop_members(o, c);
    rose_api_json(o, "},'usage':");
    put_message_usage(o, c);
    PUT(o, "}\n\n");
}

static void messages_error(rose_api_out *o, const rose_api_error *e)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"},
                 {504, "timeout_error"}};
    const char *type = e->status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].status == e->status) type = types[i].type;
    }
    rose_api_json(o, "{'type':'error','error':{'type':'%s','message':%-s}}", type, e->msg);
}

static void messages_end(rose_api_out *o, rose_api_job *j)
{
    if (j->err.status != 0) {
        PUT(o, "event: error\ndata: ");
        messages_error(o, &j->err);
        PUT(o, "\n\n");
    } else {
        PUT(o, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
}

/* Clients find these words and numbers in the message, and then shorten the conversation. */
static bool messages_overflow(rose_api_error *e, uint64_t n, uint32_t most)
{
    return rose_api_fail(e, 400, "context_length_exceeded", "messages",
                         "prompt is too long: %llu tokens > %u maximum", (unsigned long long)n,
                         most);
}

static const rose_api_rename messages_renames[] = {{"stop", "stop_sequences"},
                                                   {"response_format", "output_config.format"},
                                                   {"reasoning_effort", "output_config.effort"},
                                                   {".function.parameters", ".input_schema"},
                                                   {".function", ""},
                                                   {NULL, NULL}};

const rose_api_dialect rose_api_dialect_messages = {.id = "msg_",
                                                    .shortens = true,
                                                    .translate = rose_api_anthropic_translate,
                                                    .renames = messages_renames,
                                                    .overflow = messages_overflow,
                                                    .count = "{\"input_tokens\":",
                                                    .ping = messages_ping,
                                                    .event = messages_event,
                                                    .end = messages_end,
                                                    .whole = messages_whole,
                                                    .error = messages_error};
