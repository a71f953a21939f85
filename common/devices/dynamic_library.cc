#include "common/devices/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "common/devices/python_packages.h"

namespace tributary {

namespace {

// The folder where the toolkit's own installer puts libraries, unknown to the dynamic linker.
constexpr const char* kToolkitFolder = "/usr/local/cuda/lib64";

// Returns the value of an environment variable; empty if there is none.
std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "";
}

std::string last_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "unknown error";
}

// Opens a library in folders that the dynamic linker does not search. nullptr: it is in none of them.
void* open_in_known_folders(const std::string& name) {
  std::vector<std::string> folders{kToolkitFolder};
  std::ranges::move(python_library_folders(value_of("PATH"), value_of("HOME")), std::back_inserter(folders));
  for (const std::string& folder : folders) {
    if (void* handle = ::dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    ::dlerror();  // cleared: the linker's own reason is the informative one
  }
  return nullptr;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(std::string what, std::initializer_list<const char*> candidates,
                                            std::string_view cure) {
  std::string tried;
  for (const char* candidate : candidates) {
    const std::string name = candidate;
    // RTLD_NOW: a library that lacks something fails here, with a message, and not in the middle of training.
    void* handle = ::dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
    std::string why = handle == nullptr ? last_error() : std::string();
    if (handle == nullptr && name.find('/') == std::string::npos) handle = open_in_known_folders(name);
    if (handle != nullptr) return DynamicLibrary(std::move(what), name, handle);
    // The dynamic linker's text begins with the name it looked for.
    tried += (tried.empty() ? "" : "; ") + (why.starts_with(name) ? why : name + ": " + why);
  }
  return fail(ErrorCode::kNotFound, what + " cannot be loaded (" + tried + "); " + std::string(cure));
}

std::string DynamicLibrary::path() const {
  const link_map* map = nullptr;
  if (::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) {
    ::dlerror();
    return name_;
  }
  return map != nullptr && map->l_name != nullptr && *map->l_name != '\0' ? map->l_name : name_;
}

Result<void*> DynamicLibrary::address(const char* symbol) const {
  ::dlerror();
  void* found = ::dlsym(handle_, symbol);
  if (found != nullptr) return found;
  return fail(ErrorCode::kNotFound, what_ + " in " + path() + " has no function " + symbol + " (" + last_error() +
                                        "); install a newer release of it");
}

}  // namespace tributary
