/* cli/screen.c - text of the model on a terminal. A terminal breaks a line in the middle of a word.
 * Text arrives in pieces, so it is printed at once, and a word that reaches the right edge is
 * erased and begins the next line. The last column stays free: a terminal whose last column is full
 * is in a state of its own, in which the cursor moves one column less. */
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "cli/cli.h"

enum { MIN_WIDTH = 20, TAB = 8 };

void rose_screen_begin(rose_screen *s)
{
    struct winsize size;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= MIN_WIDTH;
    s->width = known ? size.ws_col - 1u : 0;
    s->col = s->word_cols = 0;
    s->word.len = 0;
}

void rose_screen_free(rose_screen *s)
{
    rose_buf_free(&s->word);
}

static void end_word(rose_screen *s)
{
    s->word.len = 0;
    s->word_cols = 0;
}

static void begin_line(rose_screen *s)
{
    putchar('\n');
    s->col = 0;
}

/* The next character has no room in this line: the line ends before its word, unless the word fills
 * the line. */
static void move_word(rose_screen *s)
{
    const bool fills = s->word_cols == s->col;
    if (!fills && s->word_cols > 0) printf("\033[%uD\033[K", s->word_cols);
    begin_line(s);
    if (fills) {
        end_word(s);
    } else if (s->word.len > 0) {
        fwrite(s->word.data, 1, s->word.len, stdout);
        s->col = s->word_cols;
    }
}

static void put_space(rose_screen *s, char c)
{
    const uint32_t to = c == '\t' ? (s->col / TAB + 1) * TAB : s->col + 1;
    end_word(s);
    if (c == '\n' || (s->width > 0 && to > s->width)) {
        begin_line(s);
    } else {
        putchar(c);
        s->col = to;
    }
}

/* A line may end before and after a wide character: Chinese and Japanese have no spaces. */
static void put_char(rose_screen *s, const char *bytes, size_t n, uint32_t cols)
{
    if (cols > 1) end_word(s);
    if (s->width > 0 && s->col + cols > s->width) move_word(s);
    fwrite(bytes, 1, n, stdout);
    s->col += cols;
    s->word_cols += cols;
    if (cols > 1 || rose_buf_add(&s->word, bytes, n) != ROSE_OK) end_word(s);
}

void rose_screen_put(rose_screen *s, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    while (p < end) {
        uint32_t cp = 0;
        const unsigned len = rose_utf8_decode(p, end, &cp);
        const bool control = len > 0 && (cp < 0x20 || (cp >= 0x7F && cp < 0xA0));
        if (cp == ' ' || cp == '\n' || cp == '\t')
            put_space(s, (char)cp);
        else if (len == 0 || control)
            put_char(s, "?", 1, 1);
        else
            put_char(s, (const char *)p, len, (uint32_t)utf8proc_charwidth((int32_t)cp));
        p += len > 0 ? len : 1;
    }
}
