/* What the API refuses, and how: one row per body, with the status, the param and a piece of the
 * message; and what it accepts. Through the whole room, against fakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "fakes.h"

#include "base/clock.h"

#define C   "/v1/completions"
#define H   "/v1/chat/completions"
#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

typedef struct row {
    const char *path, *body;
    int status;
    const char *param, *message; /* NULL param = null; message: a part of it */
} row;

static const row refused[] = {
    /* JSON */
    {C, "", 400, NULL, "empty"},
    {C, "{", 400, NULL, "line 1, column 1"},
    {C, "{\"prompt\":\"x\",}", 400, NULL, "not valid JSON"},
    {C, "[1]", 400, NULL, "must be a JSON object"},
    {C, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, NULL, "duplicate"},
    {C, "{\"prompt\":\"\xC3\x28\"}", 400, NULL, "not valid JSON"},
    {C, "{\"prompt\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 400, NULL,
     "deeper than 64"},
    {C, "{\"prompt\":\"x\",\"seed\":9223372036854775808}", 400, "seed",
     "does not fit 64 bits: 9223372036854775808"},
    {C, "{\"prompt\":\"x\",\"temperature\":1e400}", 400, NULL, "overflow"},
    {C, "{\"prompt\":\"x\",\"temperature\":NaN}", 400, NULL, "not valid JSON"},
    /* prompt */
    {C, "{}", 400, "prompt", "required"},
    {C, "{\"prompt\":null}", 400, "prompt", "required"},
    {C, "{\"prompt\":\"\"}", 400, "prompt", "empty"},
    {C, "{\"prompt\":[]}", 400, "prompt", "empty"},
    {C, "{\"prompt\":[[]]}", 400, "prompt", "empty"},
    {C, "{\"prompt\":[\"a\",\"\"]}", 400, "prompt", "empty"},
    {C, "{\"prompt\":5}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":{}}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":[\"a\",1]}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":[1,\"a\"]}", 400, "prompt", "token 1 of 'prompt' is not an integer"},
    {C, "{\"prompt\":[1.0]}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":[1,1.0]}", 400, "prompt", "not an integer"},
    {C, "{\"prompt\":[true]}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":[[1],[\"a\"]]}", 400, "prompt", "not an integer"},
    {C, "{\"prompt\":[[1],2]}", 400, "prompt", "must be a string, a list"},
    {C, "{\"prompt\":[[[1]]]}", 400, "prompt", "not an integer"},
    {C, "{\"prompt\":[-1]}", 400, "prompt", "token id -1 at index 0"},
    {C, "{\"prompt\":[1,268]}", 400, "prompt", "0 to 267"},
    {C, "{\"prompt\":[4294967297]}", 400, "prompt", "out of range"},
    {C, "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"]}", 400, "prompt",
     "more choices"},
    {C, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":3}", 400, "prompt", "more choices"},
    /* lengths: the context is 64 tokens */
    {C, "{\"prompt\":\"0123456789012345678901234567890123456789012345678901234567890123\"}", 400,
     "prompt",
     "maximum context length is 64 tokens. However, you requested 65 tokens (64 in the "
     "prompt, 1 in the completion)"},
    {C, "{\"prompt\":\"abcd\",\"max_tokens\":61}", 400, "max_tokens",
     "requested 65 tokens (4 in the prompt, 61 in the completion)"},
    {C, "{\"prompt\":\"abcd\",\"max_tokens\":2147483647}", 400, "max_tokens",
     "maximum context length"},
    {H, "{" MSG ",\"max_completion_tokens\":60}", 400, "max_completion_tokens",
     "18 in the messages"},
    /* integers */
    {C, "{\"prompt\":\"x\",\"max_tokens\":-1}", 400, "max_tokens", "0 to 2147483647, got -1"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":-1}", 400, "max_tokens", "got -1"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":2147483648}", 400, "max_tokens", "got 2147483648"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":5.5}", 400, "max_tokens", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":-1.0}", 400, "max_tokens", "got -1"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":1e300}", 400, "max_tokens", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"seed\":9223372036854775808.0}", 400, "seed", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":\"5\"}", 400, "max_tokens", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":true}", 400, "max_tokens", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":[5]}", 400, "max_tokens", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"top_k\":-2}", 400, "top_k", "-1 or 0 (off)"},
    {C, "{\"prompt\":\"x\",\"top_k\":1e-2}", 400, "top_k", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"seed\":1.5}", 400, "seed", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"seed\":\"1\"}", 400, "seed", "must be an integer"},
    {C, "{\"prompt\":\"x\",\"n\":0}", 400, "n", "1 to 8, got 0"},
    {C, "{\"prompt\":\"x\",\"n\":9}", 400, "n", "1 to 8, got 9"},
    {C, "{\"prompt\":\"x\",\"n\":1000000000}", 400, "n", "1 to 8"},
    {C, "{\"prompt\":\"x\",\"n\":-9223372036854775808}", 400, "n", "1 to 8"},
    /* numbers */
    {C, "{\"prompt\":\"x\",\"temperature\":-0.1}", 400, "temperature", "0 to 100, got -0.1"},
    {C, "{\"prompt\":\"x\",\"temperature\":1e300}", 400, "temperature", "0 to 100"},
    {C, "{\"prompt\":\"x\",\"temperature\":\"hot\"}", 400, "temperature", "must be a number"},
    {C, "{\"prompt\":\"x\",\"top_p\":0}", 400, "top_p", "above 0"},
    {C, "{\"prompt\":\"x\",\"top_p\":1.01}", 400, "top_p", "at most 1"},
    {C, "{\"prompt\":\"x\",\"top_p\":-1}", 400, "top_p", "above 0"},
    {C, "{\"prompt\":\"x\",\"min_p\":1.5}", 400, "min_p", "0 to 1"},
    {C, "{\"prompt\":\"x\",\"min_p\":-0.5}", 400, "min_p", "0 to 1"},
    /* booleans, strings */
    {C, "{\"prompt\":\"x\",\"stream\":1}", 400, "stream", "true or false"},
    {C, "{\"prompt\":\"x\",\"ignore_eos\":\"yes\"}", 400, "ignore_eos", "true or false"},
    {C, "{\"prompt\":\"x\",\"user\":5}", 400, "user", "must be a string"},
    {C, "{\"prompt\":\"x\",\"model\":5}", 400, "model", "must be a string"},
    {C, "{\"prompt\":\"x\",\"model\":\"gpt-4\"}", 404, "model", "'gpt-4' does not exist"},
    {C, "{\"prompt\":\"x\",\"model\":\"mm\\u0000\"}", 404, "model", "does not exist"},
    /* stop */
    {C, "{\"prompt\":\"x\",\"stop\":\"\"}", 400, "stop", "must not be empty"},
    {C, "{\"prompt\":\"x\",\"stop\":[\"a\",\"\"]}", 400, "stop", "must not be empty"},
    {C, "{\"prompt\":\"x\",\"stop\":[\"a\",null]}", 400, "stop", "list of strings"},
    {C, "{\"prompt\":\"x\",\"stop\":5}", 400, "stop", "list of strings"},
    {C, "{\"prompt\":\"x\",\"stop\":{}}", 400, "stop", "list of strings"},
    /* stream_options */
    {C, "{\"prompt\":\"x\",\"stream_options\":{\"include_usage\":false}}", 400, "stream_options",
     "only allowed when"},
    {C, "{\"prompt\":\"x\",\"stream\":false,\"stream_options\":{\"x\":1}}", 400, "stream_options",
     "only allowed when"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":[]}", 400, "stream_options",
     "must be an object"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400,
     "stream_options.include_usage", "true or false"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":1}}", 400,
     "stream_options.continuous_usage_stats", "true or false"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_obfuscation\":1}}", 400,
     "stream_options.include_obfuscation", "true or false"},
    /* logprobs and the rules of sampling */
    {C, "{\"prompt\":\"x\",\"logprobs\":21}", 400, "logprobs", "0 to 20, got 21"},
    {C, "{\"prompt\":\"x\",\"logprobs\":-1}", 400, "logprobs", "0 to 20"},
    {C, "{\"prompt\":\"x\",\"logprobs\":true}", 400, "logprobs", "an integer"},
    {C, "{\"prompt\":\"x\",\"logprobs\":1.5}", 400, "logprobs", "an integer"},
    {C, "{\"prompt\":\"x\",\"prompt_logprobs\":21}", 400, "prompt_logprobs", "0 to 20"},
    {C, "{\"prompt\":\"x\",\"prompt_logprobs\":1,\"stream\":true}", 400, "prompt_logprobs",
     "not served with 'stream'"},
    {C, "{\"prompt\":\"x\",\"echo\":1}", 400, "echo", "true or false"},
    {C, "{\"prompt\":\"x\",\"max_completion_tokens\":0}", 400, "max_completion_tokens", "1 to"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":[1]}", 400, "logit_bias", "an object"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", 400, "logit_bias", "-100 to 100"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":\"1\"}}", 400, "logit_bias", "a number"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"268\":1}}", 400, "logit_bias", "(0 to 267)"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"-1\":1}}", 400, "logit_bias", "not an id"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"05\":1}}", 400, "logit_bias", "not an id"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"\":1}}", 400, "logit_bias", "not an id"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"99999999999999999999999\":1}}", 400, "logit_bias",
     "not an id"},
    {C, "{\"prompt\":\"x\",\"presence_penalty\":2.5}", 400, "presence_penalty", "-2 to 2"},
    {C, "{\"prompt\":\"x\",\"frequency_penalty\":-2.5}", 400, "frequency_penalty", "-2 to 2"},
    {C, "{\"prompt\":\"x\",\"repetition_penalty\":0}", 400, "repetition_penalty", "0.01 to 100"},
    {C, "{\"prompt\":\"x\",\"min_tokens\":-1}", 400, "min_tokens", "0 to"},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":5}", 400, "stop_token_ids", "a list of token ids"},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":[268]}", 400, "stop_token_ids", "out of range"},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":[\"5\"]}", 400, "stop_token_ids", "not an integer"},
    {C, "{\"prompt\":\"x\",\"allowed_token_ids\":[-1]}", 400, "allowed_token_ids", "out of range"},
    {C, "{\"prompt\":\"x\",\"bad_words\":\"x\"}", 400, "bad_words", "a list of at most"},
    {C, "{\"prompt\":\"x\",\"bad_words\":[\"\"]}", 400, "bad_words", "1 to 4096 bytes"},
    {C, "{\"prompt\":\"x\",\"bad_words\":[1]}", 400, "bad_words", "must be a string"},
    {C, "{\"prompt\":\"x\",\"timeout\":-1}", 400, "timeout", "seconds"},
    {C, "{\"prompt\":\"x\",\"timeout\":1e300}", 400, "timeout", "seconds"},
    {C, "{\"prompt\":\"x\",\"return_token_ids\":1}", 400, "return_token_ids", "true or false"},
    {H, "{" MSG ",\"logprobs\":1}", 400, "logprobs", "true or false"},
    {H, "{" MSG ",\"top_logprobs\":3}", 400, "top_logprobs", "needs 'logprobs'"},
    {H, "{" MSG ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", "0 to 20"},
    {H, "{" MSG ",\"echo\":true}", 400, "echo", "not supported"},
    {H, "{" MSG ",\"max_tokens\":0}", 400, "max_tokens", "1 to"},
    /* known, not served */
    {C, "{\"prompt\":\"x\",\"best_of\":2}", 400, "best_of", "not supported"},
    {C, "{\"prompt\":\"x\",\"best_of\":2,\"n\":3}", 400, "best_of", "is 2 and 'n' is 3"},
    {C, "{\"prompt\":\"x\",\"best_of\":0}", 400, "best_of", "equal to 'n'"},
    {C, "{\"prompt\":\"x\",\"best_of\":true}", 400, "best_of", "an integer"},
    {C, "{\"prompt\":\"x\",\"no_stop_trim\":true}", 400, "no_stop_trim", "not supported"},
    {C, "{\"prompt\":\"x\",\"return_hidden_states\":true}", 400, "return_hidden_states",
     "not supported"},
    {C, "{\"prompt\":\"x\",\"custom_logit_processor\":\"x\"}", 400, "custom_logit_processor",
     "not supported"},
    {C, "{\"prompt\":\"x\",\"lora_path\":\"x\"}", 400, "lora_path", "not supported"},
    {C, "{\"prompt\":\"x\",\"logits_processors\":[\"x\"]}", 400, "logits_processors",
     "not supported"},
    {C, "{\"prompt\":\"x\",\"prompt_embeds\":\"AA\"}", 400, "prompt_embeds", "not supported"},
    {C, "{\"prompt\":\"x\",\"truncate_prompt_tokens\":5}", 400, "truncate_prompt_tokens",
     "not supported"},
    {H, "{" MSG ",\"functions\":[{}]}", 400, "tools[0].function.name", "letters"},
    {H, "{" MSG ",\"web_search_options\":{}}", 400, "web_search_options", "not supported"},
    {H, "{" MSG ",\"chat_template\":\"x\"}", 400, "chat_template", "not supported"},
    {H, "{" MSG ",\"documents\":[{}]}", 400, "documents", "not supported"},
    {H, "{" MSG ",\"continue_final_message\":true}", 400, "continue_final_message", "exclude"},
    {H, "{" MSG ",\"add_generation_prompt\":1}", 400, "add_generation_prompt", "true or false"},
    {H, "{" MSG ",\"chat_template_kwargs\":[1]}", 400, "chat_template_kwargs", "an object"},
    {H, "{" MSG ",\"documents\":\"x\"}", 400, "documents", "a list of objects"},
    {H, "{" MSG ",\"tools\":[1]}", 400, "tools", "a list of objects"},
    {H, "{" MSG ",\"tools\":[{}],\"tool_choice\":\"none\"}", 400, "tools[0]", "not supported"},
    {"/apply-template", "{}", 400, "messages", "required"},
    {"/apply-template", "{" MSG ",\"temperature\":-1}", 400, "temperature", "0 to 100"},
    {C, "{\"prompt\":\"x\",\"suffix\":\"y\"}", 400, "suffix", "not supported"},
    {C, "{\"prompt\":\"x\",\"skip_special_tokens\":false}", 400, "skip_special_tokens",
     "not supported"},
    {C, "{\"prompt\":\"x\",\"use_beam_search\":true}", 400, "use_beam_search", "not supported"},
    {C, "{\"prompt\":\"x\",\"cache_salt\":\"\"}", 400, "cache_salt", "not empty"},
    {C, "{\"prompt\":\"x\",\"cache_salt\":5}", 400, "cache_salt", "a string"},
    {H, "{" MSG ",\"cache_salt\":[]}", 400, "cache_salt", "a string"},
    {C, "{\"prompt\":\"x\",\"priority\":1.5}", 400, "priority", "an integer"},
    {C, "{\"prompt\":\"x\",\"priority\":\"high\"}", 400, "priority", "an integer"},
    {C, "{\"prompt\":\"x\",\"priority\":2147483648}", 400, "priority", "-2147483648 to"},
    {H, "{" MSG ",\"tools\":[{\"type\":5}]}", 400, "tools[0]", "not supported"},
    {H, "{" MSG ",\"tools\":[{\"type\":\"x\"}],\"tool_choice\":\"required\"}", 400, "tool_choice",
     "none of the 'tools'"},
    {H, "{" MSG ",\"modalities\":[\"audio\"]}", 400, "modalities", "not supported"},
    /* structured output */
    {H, "{" MSG ",\"response_format\":5}", 400, "response_format", "an object with a 'type'"},
    {H, "{" MSG ",\"response_format\":\"json\"}", 400, "response_format", "an object"},
    {H, "{" MSG ",\"response_format\":{}}", 400, "response_format.type",
     "\"text\", \"json_object\""},
    {C, "{\"prompt\":\"x\",\"response_format\":{\"type\":\"xml\"}}", 400, "response_format.type",
     "\"json_schema\" or \"structural_tag\""},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_schema\"}}", 400,
     "response_format.json_schema", "'schema'"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}}",
     400, "response_format.json_schema.schema", "a JSON schema"},
    {H,
     "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"{}\"}}}",
     400, "response_format.json_schema.schema", "an object"},
    {H,
     "{" MSG
     ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"name\":1}}}",
     400, "response_format.json_schema.name", "a string"},
    {H,
     "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},"
     "\"strict\":1}}}",
     400, "response_format.json_schema.strict", "true or false"},
    {H,
     "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
     "\"nothing\"}}}}",
     400, "response_format", "#/type"},
    {H,
     "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{"
     "\"items\":{\"uniqueItems\":true}}}}}",
     400, "response_format", "#/items/uniqueItems"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_object\",\"schema\":[]}}", 400,
     "response_format.schema", "an object"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"structural_tag\"}}", 400, "response_format",
     "format"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":5}", 400, "structured_outputs", "an object"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json_object\":false}}", 400,
     "structured_outputs", "one of 'json', 'json_object'"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json_object\":1}}", 400,
     "structured_outputs.json_object", "true or false"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":5}}", 400, "structured_outputs.json",
     "an object, or a string"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":\"{\"}}", 400,
     "structured_outputs.json", "json_schema: not JSON"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"\"}}", 400,
     "structured_outputs.regex", "not empty"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"(\"}}", 400,
     "structured_outputs.regex", "regex"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"choice\":[]}}", 400,
     "structured_outputs.choice", "at least one string"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"choice\":[\"a\",1]}}", 400,
     "structured_outputs.choice", "list of at least one string"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"grammar\":\"root ::= x\"}}", 400,
     "structured_outputs.grammar", "x"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"structural_tag\":[]}}", 400,
     "structured_outputs.structural_tag", "an object, or a string"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}}", 400,
     "structured_outputs.regex",
     "'structured_outputs.json' and 'structured_outputs.regex' exclude"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\" \"}}", 400,
     "structured_outputs.whitespace_pattern", "not supported"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true}}",
     400, "structured_outputs.disable_any_whitespace", "not supported"},
    {C,
     "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{},\"disable_additional_properties\":1}}",
     400, "structured_outputs.disable_additional_properties", "true or false"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{},\"disable_fallback\":1}}", 400,
     "structured_outputs.disable_fallback", "true or false"},
    {C,
     "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"a\"},\"response_format\":{\"type\":"
     "\"json_object\"}}",
     400, "structured_outputs.regex", "'response_format' and"},
    {C, "{\"prompt\":\"x\",\"guided_json\":1}", 400, "guided_json", "an object, or a string"},
    {C, "{\"prompt\":\"x\",\"guided_json\":\"\"}", 400, "guided_json", "an object, or a string"},
    {C, "{\"prompt\":\"x\",\"guided_regex\":[\"a\"]}", 400, "guided_regex", "a string"},
    {C, "{\"prompt\":\"x\",\"guided_choice\":\"a\"}", 400, "guided_choice", "a list"},
    {C, "{\"prompt\":\"x\",\"guided_choice\":[]}", 400, "guided_choice", "a list"},
    {C, "{\"prompt\":\"x\",\"guided_grammar\":5}", 400, "guided_grammar", "a string"},
    {C, "{\"prompt\":\"x\",\"guided_json\":{},\"guided_regex\":\"a\"}", 400, "guided_regex",
     "'guided_json' and 'guided_regex' exclude"},
    {C, "{\"prompt\":\"x\",\"guided_whitespace_pattern\":\"x\"}", 400, "guided_whitespace_pattern",
     "not supported"},
    {C, "{\"prompt\":\"x\",\"regex\":5}", 400, "regex", "a string"},
    {C, "{\"prompt\":\"x\",\"ebnf\":\"other ::= [a]\"}", 400, "ebnf", "root"},
    {C, "{\"prompt\":\"x\",\"json_schema\":[]}", 400, "json_schema", "an object"},
    {C,
     "{\"prompt\":\"x\",\"json_schema\":{\"type\":\"object\"},\"grammar\":\"root ::= \\\"a\\\"\"}",
     400, "grammar", "exclude each other"},
    {C, "{\"prompt\":\"x\",\"grammar_lazy\":true}", 400, "grammar_lazy", "not supported"},
    /* messages */
    {H, "{}", 400, "messages", "required"},
    {H, "{\"messages\":[]}", 400, "messages", "at least one"},
    {H, "{\"messages\":\"hi\"}", 400, "messages", "list of at least one"},
    {H, "{\"messages\":[5]}", 400, "messages", "messages[0] must be an object"},
    {H, "{\"messages\":[{}]}", 400, "messages", "messages[0].role"},
    {H, "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", 400, "messages", "role must be"},
    {H, "{\"messages\":[{\"role\":5,\"content\":\"x\"}]}", 400, "messages", "role must be"},
    {H, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages", "content must be"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400, "messages",
     "content must be"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "messages", "content must be"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", 400, "messages", "each part"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
     "messages", "'image_url' is not supported"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", 400, "messages",
     "needs a string 'text'"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{}]}]}", 400,
     "messages", "messages[0].tool_calls[0] needs a 'function'"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_call_id\":\"c\"}]}", 400,
     "messages", "messages[0].tool_call_id is not supported"},
    {H, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":\"no\"}]}", 400,
     "messages", "messages[0].refusal is not supported"},
    /* tokenize, detokenize */
    {"/tokenize", "{}", 400, "prompt", "one of 'prompt' and 'messages'"},
    {"/tokenize", "{\"prompt\":\"a\"," MSG "}", 400, "prompt", "one of"},
    {"/tokenize", "{\"prompt\":[1]}", 400, "prompt", "must be a string"},
    {"/detokenize", "{}", 400, "tokens", "required"},
    {"/detokenize", "{\"tokens\":\"a\"}", 400, "tokens", "list of token ids"},
    {"/detokenize", "{\"tokens\":[268]}", 400, "tokens", "out of range"},
    {"/detokenize", "{\"tokens\":[1.5]}", 400, "tokens", "not an integer"},
    {"/detokenize", "{\"tokens\":[[1]]}", 400, "tokens", "not an integer"},
    /* paths and methods */
    {"/", "{}", 405, NULL, "takes GET, not POST"},
    {"/x", "{}", 404, NULL, "nothing at '/x'; the OpenAI API is at /v1"},
    {"/v1", "{}", 404, NULL, "nothing at"},
    {"/v1/", "{}", 404, NULL, "nothing at"},
    {"/v1/completionsx", "{}", 404, NULL, "nothing at"},
    {"/chat/completions", "{}", 404, NULL,
     "did you mean '/v1/chat/completions'? The base URL of an OpenAI client ends in /v1"},
    {"/completions", "{}", 404, NULL, "did you mean '/v1/completions'? The base"},
    {"/models", NULL, 404, NULL, "did you mean '/v1/models'? The base"},
    {"/models/m", NULL, 404, NULL, "did you mean '/v1/models/m'?"},
    {"//v1/models", NULL, 404, NULL, "did you mean '/v1/models'?"},
    {"/v1//chat/completions", "{}", 404, NULL, "did you mean '/v1/chat/completions'?"},
    {"/v1/v1/chat/completions", "{}", 404, NULL, "did you mean '/v1/chat/completions'?"},
    {"/v1/health", NULL, 404, NULL, "did you mean '/health'?"},
    {"/healthz", NULL, 404, NULL, "did you mean '/health'?"},
    {"/completion", "{}", 404, NULL, "did you mean '/v1/completions'? The base"},
    {"/v1/uploads", "{}", 404, NULL, "'/v1/uploads' is not implemented by this server"},
    {"/v1/files", "{}", 404, NULL, "without --batch-dir DIR"},
    {"/v1/batches/b/cancel", "{}", 404, NULL, "without --batch-dir DIR"},
    {"/embeddings", "{}", 404, NULL, "did you mean '/v1/embeddings'?"},
    {"/v1/embeddings", "{}", 400, "input", "required"},
    {"/v1/embeddings", "{\"input\":[]}", 400, "input", "is empty"},
    {"/v1/embeddings", "{\"input\":[[]]}", 400, "input[0]", "is empty"},
    {"/v1/embeddings", "{\"input\":[null]}", 400, "input[0]", "must be a string"},
    {"/v1/embeddings", "{\"input\":[[1],[2.5]]}", 400, "input[1]", "not an integer"},
    {"/v1/embeddings", "{\"input\":\"x\",\"dimensions\":3}", 400, "dimensions", "4 values"},
    {"/v1/embeddings", "{\"input\":\"x\",\"encoding_format\":1}", 400, "encoding_format", "base64"},
    {"/v1/embeddings", "{\"input\":\"x\",\"model\":\"y\"}", 404, "model", "does not exist"},
    {"/v1/embeddings", "{\"prompt\":\"x\"}", 400, "input", "required"},
    {"/v1/rerank", "{}", 400, "query", "required"},
    {"/v2/rerank", "{\"query\":\"x\"}", 400, "documents", "required"},
    {"/rerank", "{\"query\":\"x\",\"documents\":[1]}", 400, "documents", "with the string 'text'"},
    {"/v1/score", "{}", 400, "text_1", "required"},
    {"/score", "{\"text_1\":[],\"text_2\":\"x\"}", 400, "text_1", "is empty"},
    {"/score", NULL, 405, NULL, "takes POST, not GET"},
    {"/v1/audio/speech", "{}", 404, NULL, "is not implemented by this server"},
    {"/v1/audios", "{}", 404, NULL, "nothing at"},
    {"/v1/completions/", "{}", 400, "prompt", ""}, /* the slash is ignored */
    {"/v1/chat/completions//", "{}", 400, "messages", ""},
    {"/v1/models", "{}", 405, NULL, "takes GET, not POST"},
    {"/v1/completions/render", NULL, 405, NULL, "takes POST, not GET"},
    {"/v1/completions/render", "{}", 400, "prompt", "required"},
    {"/v1/completions/rende", "{}", 404, NULL, "there is nothing at"},
    {"/v1/chat/completions/render", "{\"prompt\":\"x\"}", 400, "messages", "required"},
    {"/server_info", "{}", 405, NULL, "takes GET, not POST"},
    {"/v1/loads?include=x", NULL, 400, "include", "the section 'x'"},
    {"/v1/models/", "{}", 405, NULL, "takes GET, not POST"},
    {"/v1/models/nope", NULL, 404, "model", "'nope' does not exist"},
    {"/v1/models/m%", NULL, 404, "model", "does not exist"},
    {"/v1/models/m%0", NULL, 404, "model", "does not exist"},
    {"/health", "{}", 405, NULL, "takes GET"},
    {C, NULL, 405, NULL, "takes POST, not GET"},
    {C "/", NULL, 405, NULL, "takes POST, not GET"},
    /* bytes that are no JSON at all */
    {C, "\xEF\xBB\xBF{}", 400, NULL, "byte order mark"},
    {C, "\xFF\xFE{", 400, NULL, "UTF-16"},
    {C, "\xFE\xFF{", 400, NULL, "UTF-16"},
    {C, "\x1F\x8B\x08", 400, NULL, "compressed by gzip"},
};

