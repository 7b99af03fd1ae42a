/* model/dummy.c - load format "dummy": a model whose weights have no file. config.json gives the
 * shapes. The tensors lie in an anonymous mapping, which takes memory only where a backend fills
 * it; a GPU draws its weights itself. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/random_internal.h"
#include "model/weights.h"

enum { BLOCK = 1 << 12, ALIGN = 64 /* bytes between the beginnings of tensors */ };

/* Places the tensors one after the other; returns the bytes of all. */
static uint64_t place_tensors(rose_weight_file *f, const rose_random_tensor *list,
                              rose_format dtype)
{
    uint64_t at = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const rose_random_tensor *from = &list[i];
        const uint64_t bytes = from->n * rose_format_size(dtype);
        f->tensors[i] = (rose_st_tensor){.name = from->name,
                                         .dtype_name = rose_formats[dtype].name,
                                         .usable = true,
                                         .dtype = dtype,
                                         .n_dims = from->n_dims,
                                         .shape = {from->shape[0], from->shape[1], from->shape[2]},
                                         .begin = at,
                                         .end = at + bytes};
        at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at;
}

static rose_status open_weights(rose_weights *w, const char *dir, const rose_family *family,
                                const rose_arch *a, rose_format dtype, rose_err *err)
{
    rose_weight_file *f = w->files = calloc(1, sizeof *w->files);
    if (f == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir);
    w->n_files = 1;
    rose_status st = rose_random_list(&w->random, &f->n_tensors, family, a, true, err);
    if (st != ROSE_OK) return st;
    f->st.tensors = f->tensors = calloc(f->n_tensors, sizeof *f->tensors);
    if (f->tensors == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir);
    rose_path_label(f->st.label, dir);
    f->label = f->st.label;
    f->st.n_tensors = f->n_tensors;
    f->size = f->st.size = place_tensors(f, w->random, dtype);
    void *p = mmap(NULL, f->size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return rose_fail(err, ROSE_E_NOMEM, "%s: no address space for %llu bytes of weights", dir,
                         (unsigned long long)f->size);
    f->st.map = (rose_map){p, f->size};
    for (size_t i = 0; i < f->n_tensors; i++)
        f->tensors[i].data = f->st.map.data + f->tensors[i].begin;
    w->file_bytes = f->size;
    return rose_weights_index(w, dir, err);
}

rose_status rose_weights_open_dummy(rose_weights **out, const char *dir, const rose_family *family,
                                    const rose_arch *a, rose_format dtype, rose_err *err)
{
    rose_weights *w = calloc(1, sizeof *w);
    *out = NULL;
    rose_status st = w == NULL ? rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir)
                               : open_weights(w, dir, family, a, dtype, err);
    if (st != ROSE_OK) {
        rose_weights_close(w);
        return st;
    }
    *out = w;
    return ROSE_OK;
}

rose_status rose_model_open_as(rose_model **out, const char *path, const char *format,
                               rose_err *err)
{
    if (format == NULL || strcmp(format, "auto") == 0) return rose_model_open(out, path, err);
    if (strcmp(format, "dummy") == 0) return rose_model_open_dummy(out, path, err);
    *out = NULL;
    return rose_fail(err, ROSE_E_INVAL, "load format '%s': expected auto or dummy", format);
}

/* ---- values ---- */

static rose_random_values values_of(const rose_model *m, size_t index)
{
    rose_random_values v = {.stream = (uint32_t)index};
    rose_random_scale(&v, m->weights->random[index].kind, &m->arch, 0.02f);
    return v;
}

rose_random_values rose_dummy_values(const rose_model *m, const rose_tensor *t)
{
    const rose_weight_file *f = &m->weights->files[0];
    const uint64_t at = (uint64_t)((const uint8_t *)t->data - f->st.map.data);
    size_t lo = 0, hi = f->n_tensors;
    while (hi - lo > 1) { /* tensors[lo].begin <= at < tensors[hi].begin */
        const size_t mid = lo + (hi - lo) / 2;
        if (f->tensors[mid].begin <= at)
            lo = mid;
        else
            hi = mid;
    }
    rose_random_values v = values_of(m, lo);
    v.first = (at - f->tensors[lo].begin) / rose_format_size(t->dtype);
    return v;
}

void rose_dummy_fill(const rose_model *m, uint32_t part, uint32_t n_parts)
{
    const rose_weight_file *f = &m->weights->files[0];
    float block[BLOCK];
    for (size_t i = 0; i < f->n_tensors; i++) {
        const rose_st_tensor *t = &f->tensors[i];
        const size_t size = rose_format_size(t->dtype);
        const uint64_t n_blocks = (m->weights->random[i].n + BLOCK - 1) / BLOCK;
        const uint64_t end = n_blocks * (part + 1) / n_parts * BLOCK, all = m->weights->random[i].n;
        rose_random_values v = values_of(m, i);
        for (v.first = n_blocks * part / n_parts * BLOCK; v.first < end && v.first < all;
             v.first += BLOCK) {
            const size_t n = all - v.first < BLOCK ? (size_t)(all - v.first) : BLOCK;
            rose_random_draw(block, &v, n);
            rose_random_store((uint8_t *)(uintptr_t)t->data + v.first * size, t->dtype, block, n);
        }
    }
}
