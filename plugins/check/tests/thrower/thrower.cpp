// A plugin whose create() lets a C++ exception out, for the tests of the kit.
#include "skillgate_plugin.h"
#include <cstring>
#include <stdexcept>

SKG_NOTE("org.skillgate.thrower", 0);

static int32_t create(const skg_host *, const skg_create_request *, const skg_sandbox **, skg_error *) {
    throw std::runtime_error("as asked");
}

static const skg_sandbox_factory factory = { sizeof(skg_sandbox_factory), 0, create };
static const void *get_factory(const char *id) { return std::strcmp(id, SKG_SANDBOX_ID) == 0 ? &factory : nullptr; }
static const skg_plugin_info info = {
    sizeof(skg_plugin_info), 0, SKG_LIT("org.skillgate.thrower"), SKG_LIT("1.0.0"), { nullptr, 0 }, { nullptr, 0 },
    { nullptr, 0 }, { nullptr, 0 }, { nullptr, 0 } };

extern "C" SKG_EXPORT const skg_entry_v1 skillgate_plugin_entry_v1 = {
    SKG_MAGIC, sizeof(skg_entry_v1), SKG_ABI_MAJOR, SKG_ABI_MINOR, 0, 0, &info, get_factory };