static const char *const accepted[][2] = {
    {C, "{\"prompt\":\"x\"}"},
    {C, "{\"prompt\":[\"x\",\"y\"],\"n\":4}"},
    {C, "{\"prompt\":[0,267]}"},
    {C, "{\"prompt\":[[0],[1,2]]}"},
    {C, "{\"prompt\":\"a\\u0000b\"}"},
    {C, "{\"prompt\":\"x\",\"model\":\"mm\",\"max_tokens\":63}"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":null,\"stop\":null,\"n\":null,\"stream\":null,"
        "\"stream_options\":null,\"seed\":null,\"model\":null,\"temperature\":null}"},
    {C, "{\"prompt\":\"x\",\"temperature\":0,\"top_p\":1,\"top_k\":-1,\"min_p\":0}"},
    {C, "{\"prompt\":\"x\",\"temperature\":100,\"top_p\":1e-9,\"top_k\":0,\"min_p\":1}"},
    {C, "{\"prompt\":\"x\",\"seed\":-9223372036854775808}"},
    {C, "{\"prompt\":\"x\",\"seed\":9223372036854775807,\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}"},
    {C, "{\"prompt\":\"x\",\"max_tokens\":5.0,\"top_k\":40.0,\"seed\":-1.0,\"n\":2.0,\"best_of\":2,"
        "\"logprobs\":3.0,\"min_tokens\":0.0,\"priority\":1e2}"},
    {C, "{\"prompt\":\"x\",\"stream_options\":{}}"},
    /* what vllm-router and sglang-router add */
    {C,
     "{\"prompt\":\"x\",\"no_stop_trim\":false,\"ignore_eos\":false,\"skip_special_tokens\":true,"
     "\"return_hidden_states\":false,\"echo\":false,\"stream\":false}"},
    {H, "{" MSG ",\"no_stop_trim\":false,\"return_hidden_states\":false,\"logprobs\":false,"
        "\"continue_final_message\":false,\"separate_reasoning\":true,\"stream_reasoning\":true,"
        "\"include_reasoning\":true,\"ignore_eos\":false,\"skip_special_tokens\":true}"},
    /* what guidellm asks for */
    {C, "{\"prompt\":\"x\",\"max_tokens\":4,\"stop\":null,\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],"
        "\"max_completion_tokens\":4,\"stop\":null,\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}"},
    {H, "{\"messages\":[{\"role\":\"assistant\",\"content\":null},{\"role\":\"assistant\"},"
        "{\"role\":\"user\",\"content\":\"x\",\"name\":null}]}"},
    {C, "{\"prompt\":\"x\",\"stop\":[],\"user\":\"me\",\"request_id\":\"r\"}"},
    {C, "{\"prompt\":\"x\",\"logprobs\":null,\"echo\":false,\"best_of\":1,\"suffix\":\"\","
        "\"presence_penalty\":0,\"frequency_penalty\":0.0,\"logit_bias\":{},"
        "\"response_format\":{\"type\":\"text\"},\"repetition_penalty\":1.0,\"min_tokens\":0,"
        "\"stop_token_ids\":[],\"skip_special_tokens\":true,\"use_beam_search\":false,"
        "\"truncate_prompt_tokens\":-1,\"guided_json\":null}"},
    {C, "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":null,"
        "\"include_obfuscation\":false}}"},
    {C, "{\"prompt\":\"x\",\"logprobs\":20,\"echo\":true,\"max_tokens\":0}"},
    {C, "{\"prompt\":\"x\",\"logprobs\":0,\"prompt_logprobs\":0,\"return_token_ids\":true,"
        "\"return_tokens_as_token_ids\":true,\"timeout\":86400}"},
    {C, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":-100,\"0\":100,\"267\":0.5}}"},
    {C, "{\"prompt\":\"x\",\"presence_penalty\":-2,\"frequency_penalty\":2,"
        "\"repetition_penalty\":0.01,\"min_tokens\":3}"},
    {C, "{\"prompt\":\"x\",\"stop_token_ids\":[5],\"allowed_token_ids\":[1,2],"
        "\"bad_words\":[\"a\",\" b\"],\"include_stop_str_in_output\":true}"},
    {H, "{" MSG ",\"logprobs\":true,\"top_logprobs\":20,\"prompt_logprobs\":3}"},
    {H, "{" MSG ",\"logprobs\":true,\"stream\":true,\"return_token_ids\":true}"},
    {H, "{" MSG "}"},
    {H, "{" MSG ",\"add_generation_prompt\":false}"},
    {H, "{" MSG ",\"add_generation_prompt\":false,\"continue_final_message\":true}"},
    {"/apply-template", "{" MSG ",\"temperature\":1}"},
    {H, "{" MSG ",\"logprobs\":false,\"top_logprobs\":0,\"tools\":[],\"tool_choice\":\"none\","
        "\"modalities\":[\"text\"],\"parallel_tool_calls\":true,\"metadata\":{\"a\":\"b\"},"
        "\"store\":false,\"service_tier\":\"auto\",\"user\":\"u\",\"reasoning_effort\":\"none\","
        "\"chat_template_kwargs\":{},\"response_format\":{\"type\":\"text\"}}"},
    {H, "{\"messages\":[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"developer\","
        "\"content\":[]},{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":null,"
        "\"tool_calls\":[]}]}"},
    {C, "{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}"},
    {C, "{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
        "\"n\",\"description\":\"d\",\"strict\":true,\"schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}}}}"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_object\"}}"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
        "\"description\":\"d\",\"strict\":true,\"schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}}}}"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}}}"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"structural_tag\",\"format\":{\"type\":\"const_"
        "string\",\"value\":\"a\"}}}"},
    {H, "{" MSG ",\"response_format\":{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<a>"
        "\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\"]}},"
        "\"required\":[\"a\"]},\"end\":\"</a>\"}],\"triggers\":[\"<a\"]}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":null}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{\"type\":\"object\",\"properties\":{"
        "\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]},\"regex\":null,\"choice\":null,"
        "\"whitespace_pattern\":null,\"disable_fallback\":true,\"disable_any_whitespace\":false,"
        "\"disable_additional_properties\":true}}"},
    {C,
     "{\"prompt\":\"x\",\"structured_outputs\":{\"json\":\"{\\\"type\\\":\\\"object\\\","
     "\\\"properties\\\":{\\\"a\\\":{\\\"enum\\\":[\\\"x\\\"]}},\\\"required\\\":[\\\"a\\\"]}\"}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"json_object\":true}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"regex\":\"a{2}\"}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"grammar\":\"root ::= [a-c]\"}}"},
    {C, "{\"prompt\":\"x\",\"structured_outputs\":{\"structural_tag\":\"{\\\"type\\\":\\\"const_"
        "string\\\",\\\"value\\\":\\\"a\\\"}\"}}"},
    {C, "{\"prompt\":\"x\",\"guided_json\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":["
        "\"x\"]}},\"required\":[\"a\"]}}"},
    {C, "{\"prompt\":\"x\",\"guided_regex\":\"a|b\"}"},
    {H, "{" MSG ",\"guided_choice\":[\"a\"]}"},
    {H, "{" MSG ",\"guided_grammar\":\"root ::= [a]\"}"},
    {C, "{\"prompt\":\"x\",\"regex\":\"a\",\"ebnf\":\"\",\"json_schema\":\"\",\"grammar\":\"\"}"},
    {C, "{\"prompt\":\"x\",\"ebnf\":\"root ::= [a]\"}"},
    {C, "{\"prompt\":\"x\",\"json_schema\":{}}"},
    {C, "{\"prompt\":\"x\",\"json_schema\":\"{\\\"type\\\":\\\"object\\\",\\\"properties\\\":{"
        "\\\"a\\\":{\\\"enum\\\":[\\\"x\\\"]}},\\\"required\\\":[\\\"a\\\"]}\",\"max_tokens\":0,"
        "\"echo\":true}"},
    {H, "{" MSG ",\"grammar\":\"root ::= [a]\",\"grammar_lazy\":false,\"grammar_triggers\":[]}"},
    {"/tokenize", "{\"prompt\":\"\",\"model\":\"mm\",\"add_special_tokens\":false}"},
    {"/detokenize", "{\"tokens\":[0,255,267]}"},
    {"/v1/completions/render", "{\"prompt\":[0,267]}"},
    {"/v1/chat/completions/render/", "{" MSG "}"},
    {"/tokenizer_info", NULL},
    {"/get_model_info", NULL},
    {"/server_info", NULL},
    {"/v1/loads?include=core,disagg,queues,memory", NULL},
    {"/v1/models", NULL},
    {"/v1/models/mm", NULL},
    {"/v1/models/%6d%6D", NULL},
    {"/health", NULL},
    {"/ready", NULL},
    {"/version", NULL},
};

