/* /v1/responses and /v1/messages: what their bodies become, their replies and streams byte by byte
 * against fakes, and the writers of reasoning and calls with parts made up by the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "fakes.h"

#define W(i) (FAKE_WORD0 + (i))

/* ---- translations ---- */

typedef struct sample {
    const char *body;
    const char *want; /* the body of the chat, keys sorted; or the beginning of an error */
    const char *param;
} sample;

static void check_sample(const rose_api_dialect *d, const sample *s, bool strict)
{
    rose_json *body = rose_json_loads(s->body, ROSE_JSON_NUL, NULL);
    rose_api_ignored ignored = {.strict = strict};
    rose_api_error err = {0};
    rose_api_translation t = {
        .body = body, .generates = true, .templated = true, .ignored = &ignored, .err = &err};
    assert_non_null(body);
    const bool ok = d->translate(&t);
    if (s->want[0] == '{') {
        rose_json *want = rose_json_loads(s->want, ROSE_JSON_NUL, NULL);
        char *got = rose_json_dumps(t.chat, ROSE_JSON_COMPACT);
        if (!ok) fail_msg("%s: refused: %s", s->body, err.msg);
        if (!rose_json_equal(t.chat, want)) fail_msg("%s instead of %s", got, s->want);
        free(got);
        rose_json_decref(want);
        char names[512] = "";
        for (uint32_t i = 0; i < ignored.n; i++) /* for a translation, what it leaves out */
            sprintf(names + strlen(names), "%s%s", i > 0 ? " " : "", ignored.names[i]);
        assert_string_equal(names, s->param);
    } else {
        if (ok) fail_msg("%s: not refused", s->body);
        assert_int_equal(err.status, 400);
        if (strncmp(err.msg, s->want, strlen(s->want)) != 0)
            fail_msg("%s: '%s' instead of '%s'", s->body, err.msg, s->want);
        assert_string_equal(err.param, s->param);
    }
    rose_json_decref(t.chat);
    rose_json_decref(t.tool_names);
    rose_json_decref(body);
}

