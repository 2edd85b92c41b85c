/*
 * A whole storage plugin in C: skills and blobs of many tenants, kept in memory,
 * in one file that needs libc and Linux.  It is the second thing to read, after
 * echo.c, and the store to copy from.
 *
 *     cc -std=c99 -O2 -fPIC -shared -pthread -I ../abi/include -o store.so store.c
 *     skillgate plugin inspect store.so
 *
 * What it does not do is be durable: it forgets everything when its instance
 * ends.  Everything else that the header asks of a store is here.
 *
 * From top to bottom: memory, texts, SHA-256, versions, the ends of an op,
 * skills, tar, blobs, the instance, the entry.
 */
#define _GNU_SOURCE /* memfd_create, getrandom, seals */
#include "skillgate_plugin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define PLUGIN_ID "org.skillgate.example-store"

/* Limits; a build may set its own with -D. */
#ifndef STORE_BYTES_MAX /* of everything that is kept, and of what is being written */
#define STORE_BYTES_MAX ((uint64_t)1 << 30)
#endif
#ifndef HANDLES_MAX /* writers, and readers, that are open at once */
#define HANDLES_MAX 1024u
#endif
#ifndef FILE_BYTES_MAX /* of one file of a skill */
#define FILE_BYTES_MAX ((uint64_t)16 << 20)
#endif
#ifndef SKILL_BYTES_MAX /* of all files of a skill */
#define SKILL_BYTES_MAX ((uint64_t)64 << 20)
#endif
#define PAGE_MAX 1000u                         /* skills of one page             */
#define PATH_BYTES_MAX 512u                    /* of the path of a file          */
#define VERSION_BYTES_MAX 128u
#define BUCKETS 1024u                          /* of the table of blobs          */

#define ID_BYTES 31u                           /* "blob:" and 26 letters         */
#define HEX_BYTES 64u                          /* a SHA-256 in hex               */

#define OUT_OF_MEMORY "out of memory"

struct skill;
struct blob;
struct handle;

/* An instance: forgets everything when it ends.
 *
 * Locks: `lock` guards the lists and counters, `budget` only the bytes.  A skill
 * version never changes and goes with the instance, so it may be read without a
 * lock.  A blob is counted by those who use it.  Nothing is locked while the
 * host is called. */
struct store {
    skg_storage table;
    const skg_host *host;

    pthread_mutex_t budget;
    uint64_t bytes;            /* taken and not given back                       */

    pthread_mutex_t lock;
    pthread_cond_t idle;       /* in_flight has become 0                         */
    uint32_t in_flight;
    int draining;
    struct skill **skills;     /* in the order of skg_skill_key, tenant first    */
    uint64_t skills_len, skills_cap;
    struct blob *blobs[BUCKETS];
    struct handle *writers, *readers;
    uint64_t next_handle;
};

/* ------------------------------------------------------------------- memory */

/* What is kept is counted, so that the store is full before the machine is, and
 * a full one can still be read.  The count stands before the memory that is
 * given out. */
union head { uint64_t bytes; char align[16]; };

static int charge(struct store *s, uint64_t more, uint64_t less) {
    int fits;
    pthread_mutex_lock(&s->budget);
    fits = more <= less || more - less <= STORE_BYTES_MAX - s->bytes;
    if (fits) s->bytes = s->bytes - less + more;
    pthread_mutex_unlock(&s->budget);
    return fits;
}

/* Memory of `bytes` (p NULL), or p with another size; NULL: there is no room,
 * and p stays as it is. */
static void *take(struct store *s, void *p, uint64_t bytes) {
    union head *old = p == NULL ? NULL : (union head *)p - 1, *new;
    uint64_t before = old == NULL ? 0 : old->bytes;
    if (bytes > STORE_BYTES_MAX || !charge(s, bytes, before)) return NULL;
    new = realloc(old, sizeof *new + bytes);
    if (new == NULL) {
        charge(s, before, bytes);
        return NULL;
    }
    new->bytes = bytes;
    return new + 1;
}

static void give(struct store *s, void *p) {
    union head *head = p;
    if (p == NULL) return;
    head--;
    charge(s, 0, head->bytes);
    free(head);
}

/* -------------------------------------------------------------------- texts */

static const skg_str NO_TEXT = { NULL, 0 };

/* memcmp and memcpy do not take NULL, an empty text may be. */
static int order_of_texts(skg_str a, skg_str b) {
    uint64_t n = a.len < b.len ? a.len : b.len;
    int order = n == 0 ? 0 : memcmp(a.ptr, b.ptr, n);
    if (order != 0) return order;
    return a.len == b.len ? 0 : a.len < b.len ? -1 : 1;
}

static int same(skg_str a, skg_str b) { return order_of_texts(a, b) == 0; }

/* `text` is `dir`, or begins with it and `separator`. */
static int within(skg_str text, skg_str dir, char separator) {
    if (text.len < dir.len || !same(skg_str_of(text.ptr, dir.len), dir)) return 0;
    return text.len == dir.len || text.ptr[dir.len] == separator;
}

/* Copies to *at and moves it on. */
static skg_str put_text(char **at, skg_str text) {
    skg_str copy = skg_str_of(*at, text.len);
    if (text.len != 0) memcpy(*at, text.ptr, text.len);
    *at += text.len;
    return copy;
}

/* The part of *rest before the first `separator`, which is taken away with it.
 * After the last part, rest->ptr is NULL. */
static skg_str next_part(skg_str *rest, char separator) {
    const char *end = rest->len == 0 ? NULL : memchr(rest->ptr, separator, rest->len);
    skg_str part = *rest;
    if (end == NULL) {
        *rest = NO_TEXT;
        return part;
    }
    part.len = (uint64_t)(end - rest->ptr);
    *rest = skg_str_of(end + 1, rest->len - part.len - 1);
    return part;
}

/* ------------------------------------------------------------------ SHA-256 */

struct sha256 { uint32_t state[8]; uint64_t bytes; uint8_t block[64]; };

static const uint32_t SHA256_K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2 };

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(struct sha256 *h, const uint8_t *p) {
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3)
             + w[i - 7] + (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(v, h->state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t = v[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25))
                   + ((e & v[5]) ^ (~e & v[6])) + SHA256_K[i] + w[i];
        uint32_t u = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22))
                   + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t;
        v[0] = t + u;
    }
    for (i = 0; i < 8; i++) h->state[i] += v[i];
}