static rose_api_opts options(void)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "mm";
    o.async_admit = false;
    o.max_n = 8;
    return o;
}

static int setup(void **state)
{
    static const uint32_t script[] = {FAKE_WORD0, FAKE_EOS};
    rose_api_opts o = options();
    fake_reset();
    fake_script = script;
    fake_script_len = 2;
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    *state = fake_start(&o);
    return *state == NULL;
}

static int teardown(void **state)
{
    fake_stop(*state);
    fake_arch.n_eos = 0;
    return fake.n_live != 0;
}

static rose_http_req *ask(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, body == NULL ? 0 : strlen(body));
    fake_arrival_ns = rose_now_ns(); /* a 'timeout' counts from it */
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    return r;
}

static void check_error(rose_http_req *r, const row *w)
{
    rose_json *v = rose_json_loads(fake_text(r), 0, NULL);
    rose_json *e = rose_json_get(v, "error");
    const char *message = rose_json_text(rose_json_get(e, "message"));
    const char *param = rose_json_text(rose_json_get(e, "param"));
    if (r->status != w->status || message == NULL || strstr(message, w->message) == NULL)
        fail_msg("%s %s: %d %s", w->path, w->body == NULL ? "" : w->body, r->status, fake_text(r));
    if ((param == NULL) != (w->param == NULL) || (param != NULL && strcmp(param, w->param) != 0))
        fail_msg("%s %s: param %s", w->path, w->body == NULL ? "" : w->body, fake_text(r));
    assert_non_null(rose_json_get(e, "type"));
    assert_non_null(rose_json_get(e, "code"));
    assert_int_equal(rose_json_size(e), 4);
    if (w->status == 405) assert_non_null(strstr(r->headers, "Allow: "));
    rose_json_decref(v);
}