static const sample responses[] = {
    {"{'input':'x','max_output_tokens':5,'temperature':0,'min_p':0.5,'store':false}",
     "{'max_completion_tokens':5,'messages':[{'content':'x','role':'user'}],'min_p':0.5,"
     "'store':false,'temperature':0}",
     ""},
    {"{'input':[{'role':'developer','content':'b'},{'role':'user','content':[{'type':'input_text',"
     "'text':'c'}]},{'role':'system','content':'d'}],'instructions':'a'}",
     "{'messages':[{'content':'a','role':'system'},{'content':'b','role':'developer'},{'content':"
     "'c','role':'user'},{'content':'d','role':'system'}]}",
     ""},
    {"{'input':[{'type':'message','role':'user','content':'a'},{'type':'reasoning','id':'r',"
     "'summary':[]},{'type':'message','id':'m','status':'completed','role':'assistant','content':"
     "[{'type':'output_text','text':'b','annotations':[]},{'type':'refusal','refusal':'no'}]},"
     "{'type':'function_call','call_id':'c1','name':'f','arguments':'{}'},{'type':'function_call',"
     "'call_id':'c2','name':'g','arguments':'{}'},{'type':'function_call_output','call_id':'c1',"
     "'output':'1'},{'type':'function_call_output','call_id':'c2','output':[{'type':'input_text',"
     "'text':'2'}]}]}",
     "{'messages':[{'content':'a','role':'user'},{'content':[{'text':'b','type':'text'},{'text':"
     "'no','type':'text'}],'role':'assistant','tool_calls':[{'function':{'arguments':'{}','name':"
     "'f'},'id':'c1','type':'function'},{'function':{'arguments':'{}','name':'g'},'id':'c2','type':"
     "'function'}]},{'content':'1','role':'tool','tool_call_id':'c1'},{'content':'2','role':'tool',"
     "'tool_call_id':'c2'}]}",
     ""},
    {"{'input':[{'type':'function_call','call_id':'c','name':'f','arguments':'{}'}]}",
     "{'messages':[{'content':null,'role':'assistant','tool_calls':[{'function':{'arguments':'{}',"
     "'name':'f'},'id':'c','type':'function'}]}]}",
     ""},
    {"{'input':[{'role':'user','content':'a'},{'role':'assistant','content':null},{'type':'message'"
     ","
     "'role':'assistant'},{'role':'user','content':'b'}]}",
     "{'messages':[{'content':'a','role':'user'},{'content':'','role':'assistant'},{'content':'',"
     "'role':'assistant'},{'content':'b','role':'user'}]}",
     ""},
    {"{'input':'x','tools':[{'type':'function','name':'f','description':null,'parameters':{'type':"
     "'object'},'strict':true}],'tool_choice':{'type':'function','name':'f'},"
     "'parallel_tool_calls':false}",
     "{'messages':[{'content':'x','role':'user'}],'parallel_tool_calls':false,'tool_choice':"
     "{'function':{'name':'f'},'type':'function'},'tools':[{'function':{'name':'f','parameters':"
     "{'type':'object'},'strict':true},'type':'function'}]}",
     ""},
    {"{'input':'x','text':{'format':{'type':'json_schema','name':'n','schema':{},'strict':true},"
     "'verbosity':'low'},'reasoning':{'effort':'low','summary':'auto'}}",
     "{'messages':[{'content':'x','role':'user'}],'reasoning_effort':'low','response_format':"
     "{'json_schema':{'name':'n','schema':{},'strict':true},'type':'json_schema'},'verbosity':"
     "'low'}",
     ""},
    {"{'input':'x','text':{'format':{'type':'json_object'}},'include':["
     "'message.output_text.logprobs','reasoning.encrypted_content'],'top_logprobs':3}",
     "{'logprobs':true,'messages':[{'content':'x','role':'user'}],'response_format':{'type':"
     "'json_object'},'top_logprobs':3}",
     ""},
    {"{'input':'x','previous_response_id':null,'conversation':null,'truncation':'disabled',"
     "'background':false,'text':{'format':{'type':'text'}}}",
     "{'messages':[{'content':'x','role':'user'}]}", ""},
    {"{}", "field 'input' is required", "input"},
    {"{'input':[]}", "field 'input' must be a string or a list of at least one item", "input"},
    {"{'input':7}", "field 'input' must be a string or a list", "input"},
    {"{'input':[{'role':'tool','content':'x'}]}", "input[0].role must be 'user'", "input"},
    {"{'input':[{'role':'user','content':'x'},{'role':'user','content':[{'type':'input_image',"
     "'image_url':'u'}]}]}",
     "input[1].content: the type 'input_image' is not supported", "input"},
    {"{'input':[{'role':'user','content':[{'type':'input_text'}]}]}",
     "input[0].content must be parts with a string as text", "input"},
    {"{'input':[{'type':'item_reference','id':'x'}]}",
     "input[0]: the type 'item_reference' is not supported", "input"},
    {"{'input':[{'type':'function_call','name':'f','arguments':'{}'}]}",
     "input[0] must be a function_call with", "input"},
    {"{'input':[{'type':'function_call_output','output':'x'}]}",
     "input[0].call_id must be a string", "input"},
    {"{'input':'x','instructions':[]}", "field 'instructions' must be a string", "instructions"},
    {"{'input':'x','previous_response_id':'r'}",
     "field 'previous_response_id' is not supported by this server: this server keeps no responses",
     "previous_response_id"},
    {"{'input':'x','conversation':'c'}", "field 'conversation' is not supported", "conversation"},
    {"{'input':'x','prompt':{'id':'p'}}", "field 'prompt' is not supported", "prompt"},
    {"{'input':'x','background':true}", "field 'background' is not supported", "background"},
    {"{'input':'x','tools':[{'type':'web_search'}],'tool_choice':'required'}",
     "field 'tool_choice' asks for a call, and this server serves none", "tool_choice"},
    {"{'input':'x','tools':[{'type':'web_search'}],'tool_choice':'auto'}",
     "{'messages':[{'content':'x','role':'user'}]}", "tools[0].web_search"},
    {"{'input':'x','tools':[{'type':'mcp','server_label':'l'},{'type':'custom','name':'p',"
     "'description':'d','format':{'type':'grammar','syntax':'lark','definition':'start: A'}},{"
     "'type':'namespace','name':'n_','description':'d','tools':[{'type':'function','name':'f'},{"
     "'type':'custom','name':'c'},{'type':'x'}]},{'type':'namespace','name':'m','tools':[{'type':"
     "'function','name':'f'}]}],'tool_choice':{'type':'custom','name':'p'}}",
     "{'messages':[{'content':'x','role':'user'}],'tool_choice':{'function':{'name':'p'},'type':"
     "'function'},'tools':[{'function':{'description':'d\\n\\nThe string `input` must follow this "
     "Lark grammar:\\nstart: A','name':'p','parameters':{'additionalProperties':false,"
     "'properties':{'input':{'type':'string'}},'required':['input'],'type':'object'}},'type':"
     "'function'},{'function':{'name':'n_f'},'type':'function'},{'function':{'description':'',"
     "'name':'n_c','parameters':{'additionalProperties':false,'properties':{'input':{'type':"
     "'string'}},'required':['input'],'type':'object'}},'type':'function'},{'function':{'name':"
     "'m__f'},'type':'function'}]}",
     "tools[0].mcp tools[2].tools[2].x"},
    {"{'input':[{'role':'user','content':'a'},{'type':'web_search_call','id':'w'},{'type':"
     "'custom_tool_call','call_id':'c','name':'p','input':'q'},{'type':'custom_tool_call_output',"
     "'call_id':'c','output':'1'},{'type':'function_call','call_id':'d','namespace':'m','name':'f',"
     "'arguments':'{}'},{'type':'local_shell_call','id':'i','call_id':'e','action':{'type':'exec'}}"
     ","
     "{'type':'local_shell_call_output','id':'e','output':'2'},{'type':'shell_call_output',"
     "'call_id':'g','output':[{'stdout':'3'}]},{'type':'computer_call_output','call_id':'h'},{"
     "'type':'additional_tools','tools':[{'type':'function','name':'z'}]}]}",
     "{'messages':[{'content':'a','role':'user'},{'content':null,'role':'assistant','tool_calls':[{"
     "'function':{'arguments':'{\\'input\\':\\'q\\'}','name':'p'},'id':'c','type':'function'}]},{"
     "'content':'1','role':'tool','tool_call_id':'c'},{'content':null,'role':'assistant','tool_"
     "calls'"
     ":"
     "[{'function':{'arguments':'{}','name':'m__f'},'id':'d','type':'function'},{'function':{"
     "'arguments':'{\\'type\\':\\'exec\\'}','name':'local_shell'},'id':'e','type':'function'}]},{"
     "'content':'2','role':'tool','tool_call_id':'e'},{'content':'[{\\'stdout\\':\\'3\\'}]','role':"
     "'tool','tool_call_id':'g'}],'tools':[{'function':{'name':'z'},'type':'function'}]}",
     "input[1].web_search_call input[8].computer_call_output"},
    {"{'input':[{'type':'custom_tool_call','call_id':'c','name':'p'}]}",
     "input[0] must be a custom_tool_call with", "input"},
    {"{'input':'x','tools':[{'type':'namespace','name':'n'}]}",
     "tools[0] must have the string 'name' and the list 'tools'", "tools"},
    {"{'input':'x','tools':[{'type':'function'}]}", "tools[0].name must be a string", "tools"},
    {"{'input':'x','tools':{}}", "field 'tools' must be a list", "tools"},
    {"{'input':'x','tool_choice':{'type':'web_search'}}", "field 'tool_choice' is not supported",
     "tool_choice"},
    {"{'input':'x','text':{'format':{'type':'xml'}}}",
     "field 'text.format' must be of the type 'text'", "text.format"},
    {"{'input':'x','text':{'format':{'type':'json_schema','name':'n'}}}",
     "field 'text.format.schema' must be an object", "text.format.schema"},
    {"{'input':'x','include':['nothing']}", "include[0]: 'nothing' is not supported", "include"},
};

