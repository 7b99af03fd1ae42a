/* base/dl.c - see dl.h. */
#include "base/dl.h"

#include <dlfcn.h>
#include <string.h>

static rose_status find_functions(void *library, const char *path, const rose_dl_function *f,
                                  size_t n, rose_err *err)
{
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, f[i].name);
        if (found == NULL)
            return rose_fail(err, ROSE_E_UNSUPPORTED, "%s lacks the function %s", path, f[i].name);
        memcpy(f[i].to, &found,
               sizeof found); /* C has no cast from an object pointer to a function pointer */
    }
    return ROSE_OK;
}

rose_status rose_dl_open(void **out, const char *const *paths, size_t n_paths,
                         const rose_dl_function *functions, size_t n_functions, rose_err *err)
{
    void *library = NULL;
    size_t i = 0;

    *out = NULL;
    while (i < n_paths && (library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL)) == NULL)
        i++;
    if (library == NULL) return rose_fail(err, ROSE_E_NOTFOUND, "%s", dlerror());
    const rose_status st = find_functions(library, paths[i], functions, n_functions, err);
    if (st == ROSE_OK)
        *out = library;
    else
        dlclose(library);
    return st;
}

void rose_dl_close(void *library)
{
    if (library != NULL) dlclose(library);
}