static void refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        uint32_t before = fake.n_submitted;
        rose_http_req *r = ask(refused[i].path, refused[i].body);
        check_error(r, &refused[i]);
        assert_int_equal(fake.n_submitted, before); /* nothing reached the engine */
        fake_free(r);
    }
}

static void accepts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        rose_http_req *r = ask(accepted[i][0], accepted[i][1]);
        if (r->status != 200) fail_msg("%s: %s", accepted[i][1], fake_text(r));
        if (strstr(r->headers, "X-Ignored-Fields") != NULL)
            fail_msg("%s: %s", accepted[i][1], r->headers);
        fake_free(r);
    }
}

static void content_types(void **state)
{
    static const struct {
        const char *type;
        int status;
    } rows[] = {{"application/json", 200},
                {"Application/JSON; charset=utf-8", 200},
                {"application/json ; x", 200},
                {"", 415},
                {"text/plain", 415},
                {"application/jsonx", 415},
                {"application/x-www-form-urlencoded", 415}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_http_req *r = fake_request(C, "{\"prompt\":\"x\"}", 14);
        snprintf(r->content_type, sizeof r->content_type, "%s", rows[i].type);
        fake_arrive(r);
        fake_run(r);
        assert_int_equal(r->status, rows[i].status);
        fake_free(r);
    }
}