static const sample messages[] = {
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':null}"
     ","
     "{'role':'user','content':'b'}]}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'},{'content':'','role':'assistant'},"
     "{'content':'b','role':'user'}]}",
     ""},
    /* arguments that were no object come back as they were sent */
    {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'c','name'"
     ":"
     "'f','input':{'_raw_arguments':'cut'}},{'type':'tool_use','id':'d','name':'f','input':{'x':"
     "12345678901234567890}}]},{'role':'user','content':'b'}]}",
     "{'max_tokens':5,'messages':[{'content':null,'role':'assistant','tool_calls':[{'function':{"
     "'arguments':'cut','name':'f'},'id':'c','type':'function'},{'function':{'arguments':"
     "'{\\'x\\':12345678901234567890}','name':'f'},'id':'d','type':'function'}]},{'content':'b','"
     "role':"
     "'user'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'system':'s','stop_sequences':"
     "['z'],'top_k':3,'metadata':{'user_id':'u'}}",
     "{'max_tokens':5,'messages':[{'content':'s','role':'system'},{'content':'a','role':'user'}],"
     "'metadata':{'user_id':'u'},'stop':['z'],'top_k':3}",
     ""},
    /* header lines with a nonce: a whole block, and the first lines of one */
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'system':[{'type':'text','text':"
     "'x-anthropic-billing-header: cc_version=1; cch=ab12;'},{'type':'text','text':"
     "'X-Anthropic-Other: 1\\nBe kind.\\nx-anthropic-late: 2'},{'type':'text','text':"
     "'x-anthropic- no header','cache_control':{'type':'ephemeral'}}]}",
     "{'max_tokens':5,'messages':[{'content':[{'text':'Be kind.\\nx-anthropic-late: 2','type':"
     "'text'},{'text':'x-anthropic- no header','type':'text'}],'role':'system'},{'content':'a',"
     "'role':'user'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'system':[{'type':'text','text':"
     "'x-anthropic-billing-header: cch=ab12;\\n'}]}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'}]}", ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':["
     "{'type':'thinking','thinking':'t','signature':''},{'type':'text','text':'b'},{'type':"
     "'tool_use','id':'c1','name':'f','input':{'x':1}},{'type':'tool_use','id':'c2','name':'g',"
     "'input':{}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'c1','content':"
     "'1'},{'type':'tool_result','tool_use_id':'c2','content':[{'type':'text','text':'2'}]},"
     "{'type':'text','text':'d'}]},{'role':'user','content':'e'}]}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'},{'content':'b','role':'assistant',"
     "'tool_calls':[{'function':{'arguments':'{\\\"x\\\":1}','name':'f'},'id':'c1','type':"
     "'function'},{'function':{'arguments':'{}','name':'g'},'id':'c2','type':'function'}]},"
     "{'content':'1','role':'tool','tool_call_id':'c1'},{'content':'2','role':'tool',"
     "'tool_call_id':'c2'},{'content':[{'text':'d','type':'text'},{'text':'e','type':'text'}],"
     "'role':'user'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':["
     "{'type':'tool_use','id':'c1','name':'f'},{'type':'tool_use','id':'c2','name':'g','input':"
     "'{\\\"x\\\":1'}]},{'role':'user','content':'e'}]}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'},{'content':null,'role':'assistant',"
     "'tool_calls':[{'function':{'arguments':'{}','name':'f'},'id':'c1','type':'function'},"
     "{'function':{'arguments':'{\\\"x\\\":1','name':'g'},'id':'c2','type':'function'}]},"
     "{'content':'e','role':'user'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':"
     "'b'}]}",
     "{'add_generation_prompt':false,'continue_final_message':true,'max_tokens':5,'messages':["
     "{'content':'a','role':'user'},{'content':'b','role':'assistant'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f',"
     "'description':'d','input_schema':{'type':'object'}}],'tool_choice':{'type':'any',"
     "'disable_parallel_tool_use':true}}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'}],'parallel_tool_calls':false,"
     "'tool_choice':'required','tools':[{'function':{'description':'d','name':'f','parameters':"
     "{'type':'object'}},'type':'function'}]}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tool_choice':{'type':'tool',"
     "'name':'f'},'thinking':{'type':'disabled'},'output_config':{'effort':'low','format':{'type':"
     "'json_schema','schema':{}}}}",
     "{'chat_template_kwargs':{'enable_thinking':false},'max_tokens':5,'messages':[{'content':'a',"
     "'role':'user'}],'reasoning_effort':'low','response_format':{'json_schema':{'name':'reply',"
     "'schema':{},'strict':true},'type':'json_schema'},'tool_choice':{'function':{'name':'f'},"
     "'type':'function'}}",
     ""},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'thinking':{'type':'adaptive'},"
     "'chat_template_kwargs':{'x':1}}",
     "{'chat_template_kwargs':{'enable_thinking':true,'x':1},'max_tokens':5,'messages':[{"
     "'content':'a','role':'user'}]}",
     ""},
    {"{'messages':[{'role':'user','content':'a'}]}", "field 'max_tokens' is required",
     "max_tokens"},
    {"{'max_tokens':5}", "field 'messages' is required", "messages"},
    {"{'max_tokens':5,'messages':[]}", "field 'messages' must be a list of at least", "messages"},
    {"{'max_tokens':5,'messages':[{'role':'tool','content':'a'}]}", "messages[0].role must be",
     "messages"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':"
     "'image','source':{}}]}]}",
     "messages[0].content[1]: the type 'image' is not supported", "messages"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':"
     "'c','content':[{'type':'image'}]}]}]}",
     "messages[0].content[0]: the type 'image' is not supported", "messages"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_use','id':'c','name':"
     "'f','input':{}}]}]}",
     "messages[0].content[0]: the type 'tool_use' is not supported", "messages"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'system':5}",
     "system must be a string or a list of text blocks", "messages"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tools':[{'type':"
     "'bash_20250124','name':'bash'},{'type':'web_search_20250305','name':'w'},{'type':"
     "'computer_toolset_20260801'}],'mcp_servers':[{'name':'s'}],'tool_choice':{'type':'auto'}}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'}],'tool_choice':'auto','tools':[{"
     "'function':{'description':'Runs a command in a bash session, which keeps its state between "
     "calls.','name':'bash','parameters':{'properties':{'command':{'type':'string'},'restart':{"
     "'description':'true begins a new session','type':'boolean'}},'type':'object'}},'type':"
     "'function'}]}",
     "tools[1].web_search_20250305 tools[2].computer_toolset_20260801 mcp_servers"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tools':[{'type':"
     "'web_search_20250305','name':'w'}],'tool_choice':{'type':'tool','name':'w'}}",
     "field 'tool_choice' asks for a call, and this server serves none", "tool_choice"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':[{"
     "'type':'server_tool_use','id':'s','name':'web_search','input':{}},{'type':"
     "'web_search_tool_result','tool_use_id':'s','content':[]},{'type':'text','text':'b'},{'type':"
     "'tool_use','id':'c','name':'f','input':{}}]},{'role':'user','content':[{'type':'tool_result',"
     "'tool_use_id':'c','content':[{'type':'tool_reference','tool_name':'g'}]}]}]}",
     "{'max_tokens':5,'messages':[{'content':'a','role':'user'},{'content':'b','role':'assistant',"
     "'tool_calls':[{'function':{'arguments':'{}','name':'f'},'id':'c','type':'function'}]},{"
     "'content':'The tool g is available.','role':'tool','tool_call_id':'c'}]}",
     "messages[1].content[0].server_tool_use messages[1].content[1].web_search_tool_result "
     "messages[2].content[0].content[0].tool_reference"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f'}]}",
     "tools[0] must have the string 'name' and the object 'input_schema'", "tools"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'tool_choice':'auto'}",
     "field 'tool_choice' must be of the type", "tool_choice"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'thinking':{'type':'x'}}",
     "field 'thinking' must be of the type", "thinking"},
    {"{'max_tokens':5,'messages':[{'role':'user','content':'a'}],'container':'c'}",
     "field 'container' is not supported", "container"},
};

