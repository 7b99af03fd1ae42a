/* base/program.h - a program of several commands. It runs the command that was named, lists the
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
    const char *notes; /* text after the list of commands; every line ends in a newline */
    const rose_program_command *commands;
    size_t n_commands;
    /* What other programs call a command, and the command, for a hint; ends with {NULL}; or NULL.
     */
    const char *const (*elsewhere)[2];
    const char
        *apart; /* the command that runs another program, which has its own documents; or NULL */
} rose_program;

/* Runs the command that argv[1] names and returns the exit code; without a command, or with an
 * unknown one, that is 2. It handles --help, --version, --man (the man page on stdout) and
 * `completion bash|zsh` (a script on stdout) itself. */
int rose_program_run(const rose_program *p, int argc, char **argv);

#endif