/* What reaches the engine: seeds by the documented rule, clamped and translated values. */
static rose_request_opts seen[16];
static uint32_t n_seen;

static uint32_t note(const rose_request *r, uint32_t i)
{
    (void)i;
    if (n_seen < 16) seen[n_seen++] = r->o;
    return FAKE_EOS;
}

/* The salt is borrowed for submit, so it is read there. */
static void order_and_salt(void **state)
{
    (void)state;
    fake.next = note;
    n_seen = 0;
    fake_free(ask(C, "{\"prompt\":\"a\",\"priority\":-2147483648,\"cache_salt\":\"t\\u00e9\"}"));
    assert_int_equal(fake.salt_len, 3);
    assert_memory_equal(fake.salt, "t\xC3\xA9", 3);
    fake_free(ask(H, "{" MSG ",\"priority\":7}"));
    assert_int_equal(fake.salt_len, 0);
    fake_free(ask(C, "{\"prompt\":\"a\",\"priority\":null,\"cache_salt\":null}"));
    static const char line[] = "{\"prompt\":\"a\",\"priority\":-5}";
    rose_http_req *r = fake_request(C, line, sizeof line - 1);
    r->own = true; /* a line of a batch: other requests come before it */
    fake_arrive(r);
    fake_run(r);
    fake_free(r);
    assert_int_equal(n_seen, 4);
    assert_int_equal(seen[3].priority, 1000);
    assert_int_equal(seen[0].priority, INT32_MIN);
    assert_int_equal(seen[1].priority, 7);
    assert_int_equal(seen[2].priority, 0);
    assert_int_equal(fake.salt_len, 0);
}