/* Only for the fields that --strict-fields refuses. */
static const sample strict_responses[] = {
    {"{'input':'x','no_such':1}", "unknown field 'no_such'", "no_such"},
    {"{'input':'x','truncation':'auto'}", "field 'truncation' is not supported", "truncation"},
    {"{'input':'x','reasoning':{'foo':1}}", "unknown field 'reasoning.foo'", "reasoning.foo"},
    {"{'input':'x','tools':[{'type':'web_search'}]}",
     "tools[0]: the type 'web_search' is not supported", "tools[0]"},
    {"{'input':[{'type':'web_search_call','id':'w'}]}",
     "input[0]: the type 'web_search_call' is not supported", "input[0]"},
    /* several choices are not for this API */
    {"{'input':'x','n':2}", "unknown field 'n'", "n"},
};

/* The tables have ' for ". */
static const sample *quoted(const sample *s, sample *out, char buf[2][2048])
{
    const bool error = s->want[0] != '{';
    snprintf(buf[0], 2048, "%s", s->body);
    snprintf(buf[1], 2048, "%s", s->want);
    for (int i = 0; i < (error ? 1 : 2); i++) {
        for (char *p = buf[i]; *p != '\0'; p++) {
            if (*p == '\'') *p = '"';
        }
    }
    *out = (sample){buf[0], buf[1], s->param};
    return out;
}

static void translations(void **state)
{
    sample s;
    char buf[2][2048];
    (void)state;
    for (size_t i = 0; i < sizeof responses / sizeof *responses; i++)
        check_sample(&rose_api_dialect_responses, quoted(&responses[i], &s, buf), false);
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        check_sample(&rose_api_dialect_messages, quoted(&messages[i], &s, buf), false);
    for (size_t i = 0; i < sizeof strict_responses / sizeof *strict_responses; i++)
        check_sample(&rose_api_dialect_responses, quoted(&strict_responses[i], &s, buf), true);
}

static void names_of_errors(void **state)
{
    rose_api_error e = {0};
    (void)state;
    rose_api_fail(&e, 400, NULL, "max_completion_tokens",
                  "field 'max_completion_tokens' must be 1 to 9, got 'x'");
    rose_api_translate_error(&e, rose_api_dialect_responses.renames);
    assert_string_equal(e.param, "max_output_tokens");
    assert_string_equal(e.msg, "field 'max_output_tokens' must be 1 to 9, got 'x'");
    rose_api_fail(&e, 400, NULL, "tools[1].function.parameters",
                  "'tools[1].function.parameters' no");
    rose_api_translate_error(&e, rose_api_dialect_messages.renames);
    assert_string_equal(e.param, "tools[1].input_schema");
    assert_string_equal(e.msg, "'tools[1].input_schema' no");
    rose_api_fail(&e, 400, NULL, "temperature", "field 'temperature' is bad");
    rose_api_translate_error(&e, rose_api_dialect_responses.renames);
    assert_string_equal(e.param, "temperature");
}

/* ---- whole requests against fakes ---- */

static rose_http_req *ask(rose_api **a, const char *path, const char *body, const uint32_t *script,
                          uint32_t n, uint32_t fail_at)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.async_admit = false;
    fake_reset();
    fake_script = script;
    fake_script_len = n;
    fake.fail_at = fail_at;
    *a = fake_start(&o);
    assert_non_null(*a);
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    return r;
}

static void forget(rose_http_req *r, rose_api *a)
{
    fake_free(r);
    fake_stop(a);
    assert_int_equal(fake.n_live, 0);
}

/* Returns the names of a stream's events, each with a comma. */
static char *event_names(const char *text)
{
    rose_api_out o = {0};
    for (const char *p = text; (p = strstr(p, "event: ")) != NULL;) {
        p += strlen("event: ");
        rose_api_put(&o, p, strcspn(p, "\n"));
        rose_api_puts(&o, ",");
    }
    return (char *)(uintptr_t)rose_buf_str(&o.b);
}

static void expect_events(const char *text, const char *want)
{
    char *got = event_names(text);
    assert_string_equal(got, want);
    free(got);
}