static void sha256_begin(struct sha256 *h) {
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(h->state, start, sizeof start);
    h->bytes = 0;
}

static void sha256_add(struct sha256 *h, const void *data, uint64_t len) {
    const uint8_t *p = data;
    while (len != 0) {
        uint64_t used = h->bytes % 64, n = 64 - used < len ? 64 - used : len;
        memcpy(h->block + used, p, n);
        h->bytes += n;
        p += n;
        len -= n;
        if (h->bytes % 64 == 0) sha256_block(h, h->block);
    }
}

/* Writes HEX_BYTES; the digest cannot go on after that. */
static void sha256_hex(struct sha256 *h, char *hex) {
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = h->bytes * 8;
    uint8_t end[8];
    int i;
    for (i = 0; i < 8; i++) end[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(h, "\x80", 1);
    while (h->bytes % 64 != 56) sha256_add(h, "", 1);
    sha256_add(h, end, sizeof end);
    for (i = 0; i < 64; i++)
        hex[i] = digits[h->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
}

/* ----------------------------------------------------------------- versions */

/* SemVer 2.0.0; the parts point into the text. */
struct version { skg_str core[3]; skg_str pre; skg_str build; };

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int is_number(skg_str text) {
    uint64_t i;
    for (i = 0; i < text.len; i++)
        if (!is_digit(text.ptr[i])) return 0;
    return text.len != 0;
}

static int leads_with_zero(skg_str number) { return number.len > 1 && number.ptr[0] == '0'; }

/* Dot-separated identifiers; in a pre-release numbers have no leading zeros. */
static int are_identifiers(skg_str text, int pre_release) {
    do {
        skg_str part = next_part(&text, '.');
        uint64_t i;
        if (part.len == 0 || (pre_release && is_number(part) && leads_with_zero(part))) return 0;
        for (i = 0; i < part.len; i++) {
            char c = part.ptr[i];
            if (!is_digit(c) && c != '-' && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))
                return 0;
        }
    } while (text.ptr != NULL);
    return 1;
}

static int parse_version(skg_str text, struct version *v) {
    skg_str rest = text, numbers;
    int i;
    if (text.len == 0 || text.len > VERSION_BYTES_MAX) return 0;
    v->pre = NO_TEXT;
    rest = next_part(&text, '+');
    v->build = text;
    if (v->build.ptr != NULL && !are_identifiers(v->build, 0)) return 0;
    numbers = next_part(&rest, '-');
    v->pre = rest;
    if (v->pre.ptr != NULL && !are_identifiers(v->pre, 1)) return 0;
    for (i = 0; i < 3; i++) {
        v->core[i] = next_part(&numbers, '.');
        if (!is_number(v->core[i]) || leads_with_zero(v->core[i])) return 0;
    }
    return numbers.ptr == NULL;
}

static int order_of_numbers(skg_str a, skg_str b) {
    if (a.len != b.len) return a.len < b.len ? -1 : 1;
    return order_of_texts(a, b);
}

static int order_of_pre_releases(skg_str a, skg_str b) {
    /* None is above every one. */
    if (a.ptr == NULL || b.ptr == NULL) return (b.ptr != NULL) - (a.ptr != NULL);
    while (a.ptr != NULL && b.ptr != NULL) {
        skg_str x = next_part(&a, '.'), y = next_part(&b, '.');
        int m = is_number(x), n = is_number(y);
        int order = m != n ? n - m : m ? order_of_numbers(x, y) : order_of_texts(x, y);
        if (order != 0) return order;
    }
    return (a.ptr != NULL) - (b.ptr != NULL);
}

/* By precedence; of two that are equal there, by the bytes of the build. */
static int order_of_versions(const struct version *a, const struct version *b) {
    int i, order = 0;
    for (i = 0; i < 3 && order == 0; i++) order = order_of_numbers(a->core[i], b->core[i]);
    if (order == 0) order = order_of_pre_releases(a->pre, b->pre);
    return order != 0 ? order : order_of_texts(a->build, b->build);
}

/* Is a rather "latest" than b? */
static int is_later(const struct version *a, const struct version *b) {
    if ((a->pre.ptr == NULL) != (b->pre.ptr == NULL)) return a->pre.ptr == NULL;
    return order_of_versions(a, b) > 0;
}

/* ---------------------------------------------------------- the ends of an op */

/* Every call that takes an op begins with one of these two and ends with one
 * `finish`, so that drain knows when nothing is in flight. */
static void resume(struct store *s) {
    pthread_mutex_lock(&s->lock);
    s->in_flight++;
    pthread_mutex_unlock(&s->lock);
}

/* Gives what the host says of it: a descriptor, reader or writer in the result
 * is the host's only if that is SKG_OK. */
static int32_t finish(struct store *s, skg_op op, int32_t status, const skg_error *error,
                      const void *result) {
    skg_completion c;
    int32_t taken;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.status = status;
    c.error = error;
    c.result = result;
    taken = s->host->complete(s->host->ctx, op, &c);
    pthread_mutex_lock(&s->lock);
    if (--s->in_flight == 0) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
    return taken;
}

static int32_t answer(struct store *s, skg_op op, const void *result) {
    finish(s, op, SKG_OK, NULL, result);
    return SKG_OK;
}

/* The op has been accepted and ends with an error: that is SKG_OK, too. */
static int32_t fail(struct store *s, skg_op op, int32_t code, const char *message) {
    skg_error e;
    memset(&e, 0, sizeof e);
    e.struct_size = sizeof e;
    e.code = code;
    e.message = skg_str_of(message, strlen(message));
    finish(s, op, code, &e, NULL);
    return SKG_OK;
}

static int32_t fail_full(struct store *s, skg_op op) {
    return fail(s, op, SKG_E_EXHAUSTED, "the store is full: it keeps everything in memory");
}

/* For what begins something; 0: the op has ended, nothing new begins. */
static int begin(struct store *s, skg_op op) {
    int draining;
    resume(s);
    pthread_mutex_lock(&s->lock);
    draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    if (draining)
        fail(s, op, SKG_E_UNAVAILABLE, "the store takes no new work: it is being shut down");
    return !draining;
}

/* ------------------------------------------------------------------- skills */

/* One version.  All that it points to is in the same piece of memory. */
struct skill {
    skg_str tenant;
    struct version version;
    skg_skill answer;          /* as skill_get gives it                          */
    const skg_bytes *data;     /* of each file                                   */
};

/* version NULL: before all versions of the name. */
struct key { skg_str tenant, namespace_, name; const struct version *version; };

static int order_of_keys(const struct key *a, const struct key *b) {
    int order = order_of_texts(a->tenant, b->tenant);
    if (order == 0) order = order_of_texts(a->namespace_, b->namespace_);
    if (order == 0) order = order_of_texts(a->name, b->name);
    if (order != 0) return order;
    if (a->version == NULL || b->version == NULL)
        return (a->version != NULL) - (b->version != NULL);
    return order_of_versions(b->version, a->version);
}

static struct key key_of(const struct skill *k) {
    struct key key = { k->tenant, k->answer.namespace_, k->answer.name, &k->version };
    return key;
}

/* The first place after `key`.  Under the lock. */
static uint64_t place_after(const struct store *s, const struct key *key) {
    uint64_t low = 0, high = s->skills_len;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        struct key there = key_of(s->skills[middle]);
        if (order_of_keys(&there, key) <= 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* A version (NULL: the latest) of a tenant's skill, or NULL.  A version may be
 * in any namespace, so all of the tenant are looked at.  Under the lock. */
static const struct skill *find_skill(const struct store *s, skg_str tenant, skg_str name,
                                      const struct version *version) {
    struct key from = { NO_TEXT, NO_TEXT, NO_TEXT, NULL };
    const struct skill *found = NULL;
    uint64_t i;
    from.tenant = tenant;
    for (i = place_after(s, &from); i < s->skills_len && same(s->skills[i]->tenant, tenant); i++) {
        const struct skill *k = s->skills[i];
        if (!same(k->answer.name, name)) continue;
        if (version == NULL) {
            if (found == NULL || is_later(&k->version, &found->version)) found = k;
        } else if (order_of_versions(&k->version, version) == 0) {
            return k;
        }
    }
    return found;
}

/* What a call names; NULL: the op has ended. */
static const struct skill *named_skill(struct store *s, skg_op op, skg_str tenant,
                                       const skg_skill_ref *r) {
    struct version version;
    const struct skill *found = NULL;
    if (tenant.len == 0) {
        fail(s, op, SKG_E_INVALID_ARGUMENT, "the tenant is empty");
        return NULL;
    }
    /* A text that is no version names nothing. */
    if (r->version.len == 0 || parse_version(r->version, &version)) {
        pthread_mutex_lock(&s->lock);
        found = find_skill(s, tenant, r->name, r->version.len == 0 ? NULL : &version);
        pthread_mutex_unlock(&s->lock);
    }
    if (found == NULL) fail(s, op, SKG_E_NOT_FOUND, "there is no such skill or version");
    return found;
}

static int32_t skill_list(void *self, skg_op op, const skg_list_request *r) {
    struct store *s = self;
    struct version version;
    struct key after, start = { NO_TEXT, NO_TEXT, NO_TEXT, NULL };
    skg_skill *items;
    skg_skill_page page;
    uint64_t i;
    uint32_t n = 0;

    if (!begin(s, op)) return SKG_OK;
    if (r->tenant.len == 0) return fail(s, op, SKG_E_INVALID_ARGUMENT, "the tenant is empty");
    if (r->limit == 0 || r->limit > PAGE_MAX)
        return fail(s, op, SKG_E_INVALID_ARGUMENT, "a page has 1 to 1000 skills");
    after.tenant = start.tenant = r->tenant;
    after.namespace_ = r->after.namespace_;
    after.name = r->after.name;
    after.version = NULL;
    if (r->after.version.len != 0) {
        if (!parse_version(r->after.version, &version))
            return fail(s, op, SKG_E_INVALID_ARGUMENT, "the place to list from has no version");
        after.version = &version;
    }
    /* A namespace sorts before what is below it. */
    start.namespace_ = r->namespace_;
    if (order_of_keys(&start, &after) < 0) start = after;

    items = malloc(r->limit * sizeof *items);
    if (items == NULL) return fail(s, op, SKG_E_EXHAUSTED, OUT_OF_MEMORY);
    memset(&page, 0, sizeof page);
    page.struct_size = sizeof page;
    pthread_mutex_lock(&s->lock);
    for (i = place_after(s, &start); i < s->skills_len; i++) {
        const struct skill *k = s->skills[i];
        if (!same(k->tenant, r->tenant)) break;
        if (r->namespace_.len != 0 && !within(k->answer.namespace_, r->namespace_, '.')) continue;
        if (n == r->limit) {
            page.more = 1;
            break;
        }
        items[n] = k->answer;
        memset(&items[n].manifest_json, 0, sizeof items[n].manifest_json);
        memset(&items[n].files, 0, sizeof items[n].files);
        n++;
    }
    pthread_mutex_unlock(&s->lock);
    page.skills = skg_list_of(items, n, sizeof *items);
    answer(s, op, &page);
    free(items);
    return SKG_OK;
}

static int32_t skill_get(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r) {
    struct store *s = self;
    const struct skill *k;
    if (!begin(s, op)) return SKG_OK;
    k = named_skill(s, op, tenant, r);
    return k == NULL ? SKG_OK : answer(s, op, &k->answer);
}

/* Inside, without a way out or a second spelling.  The host has checked more. */
static int is_path(skg_str path) {
    if (path.len == 0 || path.len > PATH_BYTES_MAX || memchr(path.ptr, 0, path.len) != NULL
        || memchr(path.ptr, '\\', path.len) != NULL)
        return 0;
    do {
        skg_str part = next_part(&path, '/');
        if (part.len == 0 || same(part, skg_str_of(".", 1)) || same(part, skg_str_of("..", 2)))
            return 0;
    } while (path.ptr != NULL);
    return 1;
}

static int32_t skill_read(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r,
                          skg_str path) {
    struct store *s = self;
    const struct skill *k;
    uint32_t i;
    int is_directory = 0;
    if (!begin(s, op)) return SKG_OK;
    k = named_skill(s, op, tenant, r);
    if (k == NULL) return SKG_OK;
    if (!is_path(path))
        return fail(s, op, SKG_E_INVALID_ARGUMENT, "that is not the path of a file in a skill");
    for (i = 0; i < k->answer.files.len; i++) {
        const skg_skill_file *f = SKG_AT(k->answer.files, skg_skill_file, i);
        if (same(f->path, path)) {
            skg_content c;
            memset(&c, 0, sizeof c);
            c.struct_size = sizeof c;
            c.kind = SKG_CONTENT_DATA;
            c.fd = -1;
            c.data = k->data[i];
            c.size_bytes = f->size_bytes;
            return answer(s, op, &c);
        }
        is_directory |= within(f->path, path, '/');
    }
    return is_directory ? fail(s, op, SKG_E_INVALID_ARGUMENT, "that is a directory: name a file")
                        : fail(s, op, SKG_E_NOT_FOUND, "the skill has no such file");
}

/* Is there a file of this name among the first n?  They are sorted. */
static int has_file(const skg_put_skill *r, uint32_t n, skg_str path) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = order_of_texts(SKG_AT(r->files, skg_put_file, middle)->path, path);
        if (order == 0) return 1;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return 0;
}

/* Is what is to be published as the contract says?  NULL, or what is wrong.
 * Writes the digest of each file, HEX_BYTES, to `hex`. */
static const char *check_files(const skg_put_skill *r, char *hex, int32_t *code) {
    struct sha256 tree;
    uint64_t bytes = 0;
    char digest[HEX_BYTES];
    uint32_t i;
    uint64_t j;
    *code = SKG_E_INVALID_ARGUMENT;
    sha256_begin(&tree);
    for (i = 0; i < r->files.len; i++, hex += HEX_BYTES) {
        const skg_put_file *f = SKG_AT(r->files, skg_put_file, i);
        struct sha256 file;
        if (!is_path(f->path)) return "a file's path leads out of the skill";
        if (i > 0 && order_of_texts(SKG_AT(r->files, skg_put_file, i - 1)->path, f->path) >= 0)
            return "the files are not sorted by path, each once";
        for (j = 0; j < f->path.len; j++)
            if (f->path.ptr[j] == '/' && has_file(r, i, skg_str_of(f->path.ptr, j)))
                return "a file is a directory, too";
        if (f->data.len > FILE_BYTES_MAX || (bytes += f->data.len) > SKILL_BYTES_MAX) {
            *code = SKG_E_OUT_OF_RANGE;
            return "a file or the whole skill is larger than this store takes";
        }
        sha256_begin(&file);
        sha256_add(&file, f->data.ptr, f->data.len);
        sha256_hex(&file, hex);
        sha256_add(&tree, f->path.ptr, f->path.len);
        sha256_add(&tree, "", 1);
        sha256_add(&tree, hex, HEX_BYTES);
        sha256_add(&tree, "\n", 1);
    }
    sha256_hex(&tree, digest);
    return same(skg_str_of(digest, HEX_BYTES), r->tree_sha256)
               ? NULL : "the digest does not belong to these files";
}

/* The version as it will be kept; NULL: there is no room. */
static struct skill *make_skill(struct store *s, const skg_put_skill *r, const char *hex) {
    uint32_t n = r->files.len, i;
    uint64_t bytes = sizeof(struct skill) + n * (sizeof(skg_skill_file) + sizeof(skg_bytes) + HEX_BYTES)
        + r->tenant.len + r->name.len + r->version.len + r->namespace_.len + r->kind.len
        + r->description.len + r->publisher.len + r->tree_sha256.len + r->manifest_json.len;
    struct skill *k;
    skg_skill_file *files;
    skg_bytes *data;
    skg_skill *a;
    char *at;
    for (i = 0; i < n; i++) {
        const skg_put_file *f = SKG_AT(r->files, skg_put_file, i);
        bytes += f->path.len + f->data.len;
    }
    k = take(s, NULL, bytes);
    if (k == NULL) return NULL;
    memset(k, 0, sizeof *k);
    files = (skg_skill_file *)(k + 1);
    data = (skg_bytes *)(files + n);
    at = (char *)(data + n);
    a = &k->answer;
    a->struct_size = sizeof *a;
    k->tenant = put_text(&at, r->tenant);
    a->name = put_text(&at, r->name);
    a->version = put_text(&at, r->version);
    a->namespace_ = put_text(&at, r->namespace_);
    a->kind = put_text(&at, r->kind);
    a->description = put_text(&at, r->description);
    a->publisher = put_text(&at, r->publisher);
    a->tree_sha256 = put_text(&at, r->tree_sha256);
    a->manifest_json.ptr = (const uint8_t *)at;
    a->manifest_json.len = r->manifest_json.len;
    put_text(&at, skg_str_of((const char *)r->manifest_json.ptr, r->manifest_json.len));
    for (i = 0; i < n; i++) {
        const skg_put_file *f = SKG_AT(r->files, skg_put_file, i);
        files[i].struct_size = sizeof files[i];
        files[i].reserved = 0;
        files[i].path = put_text(&at, f->path);
        files[i].sha256 = put_text(&at, skg_str_of(hex + i * HEX_BYTES, HEX_BYTES));
        files[i].size_bytes = f->data.len;
        data[i].ptr = (const uint8_t *)at;
        data[i].len = f->data.len;
        put_text(&at, skg_str_of((const char *)f->data.ptr, f->data.len));
    }
    a->files = skg_list_of(files, n, sizeof *files);
    k->data = data;
    parse_version(a->version, &k->version); /* has been checked */
    return k;
}

/* Puts it in its place; 0: there is no room.  Under the lock. */
static int insert_skill(struct store *s, struct skill *k) {
    struct key key = key_of(k);
    uint64_t at = place_after(s, &key);
    if (s->skills_len == s->skills_cap) {
        uint64_t cap = s->skills_cap == 0 ? 64 : 2 * s->skills_cap;
        struct skill **more = take(s, s->skills, cap * sizeof *more);
        if (more == NULL) return 0;
        s->skills = more;
        s->skills_cap = cap;
    }
    memmove(s->skills + at + 1, s->skills + at, (s->skills_len - at) * sizeof *s->skills);
    s->skills[at] = k;
    s->skills_len++;
    return 1;
}

static int32_t skill_put(void *self, skg_op op, const skg_put_skill *r) {
    struct store *s = self;
    struct version version;
    const struct skill *known;
    struct skill *made = NULL;
    const char *wrong;
    int32_t code;
    char *hex;

    if (!begin(s, op)) return SKG_OK;
    if (r->tenant.len == 0 || r->name.len == 0)
        return fail(s, op, SKG_E_INVALID_ARGUMENT, "the tenant or the skill's name is empty");
    if (!parse_version(r->version, &version))
        return fail(s, op, SKG_E_INVALID_ARGUMENT, "the version is not a semantic version");
    hex = malloc((uint64_t)r->files.len * HEX_BYTES + 1);
    if (hex == NULL) return fail(s, op, SKG_E_EXHAUSTED, OUT_OF_MEMORY);
    wrong = check_files(r, hex, &code);
    if (wrong != NULL) {
        free(hex);
        return fail(s, op, code, wrong);
    }
    /* From the look to the place under one lock: of two that publish the same
     * version at once, the second finds the first. */
    pthread_mutex_lock(&s->lock);
    known = find_skill(s, r->tenant, r->name, &version);
    if (known == NULL) {
        made = make_skill(s, r, hex);
        if (made != NULL && !insert_skill(s, made)) {
            give(s, made);
            made = NULL;
        }
    }
    pthread_mutex_unlock(&s->lock);
    free(hex);
    if (known != NULL && !same(known->answer.tree_sha256, r->tree_sha256))
        return fail(s, op, SKG_E_ALREADY_EXISTS,
                    "this version exists with other content: publish a new version");
    if (known == NULL) known = made;
    return known == NULL ? fail_full(s, op) : answer(s, op, &known->answer);
}

/* --------------------------------------------------------- files in memory, tar */

/* Appends all of it, or says no. */
static int write_all(int fd, const void *data, uint64_t len) {
    const char *p = data;
    while (len != 0) {
        ssize_t n = write(fd, p, len);
        if (n <= 0) return 0;
        p += n;
        len -= (uint64_t)n;
    }
    return 1;
}

/* Nobody writes to it any more, whoever it is given to. */
static int sealed(int fd) {
    return lseek(fd, 0, SEEK_SET) == 0
        && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

/* One entry of a POSIX tar. */
static int tar_entry(int fd, char type, skg_str name, const void *data, uint64_t len) {
    static const char padding[512];
    char h[512];
    unsigned sum = 0;
    int i;
    memset(h, 0, sizeof h);
    memcpy(h, name.ptr, name.len < 100 ? name.len : 100);
    snprintf(h + 100, 8, "%07o", 0644u);
    snprintf(h + 108, 8, "%07o", 0u);
    snprintf(h + 116, 8, "%07o", 0u);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)len);
    snprintf(h + 136, 12, "%011o", 0u);
    h[156] = type;
    memcpy(h + 257, "ustar\00000", 8);
    memset(h + 148, ' ', 8);
    for (i = 0; i < 512; i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    return write_all(fd, h, sizeof h) && write_all(fd, data, len)
        && write_all(fd, padding, (512 - len % 512) % 512);
}

/* A name that the header of an entry has no room for is in one before it:
 * "<bytes of this line> path=<name>\n". */
static int tar_long_name(int fd, skg_str name) {
    char line[PATH_BYTES_MAX + 16];
    int total = (int)name.len + 7, digits = 3;
    total += digits;
    snprintf(line, sizeof line, "%d path=%.*s\n", total, (int)name.len, name.ptr);
    return tar_entry(fd, 'x', skg_str_of("path", 4), line, (uint64_t)total);
}

static int32_t skill_tree(void *self, skg_op op, skg_str tenant, const skg_skill_ref *r) {
    struct store *s = self;
    const struct skill *k;
    static const char end[1024];
    skg_content c;
    uint32_t i;
    int ok = 1;
    if (!begin(s, op)) return SKG_OK;
    k = named_skill(s, op, tenant, r);
    if (k == NULL) return SKG_OK;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.kind = SKG_CONTENT_TAR;
    c.fd = memfd_create("skill", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (c.fd < 0) return fail(s, op, SKG_E_EXHAUSTED, "there is no descriptor for a tar");
    for (i = 0; i < k->answer.files.len && ok; i++) {
        const skg_skill_file *f = SKG_AT(k->answer.files, skg_skill_file, i);
        ok = (f->path.len <= 100 || tar_long_name(c.fd, f->path))
            && tar_entry(c.fd, '0', f->path, k->data[i].ptr, k->data[i].len);
    }
    ok = ok && write_all(c.fd, end, sizeof end);
    c.size_bytes = ok ? (uint64_t)lseek(c.fd, 0, SEEK_CUR) : 0;
    if (!ok || !sealed(c.fd)) {
        close(c.fd);
        return fail(s, op, SKG_E_EXHAUSTED, "there is no room for a tar");
    }
    if (finish(s, op, SKG_OK, NULL, &c) != SKG_OK) close(c.fd);
    return SKG_OK;
}

/* -------------------------------------------------------------------- blobs */

/* The texts are in the same piece of memory, the data in its own. */
struct blob {
    struct blob *next;         /* in its bucket                                  */
    uint32_t users;            /* its bucket, its readers and calls              */
    skg_str tenant;
    uint64_t ends_ms;          /* by uptime_ms; 0: never                         */
    uint8_t *data;
    skg_blob_stat stat;
    char id[ID_BYTES], sha256[HEX_BYTES];
};

/* A writer or a reader.  Ops of one come one after the other, so what is in it
 * needs no lock; the list does.  When an op has completed, the next call may
 * come at once, on another thread, and be the one that frees it: nothing of a
 * handle that is in the list is touched after complete(). */
struct handle {
    struct handle *next;
    uint64_t number;
    struct blob *blob;
    uint64_t at, end;          /* reader: what is still to be given out          */
    uint64_t cap, max_bytes, ttl_s; /* writer                                    */
    struct sha256 digest;      /* writer                                         */
    int failed;                /* writer: its content is not what was meant      */
};

static uint64_t clock_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What is in memory ends by this one, which nobody sets and which goes on while
 * the machine sleeps: a calendar that is wrong for a second would free it all. */
static uint64_t uptime_ms(void) { return clock_ms(CLOCK_BOOTTIME); }

/* Under the lock. */
static void leave_blob(struct store *s, struct blob *b) {
    if (--b->users != 0) return;
    give(s, b->data);
    give(s, b);
}

static struct blob **bucket_of(struct store *s, skg_str id) {
    uint32_t hash = 2166136261u;
    uint64_t i;
    for (i = 0; i < id.len; i++) hash = (hash ^ (uint8_t)id.ptr[i]) * 16777619u;
    return &s->blobs[hash % BUCKETS];
}

/* Takes out of its bucket.  Under the lock. */
static void remove_blob(struct store *s, struct blob **link) {
    struct blob *b = *link;
    *link = b->next;
    leave_blob(s, b);
}

/* Where a tenant's blob is linked, or NULL.  Under the lock. */
static struct blob **find_blob(struct store *s, skg_str tenant, skg_str id) {
    struct blob **link = bucket_of(s, id);
    for (; *link != NULL; link = &(*link)->next) {
        const struct blob *b = *link;
        if (!same(b->stat.id, id) || !same(b->tenant, tenant)) continue;
        if (b->ends_ms == 0 || b->ends_ms > uptime_ms()) return link;
        remove_blob(s, link);
        return NULL;
    }
    return NULL;
}

/* Frees what has expired and nobody has asked for. */
static void sweep(struct store *s) {
    uint64_t now = uptime_ms();
    uint32_t i;
    pthread_mutex_lock(&s->lock);
    for (i = 0; i < BUCKETS; i++) {
        struct blob **link = &s->blobs[i];
        while (*link != NULL) {
            if ((*link)->ends_ms != 0 && (*link)->ends_ms <= now) remove_blob(s, link);
            else link = &(*link)->next;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* Uses a tenant's blob until leave_blob; NULL: the op has ended. */
static struct blob *named_blob(struct store *s, skg_op op, skg_str tenant, skg_str id) {
    struct blob **link, *b = NULL;
    pthread_mutex_lock(&s->lock);
    link = find_blob(s, tenant, id);
    if (link != NULL) {
        b = *link;
        b->users++;
    }
    pthread_mutex_unlock(&s->lock);
    if (b == NULL) fail(s, op, SKG_E_NOT_FOUND, "there is no such blob");
    return b;
}

static void done_with_blob(struct store *s, struct blob *b) {
    pthread_mutex_lock(&s->lock);
    leave_blob(s, b);
    pthread_mutex_unlock(&s->lock);
}

/* Puts a handle into one of the lists; 0: there are too many. */
static int open_handle(struct store *s, struct handle **list, struct handle *h) {
    struct handle *other;
    uint32_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (other = *list; other != NULL; other = other->next) n++;
    if (n < HANDLES_MAX) {
        h->number = ++s->next_handle;
        h->next = *list;
        *list = h;
    }
    pthread_mutex_unlock(&s->lock);
    return n < HANDLES_MAX;
}

/* Finds a handle, and takes it out of its list if `out` is set. */
static struct handle *find_handle(struct store *s, struct handle **list, uint64_t number, int out) {
    struct handle *h;
    pthread_mutex_lock(&s->lock);
    while (*list != NULL && (*list)->number != number) list = &(*list)->next;
    h = *list;
    if (h != NULL && out) *list = h->next;
    pthread_mutex_unlock(&s->lock);
    return h;
}

/* Of a handle that is in no list. */
static void close_handle(struct store *s, struct handle *h) {
    done_with_blob(s, h->blob);
    free(h);
}

static int32_t blob_create(void *self, skg_op op, const skg_blob_create_request *r) {
    struct store *s = self;
    struct blob *b;
    struct handle *h;
    skg_handle result;
    char *at;

    if (!begin(s, op)) return SKG_OK;
    if (r->tenant.len == 0) return fail(s, op, SKG_E_INVALID_ARGUMENT, "the tenant is empty");
    sweep(s);
    b = take(s, NULL, sizeof *b + r->tenant.len + r->kind.len + r->owner.len);
    h = calloc(1, sizeof *h);
    if (b == NULL || h == NULL) {
        give(s, b);
        free(h);
        return fail_full(s, op);
    }
    memset(b, 0, sizeof *b);
    at = (char *)(b + 1);
    b->users = 1;
    b->tenant = put_text(&at, r->tenant);
    b->stat.struct_size = sizeof b->stat;
    b->stat.kind = put_text(&at, r->kind);
    b->stat.owner = put_text(&at, r->owner);
    h->blob = b;
    h->max_bytes = r->max_bytes;
    h->ttl_s = r->ttl_s;
    sha256_begin(&h->digest);
    if (!open_handle(s, &s->writers, h)) {
        close_handle(s, h);
        return fail(s, op, SKG_E_EXHAUSTED, "too many blobs are being written");
    }
    result.handle = h->number;
    /* A host that does not take the writer will not end it either. */
    if (finish(s, op, SKG_OK, NULL, &result) != SKG_OK) {
        h = find_handle(s, &s->writers, result.handle, 1);
        if (h != NULL) close_handle(s, h);
    }
    return SKG_OK;
}

static int32_t blob_write(void *self, skg_op op, uint64_t writer, skg_bytes data) {
    struct store *s = self;
    struct handle *h;
    struct blob *b;
    uint64_t size;
    resume(s);
    h = find_handle(s, &s->writers, writer, 0);
    if (h == NULL) return fail(s, op, SKG_E_STALE, "there is no such writer");
    if (h->failed)
        return fail(s, op, SKG_E_PRECONDITION, "an earlier write failed: abort, and start anew");
    b = h->blob;
    h->failed = 1; /* until all of it is in */
    if (data.len > h->max_bytes - b->stat.size_bytes)
        return fail(s, op, SKG_E_OUT_OF_RANGE, "the blob would be larger than it may be");
    size = b->stat.size_bytes + data.len;
    if (size > h->cap) {
        uint64_t cap = size < 2048 ? 4096 : 2 * size;
        uint8_t *more = take(s, b->data, cap);
        if (more == NULL) {
            cap = size;
            more = take(s, b->data, cap);
        }
        if (more == NULL) return fail_full(s, op);
        b->data = more;
        h->cap = cap;
    }
    if (data.len != 0) memcpy(b->data + b->stat.size_bytes, data.ptr, data.len);
    sha256_add(&h->digest, data.ptr, data.len);
    b->stat.size_bytes = size;
    h->failed = 0;
    return answer(s, op, NULL);
}

/* "blob:" and 26 letters of 5 random bits. */
static int make_id(char *id) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    uint8_t random[ID_BYTES - 5];
    uint32_t i;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return 0;
    memcpy(id, "blob:", 5);
    for (i = 0; i < sizeof random; i++) id[5 + i] = letters[random[i] & 31];
    return 1;
}

static int32_t blob_commit(void *self, skg_op op, uint64_t writer) {
    struct store *s = self;
    struct handle *h;
    struct blob *b, **bucket;
    uint8_t *exact;
    resume(s);
    h = find_handle(s, &s->writers, writer, 1);
    if (h == NULL) return fail(s, op, SKG_E_STALE, "there is no such writer");
    b = h->blob;
    if (h->failed || !make_id(b->id)) {
        int failed = h->failed;
        close_handle(s, h);
        return failed ? fail(s, op, SKG_E_PRECONDITION, "a write to this blob failed")
                      : fail(s, op, SKG_E_UNAVAILABLE, "there is no randomness for an id");
    }
    exact = take(s, b->data, b->stat.size_bytes);
    if (exact != NULL) b->data = exact;
    sha256_hex(&h->digest, b->sha256);
    b->stat.id = skg_str_of(b->id, ID_BYTES);
    b->stat.sha256 = skg_str_of(b->sha256, HEX_BYTES);
    b->stat.created_unix_ms = clock_ms(CLOCK_REALTIME);
    if (h->ttl_s != 0) {
        uint64_t now = uptime_ms(), longest = (UINT64_MAX - now) / 1000;
        b->ends_ms = h->ttl_s > longest ? 0 : now + h->ttl_s * 1000;
    }
    /* The writer's use of it becomes this call's, and the bucket has its own. */
    pthread_mutex_lock(&s->lock);
    bucket = bucket_of(s, b->stat.id);
    b->next = *bucket;
    *bucket = b;
    b->users++;
    pthread_mutex_unlock(&s->lock);
    answer(s, op, &b->stat);
    close_handle(s, h);
    return SKG_OK;
}

static void blob_abort(void *self, uint64_t writer) {
    struct store *s = self;
    struct handle *h = find_handle(s, &s->writers, writer, 1);
    if (h != NULL) close_handle(s, h);
}

static int32_t blob_stat(void *self, skg_op op, skg_str tenant, skg_str id) {
    struct store *s = self;
    struct blob *b;
    if (!begin(s, op)) return SKG_OK;
    b = named_blob(s, op, tenant, id);
    if (b == NULL) return SKG_OK;
    answer(s, op, &b->stat);
    done_with_blob(s, b);
    return SKG_OK;
}

/* The digest was made of the very bytes that are given out: nobody has written
 * to them since. */
static int32_t blob_open(void *self, skg_op op, skg_str tenant, skg_str id,
                         uint64_t offset, uint64_t len) {
    struct store *s = self;
    struct blob *b;
    struct handle *h;
    skg_blob_opened o;
    uint64_t size;
    if (!begin(s, op)) return SKG_OK;
    b = named_blob(s, op, tenant, id);
    if (b == NULL) return SKG_OK;
    size = b->stat.size_bytes;
    h = offset > size ? NULL : calloc(1, sizeof *h);
    if (h == NULL) {
        done_with_blob(s, b);
        return offset > size ? fail(s, op, SKG_E_OUT_OF_RANGE, "the offset is beyond the end")
                             : fail(s, op, SKG_E_EXHAUSTED, OUT_OF_MEMORY);
    }
    h->blob = b;
    h->at = offset;
    h->end = len == 0 || len > size - offset ? size : offset + len;
    if (!open_handle(s, &s->readers, h)) {
        close_handle(s, h);
        return fail(s, op, SKG_E_EXHAUSTED, "too many blobs are being read");
    }
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.fd = -1;
    o.reader = h->number;
    o.stat = &b->stat;
    if (finish(s, op, SKG_OK, NULL, &o) != SKG_OK) {
        h = find_handle(s, &s->readers, o.reader, 1);
        if (h != NULL) close_handle(s, h);
    }
    return SKG_OK;
}

static int32_t blob_read(void *self, skg_op op, uint64_t reader, void *buf, uint64_t cap) {
    struct store *s = self;
    struct handle *h;
    skg_count c;
    resume(s);
    h = find_handle(s, &s->readers, reader, 0);
    if (h == NULL) return fail(s, op, SKG_E_STALE, "there is no such reader");
    c.n = h->end - h->at < cap ? h->end - h->at : cap;
    if (c.n != 0) memcpy(buf, h->blob->data + h->at, c.n);
    h->at += c.n;
    c.eof = h->at == h->end;
    return answer(s, op, &c);
}

static void blob_close(void *self, uint64_t reader) {
    struct store *s = self;
    struct handle *h = find_handle(s, &s->readers, reader, 1);
    if (h != NULL) close_handle(s, h);
}

/* A file of its own each time: nobody shares a place in it. */
static int32_t blob_fd(void *self, skg_op op, skg_str tenant, skg_str id) {
    struct store *s = self;
    struct blob *b;
    skg_blob_opened o;
    if (!begin(s, op)) return SKG_OK;
    b = named_blob(s, op, tenant, id);
    if (b == NULL) return SKG_OK;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.stat = &b->stat;
    o.fd = memfd_create("blob", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (o.fd < 0 || !write_all(o.fd, b->data, b->stat.size_bytes) || !sealed(o.fd)) {
        if (o.fd >= 0) close(o.fd);
        fail(s, op, SKG_E_EXHAUSTED, "there is no room for a file");
    } else if (finish(s, op, SKG_OK, NULL, &o) != SKG_OK) {
        close(o.fd);
    }
    done_with_blob(s, b);
    return SKG_OK;
}

static int32_t blob_delete(void *self, skg_op op, skg_str tenant, skg_str id) {
    struct store *s = self;
    struct blob **link;
    if (!begin(s, op)) return SKG_OK;
    pthread_mutex_lock(&s->lock);
    link = find_blob(s, tenant, id);
    if (link != NULL) remove_blob(s, link);
    pthread_mutex_unlock(&s->lock);
    return link == NULL ? fail(s, op, SKG_E_NOT_FOUND, "there is no such blob") : answer(s, op, NULL);
}

/* ------------------------------------------------------------- the instance */

static int32_t caps(void *self, uint32_t *out_flags) {
    (void)self;
    *out_flags = SKG_ST_SKILLS | SKG_ST_SKILLS_WRITE | SKG_ST_BLOBS | SKG_ST_BLOB_FD |
                 SKG_ST_VOLATILE;
    return SKG_OK;
}

/* Every call ends soon by itself. */
static void cancel(void *self, skg_op op) {
    (void)self;
    (void)op;
}

static int32_t health(void *self, skg_op op) {
    struct store *s = self;
    struct handle *h;
    uint64_t skills, bytes;
    char metrics[128];
    skg_health a;
    resume(s);
    sweep(s);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.state = SKG_HEALTH_OK;
    a.capacity = HANDLES_MAX;
    pthread_mutex_lock(&s->lock);
    for (h = s->writers; h != NULL; h = h->next) {
        a.in_flight++;
        a.capacity--;
    }
    for (h = s->readers; h != NULL; h = h->next) a.in_flight++;
    skills = s->skills_len;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->budget);
    bytes = s->bytes;
    pthread_mutex_unlock(&s->budget);
    a.message = skg_str_of("in memory: nothing survives the end", 35);
    snprintf(metrics, sizeof metrics, "{\"skills\":%llu,\"bytes\":%llu}",
             (unsigned long long)skills, (unsigned long long)bytes);
    a.metrics_json = skg_str_of(metrics, strlen(metrics));
    return answer(s, op, &a);
}

/* What is open may still be written and read; nothing new begins.  This op is
 * not in flight itself, or it would wait for its own end. */
static int32_t drain(void *self, skg_op op) {
    struct store *s = self;
    pthread_mutex_lock(&s->lock);
    s->draining = 1;
    while (s->in_flight != 0) pthread_cond_wait(&s->idle, &s->lock);
    s->in_flight++;
    pthread_mutex_unlock(&s->lock);
    return answer(s, op, NULL);
}

static void close_all(struct store *s, struct handle *h) {
    while (h != NULL) {
        struct handle *next = h->next;
        close_handle(s, h);
        h = next;
    }
}

static void destroy(void *self) {
    struct store *s = self;
    uint64_t i;
    close_all(s, s->writers);
    close_all(s, s->readers);
    for (i = 0; i < BUCKETS; i++)
        while (s->blobs[i] != NULL) remove_blob(s, &s->blobs[i]);
    for (i = 0; i < s->skills_len; i++) give(s, s->skills[i]);
    give(s, s->skills);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->budget);
    free(s);
}

static int32_t refuse(skg_error *err, int32_t code, const char *message) {
    err->code = code;
    err->message = skg_str_of(message, strlen(message));
    return code;
}

/* No section of the configuration, or an empty one. */
static int is_empty_object(skg_bytes json) {
    char seen[2];
    uint64_t i, n = 0;
    for (i = 0; i < json.len; i++) {
        char c = (char)json.ptr[i];
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
        if (n == 2) return 0;
        seen[n++] = c;
    }
    return n == 0 || (n == 2 && memcmp(seen, "{}", 2) == 0);
}

static int32_t create(const skg_host *host, const skg_create_request *req,
                      const skg_storage **out, skg_error *err) {
    struct store *s;
    skg_storage *t;
    if (!is_empty_object(req->config_json))
        return refuse(err, SKG_E_INVALID_ARGUMENT, "this store has no settings: leave config out");
    s = calloc(1, sizeof *s);
    if (s == NULL) return refuse(err, SKG_E_EXHAUSTED, OUT_OF_MEMORY);
    s->host = host;
    pthread_mutex_init(&s->budget, NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->idle, NULL);
    t = &s->table;
    t->struct_size = sizeof *t;
    t->self = s;
    t->caps = caps;
    t->cancel = cancel;
    t->health = health;
    t->drain = drain;
    t->destroy = destroy;
    t->skill_list = skill_list;
    t->skill_get = skill_get;
    t->skill_read = skill_read;
    t->skill_tree = skill_tree;
    t->skill_put = skill_put;
    t->blob_create = blob_create;
    t->blob_write = blob_write;
    t->blob_commit = blob_commit;
    t->blob_abort = blob_abort;
    t->blob_stat = blob_stat;
    t->blob_open = blob_open;
    t->blob_read = blob_read;
    t->blob_close = blob_close;
    t->blob_fd = blob_fd;
    t->blob_delete = blob_delete;
    *out = t;
    return SKG_OK;
}

/* ---------------------------------------------------------------- the entry */

/* Locks may wait and digests take their time: the calls are for a thread that
 * may wait, too, and every op is complete when its call returns. */
SKG_NOTE(PLUGIN_ID, SKG_F_BLOCKING);

static const skg_storage_factory factory = { sizeof(skg_storage_factory), 0, create };

static const void *get_factory(const char *kind_id) {
    return strcmp(kind_id, SKG_STORAGE_ID) == 0 ? &factory : NULL;
}

static const skg_plugin_info info = {
    sizeof(skg_plugin_info), 0,
    SKG_LIT(PLUGIN_ID), SKG_LIT("1.0.0"), SKG_LIT("skillgate"),
    SKG_LIT("keeps skills and blobs in memory"), SKG_LIT("Apache-2.0"), SKG_LIT(""), SKG_LIT("") };

const skg_entry_v1 skillgate_plugin_entry_v1 = {
    SKG_MAGIC, sizeof(skg_entry_v1), SKG_ABI_MAJOR, SKG_ABI_MINOR, 0, SKG_F_BLOCKING,
    &info, get_factory };
