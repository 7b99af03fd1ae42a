/* cli/cli.h - the commands of the program, one main function each. argv[0] is the command's
 * name. The result is the exit code: 0, 1 for a failure (one line on stderr), 2 for a usage
 * error. */
#ifndef ROSE_CLI_CLI_H
#define ROSE_CLI_CLI_H

#include "base/buf.h"

int rose_cmd_serve(int argc, char **argv);
int rose_cmd_chat(int argc, char **argv);
int rose_cmd_generate(int argc, char **argv);
int rose_cmd_tokenize(int argc, char **argv);
int rose_cmd_detokenize(int argc, char **argv);
int rose_cmd_inspect(int argc, char **argv);
int rose_cmd_random_model(int argc, char **argv);

/* Reads all of standard input, up to 1 GiB. If it is a terminal, a line on stderr says how to
 * end the input, and the last newline is left out. */
rose_status rose_read_stdin(rose_buf *out, rose_err *err);

#endif
