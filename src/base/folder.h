/* base/folder.h - what a person gives as MODEL: a Hugging Face folder, a GGUF file, or something
 * else that deserves a hint. Any thread. */
#ifndef ROSE_BASE_FOLDER_H
#define ROSE_BASE_FOLDER_H

#include "base/status.h"

/* *out: the GGUF file that path stands for, owned by the caller: path itself, or the only GGUF
 * model in a folder without safetensors. A split model is its first part. NULL if path has nothing
 * to do with GGUF. Files that begin with "mmproj" are parts for images and do not count. Errors:
 * INVAL (several GGUF models in the folder), NOMEM. */
rose_status rose_folder_find_gguf(char **out, const char *path, rose_err *err);

/* ROSE_OK if path is a folder. Otherwise the message says what path is and what to give instead: a
 * weight file, a symbolic link without a target, a name of the Hugging Face hub.
 * Errors: NOTFOUND, FORMAT (a file), IO. */
rose_status rose_folder_check(const char *path, rose_err *err);

/* The message for a folder that has no config.json: what the folder holds instead, or how to get a
 * model. Returns NOTFOUND. */
rose_status rose_folder_no_config(const char *path, rose_err *err);

#endif
