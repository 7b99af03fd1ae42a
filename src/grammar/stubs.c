#include "grammar/grammar_internal.h"
gr_node rose_gr_ebnf(gr_build *b, const char *text, size_t n){(void)text;(void)n;rose_gr_fail(b,ROSE_E_UNSUPPORTED,"later");}
gr_node rose_gr_tag(gr_build *b, json_t *t){(void)t;rose_gr_fail(b,ROSE_E_UNSUPPORTED,"later");}
