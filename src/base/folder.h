/* base/folder.h - checks what a person gave as MODEL: a Hugging Face folder, or something else
 * that deserves a hint. Any thread. */
#ifndef ROSE_BASE_FOLDER_H
#define ROSE_BASE_FOLDER_H

#include "base/status.h"

/* ROSE_OK if path is a folder. Otherwise the message says what path is and what to give instead.
 * It knows GGUF files, weight files, symbolic links without a target, and names of the Hugging
 * Face hub. Errors: NOTFOUND, UNSUPPORTED (GGUF), FORMAT (another file), IO. */
rose_status rose_folder_check(const char *path, rose_err *err);

/* The message for a folder that has no config.json: what the folder holds instead, or how to get a
 * model. Returns NOTFOUND, or UNSUPPORTED for a folder of GGUF files. */
rose_status rose_folder_no_config(const char *path, rose_err *err);

#endif
