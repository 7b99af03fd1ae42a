/* tests/load/load.h - the load tests of build/tests/load/load. Each function is the main of one:
 * argv[0] is its name; the result is the exit code (0, 1 for a failed run, 2 for a usage error). */
#ifndef ROSE_LOAD_LOAD_H
#define ROSE_LOAD_LOAD_H

int rose_load_abuse(int argc, char **argv);
int rose_load_client(int argc, char **argv);
int rose_load_engine(int argc, char **argv);
int rose_load_http(int argc, char **argv);
int rose_load_scheduler(int argc, char **argv);
int rose_load_soak(int argc, char **argv);

#endif
