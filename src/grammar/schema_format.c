/* grammar/schema_format.c - the formats of JSON Schema as regular expressions. The forms are those
 * that jsonschema-rs accepts, or a part of them that models write: RFC 3339 dates with the length
 * of each month and leap years, RFC 4291 addresses, RFC 3986 URIs. */
#include <string.h>

#include "grammar/schema_internal.h"

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  "(?:" OCTET "\\.){3}" OCTET
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"                                 \
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"                                  \
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|23:59:60(?:\\.[0-9]+)?[Zz])"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define UCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define NCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY                                                                                  \
    "(?:" UCHAR "*@)?(?:\\[" IPV6 "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*" \
    ")?"
#define QUERY "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR          \
    "*)*)?|" PCHAR "+(?:/" PCHAR "*)*)?" QUERY
#define RELATIVE                                                                                   \
    "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" NCHAR "+(?:/" PCHAR     \
    "*)*)?" QUERY
#define DIGITS "[0-9]+"

static const struct {
    const char *name, *regex; /* NULL: known, but not supported */
    uint32_t max;             /* characters; 0: any number */
    int since;                /* the first draft that has it; before, it demands nothing */
} formats[] = {
    {"date", DATE, 0, 0},
    {"time", TIME, 0, 0},
    {"date-time", DATE "[Tt]" TIME, 0, 0},
    {"email", "(?=[^@]{1,64}@)" ATEXT "+(?:\\." ATEXT "+)*@" LABEL "(?:\\." LABEL ")*", 254, 0},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}", 0,
     2019},
    {"ipv4", IPV4, 0, 0},
    {"ipv6", IPV6, 0, 0},
    {"hostname", "(?!(?:.*\\.)?..--)" LABEL "(?:\\." LABEL ")*", 253, 0},
    {"uri", URI, 0, 0},
    {"uri-reference", "(?:" URI "|" RELATIVE ")", 0, 6},
    {"json-pointer", "(?:/(?:[^~/]|~0|~1)*)*", 0, 6},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~0|~1)*)*)", 0, 7},
    {"duration",
     "P(?:" DIGITS "W|(?:" DIGITS "Y(?:" DIGITS "M(?:" DIGITS "D)?)?|" DIGITS "M(?:" DIGITS
     "D)?|" DIGITS "D)(?:T(?:" DIGITS "H(?:" DIGITS "M(?:" DIGITS "S)?)?|" DIGITS "M(?:" DIGITS
     "S)?|" DIGITS "S))?|T(?:" DIGITS "H(?:" DIGITS "M(?:" DIGITS "S)?)?|" DIGITS "M(?:" DIGITS
     "S)?|" DIGITS "S))",
     0, 2019},
    {"idn-email", NULL, 0, 0},
    {"idn-hostname", NULL, 0, 7},
    {"iri", NULL, 0, 7},
    {"iri-reference", NULL, 0, 7},
    {"uri-template", NULL, 0, 6},
    {"regex", NULL, 0, 0},
};

const char *rose_gr_format(const char *name, int draft, bool *known, uint32_t *max)
{
    *known = true;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(name, formats[i].name) != 0 || draft < formats[i].since) continue;
        *max = formats[i].max > 0 ? formats[i].max : GR_INF;
        return formats[i].regex;
    }
    *known = false;
    return NULL;
}