static void responses_stream(void **state)
{
    static const uint32_t s[] = {W(1), W(0), FAKE_EOS};
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/responses", "{\"input\":\"x\",\"stream\":true}", s, 3, 0);
    const char *text = fake_text(r);
    expect_events(text, "response.created,response.in_progress,response.output_item.added,"
                        "response.content_part.added,response.output_text.delta,"
                        "response.output_text.delta,response.output_text.done,"
                        "response.content_part.done,response.output_item.done,"
                        "response.completed,");
    for (int i = 0; i < 10; i++) {
        char number[40];
        snprintf(number, sizeof number, "\"sequence_number\":%d", i);
        assert_non_null(strstr(text, number));
    }
    assert_non_null(strstr(text, "\"delta\":\"world\",\"logprobs\":[]}\n\n"));
    assert_non_null(strstr(text, "\"text\":\"worldHello\",\"logprobs\":[]}]}],\"usage\":"
                                 "{\"input_tokens\":18,\"input_tokens_details\":{"
                                 "\"cached_tokens\":0},\"output_tokens\":3,"
                                 "\"output_tokens_details\":{\"reasoning_tokens\":0},"
                                 "\"total_tokens\":21}}}\n\n"));
    assert_null(strstr(text, "[DONE]"));
    forget(r, a);
}

static void responses_cut(void **state)
{
    static const uint32_t s[] = {W(0), W(1), W(0)};
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/responses",
                           "{\"input\":\"x\",\"max_output_tokens\":2,\"metadata\":{\"k\":\"v\"},"
                           "\"instructions\":\"i\",\"temperature\":0.5}",
                           s, 3, 0);
    const char *text = fake_text(r);
    assert_non_null(strstr(text, "\"status\":\"incomplete\",\"error\":null,\"incomplete_details\":"
                                 "{\"reason\":\"max_output_tokens\"},\"model\":\"m\","
                                 "\"instructions\":\"i\",\"max_output_tokens\":2"));
    assert_non_null(strstr(text, "\"metadata\":{\"k\":\"v\"}"));
    assert_non_null(strstr(text, "\"temperature\":0.5,\"top_p\":1"));
    assert_non_null(strstr(text, "\"store\":false"));
    assert_non_null(strstr(text,
                           "\"status\":\"incomplete\",\"type\":\"message\",\"role\":"
                           "\"assistant\",\"content\":[{\"type\":\"output_text\","
                           "\"annotations\":[],\"text\":\"Hello world\",\"logprobs\":[]}]}]"));
    forget(r, a);
}

/* An empty reply is an empty message, streamed or not. */
static void responses_empty(void **state)
{
    static const uint32_t s[] = {FAKE_EOS};
    rose_api *a;
    (void)state;
    for (int i = 0; i < 2; i++) {
        rose_http_req *r =
            ask(&a, "/v1/responses",
                i == 0 ? "{\"input\":\"x\"}" : "{\"input\":\"x\",\"stream\":true}", s, 1, 0);
        assert_non_null(strstr(fake_text(r), "\"status\":\"completed\",\"type\":\"message\","
                                             "\"role\":\"assistant\",\"content\":[{\"type\":"
                                             "\"output_text\",\"annotations\":[],\"text\":\"\","
                                             "\"logprobs\":[]}]}],\"usage\""));
        forget(r, a);
    }
}

static void responses_failure(void **state)
{
    static const uint32_t s[] = {W(0), W(1)};
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/responses", "{\"input\":\"x\",\"stream\":true}", s, 2, 2);
    expect_events(fake_text(r), "response.created,response.in_progress,response.output_item.added,"
                                "response.content_part.added,response.output_text.delta,"
                                "response.failed,");
    assert_non_null(strstr(fake_text(r), "\"status\":\"failed\",\"error\":{\"code\":"
                                         "\"server_error\",\"message\":\"the model gave no finite "
                                         "logit for this request\"}"));
    assert_non_null(strstr(fake_text(r), "\"status\":\"incomplete\",\"type\":\"message\""));
    forget(r, a);
}

static void messages_stream(void **state)
{
    static const uint32_t s[] = {W(1), W(0), W(2), W(3), W(0)};
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/messages",
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
                           "\"max_tokens\":9,\"stop_sequences\":[\"STOP\"]}",
                           s, 5, 0);
    char want[2048];
    snprintf(want, sizeof want,
             "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"%.20s"
             "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],"
             "\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":18,"
             "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":1}}"
             "}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"
             "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
             "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
             "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
             "\"delta\":{\"type\":\"text_delta\",\"text\":\"world\"}}\n\n"
             "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
             "\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n"
             "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
             "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
             "\"stop_sequence\",\"stop_sequence\":\"STOP\"},\"usage\":{\"input_tokens\":18,"
             "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":4}}"
             "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
             strstr(fake_text(r), "msg_"));
    assert_string_equal(fake_text(r), want);
    forget(r, a);
}

/* The stop string of the plain template is not the client's. */
static void messages_whole(void **state)
{
    static const uint32_t s[] = {W(1), W(4), W(5), W(0)};
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/messages",
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                           "\"max_tokens\":9,\"stop_sequences\":[\"STOP\"]}",
                           s, 4, 0);
    assert_non_null(strstr(fake_text(r),
                           "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
                           "\"content\":[{\"type\":\"text\",\"text\":\"world\"}],\"stop_reason\":"
                           "\"end_turn\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":18,"
                           "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,"
                           "\"output_tokens\":3}}"));
    forget(r, a);
}

/* Cached tokens are not input tokens, in Anthropic's way of counting. */
static void messages_cached(void **state)
{
    static const uint32_t s[] = {W(1), FAKE_EOS};
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.async_admit = false;
    fake_reset();
    fake_script = s;
    fake_script_len = 2;
    rose_api *a = fake_start(&o);
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":2,\"stream\":true}";
    rose_http_req *r = fake_request("/v1/messages", body, strlen(body));
    fake_arrive(r);
    assert_int_equal(fake.n_live, 1);
    fake.live[0]->n_cached = 16;
    fake_run(r);
    const char *first = strstr(fake_text(r), "\"input_tokens\":2,\"cache_creation_input_tokens\":0,"
                                             "\"cache_read_input_tokens\":16");
    assert_non_null(first);
    assert_non_null(strstr(first + 1, "\"input_tokens\":2,\"cache_creation_input_tokens\":0,"
                                      "\"cache_read_input_tokens\":16,\"output_tokens\":2"));
    forget(r, a);
}

