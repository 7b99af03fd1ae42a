/* base/program.h - a program of several commands: it finds the command that was named, lists the
 * commands, and writes the man page and the completion scripts of all of them. */
#ifndef ROSE_BASE_PROGRAM_H
#define ROSE_BASE_PROGRAM_H

#include <stddef.h>

typedef struct rose_program_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
    const char *about;                 /* one line */
} rose_program_command;

typedef struct rose_program {
    const char *name;  /* "roseinfer" */
    const char *about; /* "an LLM inference engine and server" */
    const char *notes; /* what the list of commands closes with; lines, the last one ended too */
    const rose_program_command *commands;
    size_t n_commands;
    const char *apart; /* the command that leads to a program with documents of its own, or NULL */
} rose_program;

/* Run the command that argv[1] names; returns the exit code. Without a command, or with an unknown
 * one, it is 2. Handles by itself: --help, --version, --man (the man page on stdout) and
 * `completion bash|zsh` (a script on stdout). */
int rose_program_run(const rose_program *p, int argc, char **argv);

#endif
