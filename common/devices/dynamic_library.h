// DynamicLibrary: a shared library that is searched for at run time, because a program must also start without it
// (NCCL: hundreds of megabytes that a relocatable install does not carry).
//
//   auto library = DynamicLibrary::open("NCCL", {"libnccl.so.2", "libnccl.so"}, "install the package libnccl2");
//   NcclFunctions f;
//   if (Status s = library->resolve("ncclCommAbort", f.comm_abort); !s) ...
//
// A library stays loaded until the process ends, even after the object: such libraries start threads and register exit
// handlers that must find their code.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

class DynamicLibrary {
 public:
  // Tries the candidates in order, each as the dynamic linker searches (LD_LIBRARY_PATH, run path, its cache), then in
  // the folder where NVIDIA's toolkit is installed by default, then in Python's packages
  // (common/devices/python_packages.h). kNotFound lists the candidates, why each did not load, and `cure`.
  static Result<DynamicLibrary> open(std::string what, std::initializer_list<const char*> candidates,
                                     std::string_view cure);

  const std::string& what() const { return what_; }  // as it was given: "NCCL"
  const std::string& name() const { return name_; }  // the candidate that loaded
  // Its file, if the dynamic linker knows it; else name().
  std::string path() const;

  // Finds the function `symbol`. kNotFound names it and the library's file: it is too old, or another library.
  template <class Function>
  Status resolve(const char* symbol, Function*& out) const {
    Result<void*> found = address(symbol);
    if (!found) return tl::unexpected(found.error());
    out = reinterpret_cast<Function*>(*found);
    return {};
  }
  // Null if the library has no such function: for what only newer ones have.
  template <class Function>
  void resolve_if_there(const char* symbol, Function*& out) const {
    const Result<void*> found = address(symbol);
    out = found ? reinterpret_cast<Function*>(*found) : nullptr;
  }

 private:
  DynamicLibrary(std::string what, std::string name, void* handle)
      : what_(std::move(what)), name_(std::move(name)), handle_(handle) {}
  Result<void*> address(const char* symbol) const;

  std::string what_, name_;
  void* handle_;
};

}  // namespace tributary