static void messages_failure(void **state)
{
    static const uint32_t s[] = {W(0), W(1)};
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"stream\":true}";
    rose_api *a;
    (void)state;
    rose_http_req *r = ask(&a, "/v1/messages", body, s, 2, 2);
    expect_events(fake_text(r),
                  "message_start,ping,content_block_start,content_block_delta,error,");
    assert_non_null(strstr(fake_text(r), "data: {\"type\":\"error\",\"error\":{\"type\":"
                                         "\"api_error\",\"message\":\"the model gave no finite "
                                         "logit for this request\"}}\n\n"));
    forget(r, a);
    r = ask(&a, "/v1/messages", body, s, 2, 1); /* before the first byte */
    assert_int_equal(r->status, 500);
    assert_non_null(strstr(fake_text(r), "{\"type\":\"error\",\"error\":{\"type\":\"api_error\""));
    forget(r, a);
}

#define NOT_FOUND "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":\""
#define S50       "01234567890123456789012345678901234567890123456789"

static void errors_and_counts(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *want;
    } cases[] = {
        {"/v1/messages", "{}", 400,
         "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"field "
         "'max_tokens' is required\"}}"},
        {"/v1/messages", "{", 400, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_"},
        {"/v1/messages/",
         "{\"model\":\"no\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}",
         404, "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\""},
        {"/v1/messages",
         "{\"max_tokens\":5,\"stop_sequences\":[\"\"],\"messages\":[{\"role\":"
         "\"user\",\"content\":\"\"}]}",
         400, "a stop string must not be empty"},
        {"/v1/messages", NULL, 405, "{\"type\":\"error\""},
        {"/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 200,
         "{\"input_tokens\":18}"},
        {"/v1/messages/count_tokens", "{}", 400, "{\"type\":\"error\""},
        {"/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":0}", 400,
         "field 'max_output_tokens' must be 1 to 2147483647, got 0\",\"type\":"
         "\"invalid_request_error\",\"param\":\"max_output_tokens\""},
        {"/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":60}", 400,
         "\"param\":\"max_output_tokens\",\"code\":\"context_length_exceeded\""},
        {"/v1/responses", "{\"input\":\"x\",\"stream\":1}", 400, "\"param\":\"stream\""},
        {"/v1/responses/r_1", NULL, 404, "is not implemented by this server"},
        {"/v1/responses/input_tokens", "{\"input\":\"x\"}", 200,
         "{\"object\":\"response.input_tokens\",\"input_tokens\":18}"},
        {"/v1/responses/input_tokens", "{\"input\":7}", 400, "\"param\":\"input\""},
        {"/v1/responses/input_tokens", NULL, 405, "{\"error\":{\"message\":"},
        {"/v1/messages/batches", "{}", 404, NOT_FOUND},
        {"/v1/messages/batches/b_1/results", NULL, 404, NOT_FOUND},
        {"/v1/messages/count_tokens", NULL, 405, "{\"type\":\"error\""},
        {"/v1/v1/messages", "{}", 404, NOT_FOUND},
        {"/messages", "{}", 404, NOT_FOUND},
        {"/v1/messagesx", "{}", 404, "{\"error\":{\"message\":"},
        {"/v1/messages",
         "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"" S50 "\"}]}", 400,
         "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt "
         "is "
         "too long: 67 tokens > 63 maximum\"}}"},
        {"/v1/messages",
         "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"" S50 S50 S50 S50 S50 S50
             S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50
                 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 S50 "\"}]}",
         400, "\"prompt is too long: 69 tokens > 63 maximum\""},
        {"/v1/responses", "{\"input\":\"" S50 "\"}", 400, "maximum context length is 64 tokens"},
    };
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.async_admit = false;
    fake_reset();
    rose_api *a = fake_start(&o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *body = cases[i].body;
        rose_http_req *r = fake_request(cases[i].path, body, body == NULL ? 0 : strlen(body));
        fake_arrive(r);
        fake_run(r);
        assert_int_equal(r->status, cases[i].status);
        if (strstr(fake_text(r), cases[i].want) == NULL)
            fail_msg("%s %s: %s", cases[i].path, body, fake_text(r));
        fake_free(r);
    }
    fake_stop(a);
}