static void sampling_fields(void **state)
{
    (void)state;
    fake.next = note;
    n_seen = 0;
    fake_free(ask(C, "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"seed\":-7,\"temperature\":0.5,\"top_p\":"
                     "0.25,\"top_k\":9,\"min_p\":0.125,\"max_tokens\":11,\"ignore_eos\":false}"));
    assert_int_equal(n_seen, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(seen[i].sampling.temperature == 0.5f && seen[i].sampling.top_p == 0.25f);
        assert_true(seen[i].sampling.min_p == 0.125f && seen[i].sampling.top_k == 9);
        assert_int_equal(seen[i].max_tokens, 11);
        assert_true(seen[i].sampling.seed == seen[i % 3].sampling.seed);
    }
    /* SplitMix64 of seed -7: outputs 1 and 2, computed independently in Python */
    assert_true(seen[0].sampling.seed == (uint64_t)-7);
    assert_true(seen[1].sampling.seed == 0x6C1E186443822970u);
    assert_true(seen[2].sampling.seed == 0x7A87F4DABCF192AAu);
    n_seen = 0;
    fake_free(ask(C, "{\"prompt\":\"a\",\"top_k\":-1,\"temperature\":1e-6}"));
    fake_free(ask(H, "{" MSG "}"));
    fake_free(ask(C, "{\"prompt\":\"a\"}"));
    assert_int_equal(n_seen, 3);
    assert_int_equal(seen[0].sampling.top_k, 0);
    assert_true(seen[0].sampling.temperature == 0.0f && seen[2].sampling.temperature == 1.0f);
    assert_int_equal(seen[0].max_tokens, 16);
    assert_int_equal(seen[1].max_tokens, 64); /* the engine clamps it */
    assert_true(seen[0].sampling.seed != seen[2].sampling.seed);
}

