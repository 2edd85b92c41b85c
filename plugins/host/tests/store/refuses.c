/* A store that refuses to commit, each time, as rule 3 of the contract lets it: there is no op then.  Its health says how
 * many aborts it has heard (capacity).
 *
 *   -DFLAGS=...     -DNO_COMMIT: it has no such function at all */
#include "skillgate_plugin.h"
#include <string.h>

#define PLUGIN_ID "org.skillgate.refuses"

static const skg_host *host;
static uint32_t aborts;

static int32_t done(skg_op op, const void *result) {
    skg_completion c;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.result = result;
    host->complete(host->ctx, op, &c);
    return SKG_OK;
}

static int32_t caps(void *self, uint32_t *out) {
    (void)self;
    *out = SKG_ST_BLOBS;
    return SKG_OK;
}

static int32_t health(void *self, skg_op op) {
    skg_health h;
    (void)self;
    memset(&h, 0, sizeof h);
    h.struct_size = sizeof h;
    h.state = SKG_HEALTH_OK;
    h.capacity = __atomic_load_n(&aborts, __ATOMIC_SEQ_CST);
    return done(op, &h);
}

static void destroy(void *self) { (void)self; }

static int32_t blob_create(void *self, skg_op op, const skg_blob_create_request *r) {
    static const skg_handle writer = { 7 };
    (void)self;
    (void)r;
    return done(op, &writer);
}

#ifndef NO_COMMIT
static int32_t blob_commit(void *self, skg_op op, uint64_t writer) {
    (void)self;
    (void)op;
    (void)writer;
    return SKG_E_UNAVAILABLE;
}
#endif

static void blob_abort(void *self, uint64_t writer) {
    (void)self;
    if (writer == 7) __atomic_add_fetch(&aborts, 1, __ATOMIC_SEQ_CST);
}

static int32_t create(const skg_host *h, const skg_create_request *r, const skg_storage **out, skg_error *err) {
    static skg_storage t;
    (void)r;
    (void)err;
    host = h;
    t.struct_size = sizeof t;
    t.caps = caps;
    t.health = health;
    t.destroy = destroy;
    t.blob_create = blob_create;
#ifndef NO_COMMIT
    t.blob_commit = blob_commit;
#endif
    t.blob_abort = blob_abort;
    *out = &t;
    return SKG_OK;
}

SKG_NOTE(PLUGIN_ID, FLAGS);
static const skg_storage_factory factory = { sizeof(skg_storage_factory), 0, create };
static const void *get_factory(const char *kind) {
    return strcmp(kind, SKG_STORAGE_ID) == 0 ? &factory : 0;
}
static const skg_plugin_info info = {
    sizeof(skg_plugin_info), 0, SKG_LIT(PLUGIN_ID), SKG_LIT("1.0.0"), SKG_LIT("t"), SKG_LIT("t"),
    SKG_LIT(""), SKG_LIT(""), SKG_LIT("") };
const skg_entry_v1 skillgate_plugin_entry_v1 = {
    SKG_MAGIC, sizeof(skg_entry_v1), SKG_ABI_MAJOR, SKG_ABI_MINOR, 0, FLAGS, &info, get_factory };