/* Refusals of the HTTP server itself also have the form of the path's API. */
static void early_errors(void **state)
{
    static const struct {
        const char *path;
        int status;
        const char *want;
    } cases[] = {
        {"/v1/messages", 401, "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\""},
        {"/v1/messages/batches", 413,
         "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\""},
        {"/v1/messages/", 403, "{\"type\":\"error\",\"error\":{\"type\":\"permission_error\""},
        {"/v1/messages/x", 429, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\""},
        {"/v1/messages", 503, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""},
        {"/v1/responses", 413, "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\""},
        {"", 413, "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\""},
    };
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    fake_reset();
    rose_api *a = fake_start(&o);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_buf b = {0};
        fake_http.cb.error_body(fake_http.cb.arg, cases[i].path, cases[i].status, "no", &b);
        if (strncmp(rose_buf_str(&b), cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("%s: %s", cases[i].path, b.data);
        rose_buf_free(&b);
    }
    fake_stop(a);
}

/* A client that leaves in mid-stream: the engine's request ends. */
static void cancelled(void **state)
{
    static const uint32_t s[] = {W(0), W(1), W(0), W(1), W(0), W(1)};
    static const char *const paths[] = {"/v1/responses", "/v1/messages"};
    static const char *const bodies[] = {
        "{\"input\":\"x\",\"stream\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"stream\":true}"};
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.async_admit = false;
    for (int i = 0; i < 2; i++) {
        fake_reset();
        fake_script = s;
        fake_script_len = 6;
        rose_api *a = fake_start(&o);
        rose_http_req *r = fake_request(paths[i], bodies[i], strlen(bodies[i]));
        fake_arrive(r);
        fake_engine_step();
        fake_turn(0);
        assert_true(r->begun);
        fake_leave(r);
        for (int k = 0; k < 8 && fake.n_live > 0; k++) {
            fake_engine_step();
            fake_turn(0);
        }
        assert_int_equal(fake.n_live, 0);
        fake_free(r);
        fake_stop(a);
    }
}

/* ---- parts made up by the test ---- */

typedef struct piece {
    rose_api_part_kind kind;
    uint32_t call;
    const char *text;
} piece;

static const piece pieces[] = {
    {ROSE_API_PART_REASONING, 0, "hm"}, {ROSE_API_PART_TEXT, 0, "I \"look\""},
    {ROSE_API_PART_CALL, 0, "find"},    {ROSE_API_PART_ARGS, 0, "{\"q\": "},
    {ROSE_API_PART_ARGS, 0, "\"a\"}"},  {ROSE_API_PART_CALL, 1, "now"},
    {ROSE_API_PART_TEXT, 0, "."}};

enum { N_PIECES = sizeof pieces / sizeof *pieces };

typedef struct bench {
    rose_api api;
    rose_api_job j;
    rose_api_choice c;
} bench;

static void bench_begin(bench *b, const rose_api_dialect *d, const char *id)
{
    memset(b, 0, sizeof *b);
    b->api.o.model_id = "m";
    b->api.o.fast_sse = true;
    b->j = (rose_api_job){.api = &b->api,
                          .kind = ROSE_API_CHAT,
                          .dialect = d,
                          .n_choices = 1,
                          .asked = {.n = 1},
                          .choices = &b->c};
    snprintf(b->j.id, sizeof b->j.id, "%s", id);
    b->c = (rose_api_choice){.job = &b->j, .prompt_n = 3, .n_tokens = 7};
}

static void bench_end(bench *b)
{
    free(b->c.parts);
    rose_buf_free(&b->c.text);
}

static void add_piece(rose_api_choice *c, const piece *p, size_t begin, size_t end)
{
    char id[16];
    snprintf(id, sizeof id, "call_%u", p->call);
    if (p->kind == ROSE_API_PART_CALL)
        assert_true(rose_api_part_call(c, p->call, id, p->text, strlen(p->text)));
    else
        assert_true(rose_api_part_add(c, p->kind, p->call, p->text + begin, end - begin));
}

/* The stream of all pieces, one event for each (each_byte: for each byte); to be freed. */
static char *stream(const rose_api_dialect *d, const char *id, bool each_byte)
{
    bench b;
    rose_api_out o = {0};
    bench_begin(&b, d, id);
    for (size_t i = 0; i < N_PIECES; i++) {
        const size_t len = strlen(pieces[i].text);
        const size_t step = each_byte && pieces[i].kind != ROSE_API_PART_CALL ? 1 : len;
        for (size_t k = 0; k < len; k += step) {
            add_piece(&b.c, &pieces[i], k, k + step);
            d->event(&o, &b.c, false);
        }
    }
    b.c.finish = "stop";
    d->event(&o, &b.c, true);
    d->end(&o, &b.j);
    bench_end(&b);
    assert_false(o.oom);
    return (char *)(uintptr_t)rose_buf_str(&o.b);
}

static char *whole(const rose_api_dialect *d, const char *id)
{
    bench b;
    rose_api_out o = {0};
    bench_begin(&b, d, id);
    for (size_t i = 0; i < N_PIECES; i++)
        add_piece(&b.c, &pieces[i], 0, strlen(pieces[i].text));
    b.c.finish = "stop";
    d->whole(&o, &b.j);
    bench_end(&b);
    assert_false(o.oom);
    return (char *)(uintptr_t)rose_buf_str(&o.b);
}

#define OUTPUT                                                                                     \
    "[{\"id\":\"rs_1_0\",\"status\":\"completed\",\"type\":\"reasoning\",\"summary\":[],"          \
    "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"                                \
    "{\"id\":\"msg_1_1\",\"status\":\"completed\",\"type\":\"message\",\"role\":\"assistant\","    \
    "\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"text\":\"I \\\"look\\\"\","       \
    "\"logprobs\":[]}]},"                                                                          \
    "{\"id\":\"fc_1_2\",\"status\":\"completed\",\"type\":\"function_call\",\"call_id\":"          \
    "\"call_0\",\"name\":\"find\",\"arguments\":\"{\\\"q\\\": \\\"a\\\"}\"},"                      \
    "{\"id\":\"fc_1_3\",\"status\":\"completed\",\"type\":\"function_call\",\"call_id\":"          \
    "\"call_1\",\"name\":\"now\",\"arguments\":\"\"},"                                             \
    "{\"id\":\"msg_1_4\",\"status\":\"completed\",\"type\":\"message\",\"role\":\"assistant\","    \
    "\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"text\":\".\",\"logprobs\":[]}]}]"

static void parts_in_responses(void **state)
{
    const rose_api_dialect *d = &rose_api_dialect_responses;
    (void)state;
    char *text = whole(d, "resp_1");
    assert_non_null(strstr(text, "\"output\":" OUTPUT ",\"usage\""));
    free(text);
    text = stream(d, "resp_1", false);
    expect_events(
        text, "response.created,response.in_progress,response.output_item.added,"
              "response.content_part.added,response.reasoning_text.delta,"
              "response.reasoning_text.done,response.content_part.done,response.output_item.done,"
              "response.output_item.added,response.content_part.added,response.output_text.delta,"
              "response.output_text.done,response.content_part.done,response.output_item.done,"
              "response.output_item.added,response.function_call_arguments.delta,"
              "response.function_call_arguments.delta,response.function_call_arguments.done,"
              "response.output_item.done,response.output_item.added,"
              "response.function_call_arguments.done,response.output_item.done,"
              "response.output_item.added,response.content_part.added,response.output_text.delta,"
              "response.output_text.done,response.content_part.done,response.output_item.done,"
              "response.completed,");
    assert_non_null(strstr(text, "\"output_index\":2,\"item\":{\"id\":\"fc_1_2\",\"status\":"
                                 "\"in_progress\",\"type\":\"function_call\",\"call_id\":"
                                 "\"call_0\",\"name\":\"find\",\"arguments\":\"\"}}\n\n"));
    assert_non_null(strstr(text, "\"item_id\":\"fc_1_2\",\"output_index\":2,\"delta\":\"\\\"a\\\"}"
                                 "\"}\n\n"));
    assert_non_null(strstr(text, "\"item_id\":\"fc_1_2\",\"output_index\":2,\"name\":\"find\","
                                 "\"arguments\":\"{\\\"q\\\": \\\"a\\\"}\"}\n\n"));
    assert_non_null(strstr(text, "\"output\":" OUTPUT ",\"usage\""));
    free(text);
    text = stream(d, "resp_1", true);
    assert_non_null(strstr(text, "\"output\":" OUTPUT ",\"usage\""));
    free(text);
}

/* Each text has the tokens that made it, and neither those of other parts nor those of another
 * text. */
static void logprobs_of_parts(void **state)
{
    const rose_api_dialect *d = &rose_api_dialect_responses;
    rose_api_extra x = {0};
    rose_api_out o = {0};
    bench b;
    (void)state;
    bench_begin(&b, d, "resp_1");
    b.j.asked.logprobs = true;
    b.c.extra = &x;
    for (size_t i = 0; i < N_PIECES; i++) {
        rose_api_putf(&x.tokens, "%s{\"token\":\"%u\"}", i > 0 ? "," : "", (unsigned)i);
        add_piece(&b.c, &pieces[i], 0, strlen(pieces[i].text));
        if (i == 1) { /* a second token of the first text, in an event of its own */
            d->event(&o, &b.c, false);
            rose_api_puts(&x.tokens, ",{\"token\":\"1b\"}");
            add_piece(&b.c, &(piece){ROSE_API_PART_TEXT, 0, "!"}, 0, 1);
        }
        d->event(&o, &b.c, false);
    }
    b.c.finish = "stop";
    d->event(&o, &b.c, true);
    d->end(&o, &b.j);
    const char *text = rose_buf_str(&o.b);
    assert_non_null(strstr(text, "\"delta\":\"I \\\"look\\\"\",\"logprobs\":[{\"token\":\"1\"}]}"));
    assert_non_null(strstr(text, "\"delta\":\"!\",\"logprobs\":[{\"token\":\"1b\"}]}"));
    assert_non_null(strstr(text, "\"delta\":\".\",\"logprobs\":[{\"token\":\"6\"}]}"));
    assert_non_null(strstr(text, "\"text\":\"I \\\"look\\\"!\",\"logprobs\":[{\"token\":\"1\"},"
                                 "{\"token\":\"1b\"}]}]},{\"id\":\"fc_1_2\""));
    assert_non_null(strstr(text, "\"text\":\".\",\"logprobs\":[{\"token\":\"6\"}]}]}],\"usage\""));
    rose_api_out_free(&o);
    rose_api_extra_free(&x);
    bench_end(&b);
}

#define BLOCK(i, block)                                                                            \
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":" #i            \
    ",\"content_block\":{" block "}}\n\n"
#define DELTA(i, delta)                                                                            \
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":" #i            \
    ",\"delta\":{" delta "}}\n\n"
#define STOP(i)                                                                                    \
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":" #i "}\n\n"

static void parts_in_messages(void **state)
{
    const rose_api_dialect *d = &rose_api_dialect_messages;
    (void)state;
    char *text = whole(d, "msg_1");
    assert_non_null(
        strstr(text, "\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},"
                     "{\"type\":\"text\",\"text\":\"I \\\"look\\\"\"},"
                     "{\"type\":\"tool_use\",\"id\":\"call_0\",\"name\":\"find\",\"input\":"
                     "{\"q\": \"a\"}},{\"type\":\"tool_use\",\"id\":\"call_1\",\"name\":\"now\","
                     "\"input\":{}},{\"type\":\"text\",\"text\":\".\"}],\"stop_reason\":"
                     "\"tool_use\",\"stop_sequence\":null"));
    free(text);
    text = stream(d, "msg_1", false);
    assert_non_null(strstr(
        text,
        BLOCK(0, "\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"")
            DELTA(0, "\"type\":\"thinking_delta\",\"thinking\":\"hm\"") STOP(0) BLOCK(
                1, "\"type\":\"text\",\"text\":\"\"")
                DELTA(1, "\"type\":\"text_delta\",\"text\":\"I \\\"look\\\"\"") STOP(1) BLOCK(
                    2, "\"type\":\"tool_use\",\"id\":\"call_0\",\"name\":\"find\","
                       "\"input\":{}") DELTA(2, "\"type\":\"input_json_delta\","
                                                "\"partial_json\":\"{\\\"q\\\": \"")
                    DELTA(2, "\"type\":\"input_json_delta\",\"partial_json\":\"\\\"a\\\"}\"")
                        STOP(2) BLOCK(3, "\"type\":\"tool_use\",\"id\":\"call_1\",\"name\":"
                                         "\"now\",\"input\":{}") STOP(3)
                            BLOCK(4, "\"type\":\"text\",\"text\":\"\"")
                                DELTA(4, "\"type\":\"text_delta\",\"text\":\".\"") STOP(
                                    4) "event: message_delta\ndata: {\"type\":\"message_delta\","
                                       "\"delta\":{\"stop_reason\":\"tool_use\""));
    free(text);
}

/* Arguments that are no object are not lost. */
static void broken_arguments(void **state)
{
    static const piece cut[] = {{ROSE_API_PART_CALL, 0, "f"},
                                {ROSE_API_PART_ARGS, 0, "{\"a\": [1"}};
    rose_api_out o = {0};
    bench b;
    (void)state;
    bench_begin(&b, &rose_api_dialect_messages, "msg_1");
    add_piece(&b.c, &cut[0], 0, 1);
    add_piece(&b.c, &cut[1], 0, strlen(cut[1].text));
    b.c.finish = "length";
    rose_api_dialect_messages.whole(&o, &b.j);
    assert_non_null(strstr(rose_buf_str(&o.b), "\"input\":{\"_raw_arguments\":\"{\\\"a\\\": [1\"}}]"
                                               ",\"stop_reason\":\"max_tokens\""));
    rose_api_out_free(&o);
    bench_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(translations),      cmocka_unit_test(names_of_errors),
        cmocka_unit_test(responses_stream),  cmocka_unit_test(responses_cut),
        cmocka_unit_test(responses_empty),   cmocka_unit_test(responses_failure),
        cmocka_unit_test(messages_stream),   cmocka_unit_test(messages_whole),
        cmocka_unit_test(messages_cached),   cmocka_unit_test(messages_failure),
        cmocka_unit_test(errors_and_counts), cmocka_unit_test(early_errors),
        cmocka_unit_test(cancelled),         cmocka_unit_test(parts_in_responses),
        cmocka_unit_test(logprobs_of_parts), cmocka_unit_test(parts_in_messages),
        cmocka_unit_test(broken_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