/* With the fake engine, which follows the guide: the text of each kind. */
static void structures(void **state)
{
    static const struct {
        const char *path, *fields, *text;
    } rows[] = {
        {C, "\"response_format\":{\"type\":\"json_object\"}", "{\"\":\"\"}"},
        {H,
         "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{"
         "\"properties\":{\"b\":{\"const\":0.1},\"a\":{\"const\":2}},\"type\":\"object\","
         "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}}}",
         "{\"b\":0.1,\"a\":2}"},
        {C,
         "\"guided_json\":{\"properties\":{\"b\":{\"const\":1},\"a\":{\"const\":2}},\"type\":"
         "\"object\",\"required\":[\"a\",\"b\"],\"additionalProperties\":false}",
         "{\"a\":2,\"b\":1}"}, /* any order */
        {C, "\"structured_outputs\":{\"json\":\"{\\\"const\\\":[1.5,null]}\"}", "[1.5,null]"},
        {H, "\"structured_outputs\":{\"regex\":\"(ab|cd){2}\"}", "abab"},
        {C, "\"structured_outputs\":{\"choice\":[\"\\u20ac1\",\"\\u20ac2\"]}",
         "\xE2\x82\xAC"
         "1"},
        {H, "\"guided_choice\":[\"Hello world\"]", "Hello world"},
        {C, "\"ebnf\":\"root ::= \\\"a\\\" [b-z] \\\"!\\\"\"", "ab!"},
        {C, "\"grammar\":\"root ::= x x\\nx ::= \\\"yes\\\"\"", "yesyes"},
        {H,
         "\"response_format\":{\"type\":\"structural_tag\",\"format\":{\"type\":\"tag\","
         "\"begin\":\"<a>\",\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"const\":\"b\"}"
         "},"
         "\"end\":\"</a>\"}}",
         "<a>\"b\"</a>"},
        {C, "\"regex\":\"a{99}\"", "aaaaaaaaaaaaaaaa"}, /* max_tokens is 16 */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool chat = strcmp(rows[i].path, H) == 0;
        char body[1024];
        snprintf(body, sizeof body, "{%s,%s}", chat ? MSG : "\"prompt\":\"x\"", rows[i].fields);
        rose_http_req *r = ask(rows[i].path, body);
        rose_json *v = rose_json_loads(fake_text(r), 0, NULL);
        rose_json *choice = rose_json_at(rose_json_get(v, "choices"), 0);
        const char *text =
            rose_json_text(chat ? rose_json_get(rose_json_get(choice, "message"), "content")
                                : rose_json_get(choice, "text"));
        if (text == NULL || strcmp(text, rows[i].text) != 0) fail_msg("%s: %s", body, fake_text(r));
        assert_string_equal(rose_json_text(rose_json_get(choice, "finish_reason")),
                            strlen(text) == 16 ? "length" : "stop");
        rose_json_decref(v);
        fake_free(r);
    }
}

