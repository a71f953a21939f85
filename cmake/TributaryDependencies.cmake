# Every outside library, found once, all from Debian's packages (scripts/packages.txt names them).
find_package(Threads REQUIRED)
find_package(CapnProto REQUIRED)
find_package(cppzmq REQUIRED)
find_package(RocksDB REQUIRED)
find_package(Boost 1.81 CONFIG REQUIRED)  # headers only
find_package(spdlog REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(Gloo REQUIRED)
find_package(doctest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
find_package(ZLIB REQUIRED)
find_path(TL_EXPECTED_INCLUDE tl/expected.hpp REQUIRED)

# toml++ is compiled into the library that reads configurations (TOML_IMPLEMENTATION in toml_reader.cc): libtributary.so
# carries it.
get_target_property(toml_include tomlplusplus::tomlplusplus INTERFACE_INCLUDE_DIRECTORIES)
add_library(tributary_toml INTERFACE)
target_include_directories(tributary_toml SYSTEM INTERFACE ${toml_include})
target_compile_definitions(tributary_toml INTERFACE TOML_HEADER_ONLY=0)

# xxHash: shared for programs. For a library that is loaded into other programs (TRIBUTARY_CARRIES_LIBRARIES) the archive,
# where there is one.
find_library(TRIBUTARY_XXHASH_ARCHIVE libxxhash.a DOC "xxHash's archive, for libtributary.so")
add_library(tributary_xxhash INTERFACE)
target_link_libraries(tributary_xxhash INTERFACE $<IF:$<AND:$<BOOL:$<TARGET_PROPERTY:TRIBUTARY_CARRIES_LIBRARIES>>,$<BOOL:${TRIBUTARY_XXHASH_ARCHIVE}>>,${TRIBUTARY_XXHASH_ARCHIVE},PkgConfig::XXHASH>)