/* A model without an end-of-sequence token cannot end a text; without structure it still serves. */
static void no_end(void **state)
{
    static const row w = {C, "{\"prompt\":\"x\",\"regex\":\"a\"}", 400, "regex",
                          "needs a model with an end-of-sequence token"};
    (void)state;
    fake_arch.n_eos = 0;
    rose_http_req *r = ask(w.path, w.body);
    check_error(r, &w);
    fake_free(r);
    r = ask(C, "{\"prompt\":\"x\",\"regex\":\"\"}");
    assert_int_equal(r->status, 200);
    fake_free(r);
}

/* The limits of a body do not reach into JSON that is a string. */
static void long_texts(void **state)
{
    static const char *const fields[][2] = {
        {"\"guided_json\":\"", "\""},
        {"\"json_schema\":\"", "\""},
        {"\"structured_outputs\":{\"json\":\"", "\"}"},
        {"\"structured_outputs\":{\"structural_tag\":\"", "\"}"}};
    const size_t n = 3 * (400 << 10);
    char *body = malloc(n + 200);
    (void)state;
    assert_non_null(body);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        size_t at = (size_t)sprintf(body, "{\"prompt\":\"x\",%s[", fields[i][0]);
        for (size_t k = 0; k < n; k += 3, at += 3)
            memcpy(body + at, "[],", 3);
        sprintf(body + at, "0]%s}", fields[i][1]);
        rose_http_req *r = ask(C, body);
        assert_int_equal(r->status, 400);
        assert_non_null(strstr(fake_text(r), "the limit is 1048576"));
        fake_free(r);
    }
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(accepts, setup, teardown),
        cmocka_unit_test_setup_teardown(content_types, setup, teardown),
        cmocka_unit_test_setup_teardown(order_and_salt, setup, teardown),
        cmocka_unit_test_setup_teardown(sampling_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(structures, setup, teardown),
        cmocka_unit_test_setup_teardown(no_end, setup, teardown),
        cmocka_unit_test_setup_teardown(long_texts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
