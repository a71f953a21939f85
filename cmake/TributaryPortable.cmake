# TRIBUTARY_PORTABLE (preset `portable`, for `make wheel` and `make bundle`): programs and libtributary.so for systems with
# glibc 2.31 or newer, of the same objects. They are compiled as always, against Debian 12's headers, which the compiler
# cache knows from the other builds; but linked against Debian 11's glibc, so that each function is asked for in a version
# that is there, and what 2.31 lacks is in packaging/portable/old_glibc.c.
#
# Debian 12's shared libraries would ask for newer versions, the C++ library's among them. So all of it is linked in: from
# Debian's archives, and from those that scripts/portable_parts.sh builds. Nothing of C++ is shared: in a process with
# PyTorch, libtributary.so keeps its C++ library to itself and throws nothing out of its C interface.
option(TRIBUTARY_PORTABLE "Link for systems with glibc 2.31 or newer" OFF)
if(NOT TRIBUTARY_PORTABLE)
  return()
endif()
if(TRIBUTARY_SANITIZE)
  message(FATAL_ERROR "TRIBUTARY_PORTABLE=ON with TRIBUTARY_SANITIZE=${TRIBUTARY_SANITIZE}: a sanitizer needs this machine's glibc; set one of them only")
endif()

set(TRIBUTARY_PORTABLE_PARTS ${CMAKE_SOURCE_DIR}/build/portable-parts CACHE PATH "Where scripts/portable_parts.sh puts what it gets")
message(STATUS "Portable: preparing ${TRIBUTARY_PORTABLE_PARTS}, a minute or two the first time")
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/portable_parts.sh ${TRIBUTARY_PORTABLE_PARTS}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TRIBUTARY_PORTABLE_PARTS}/link_options)
file(STRINGS ${TRIBUTARY_PORTABLE_PARTS}/link_options options)
add_link_options(${options})

# tributary_carry(TARGET ARCHIVE...): what was found as a shared library is its archive, which the further archives follow.
function(tributary_carry target)
  set(paths "")
  foreach(name ${ARGN})
    find_library(archive ${name} PATHS ${TRIBUTARY_PORTABLE_PARTS}/lib NO_CACHE NO_DEFAULT_PATH)
    if(NOT archive)
      find_library(archive ${name} NO_CACHE REQUIRED)
    endif()
    list(APPEND paths ${archive})
    unset(archive)
  endforeach()
  get_target_property(needs ${target} INTERFACE_LINK_LIBRARIES)
  if(NOT needs)
    set(needs "")
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")  # pkg-config's: all that it says is libraries
    set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${paths}")
    return()
  endif()
  list(POP_FRONT paths first)
  get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
  if(NOT configurations)
    set(configurations "")
  endif()
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${first})
  foreach(configuration ${configurations})
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} ${first}
      IMPORTED_LINK_DEPENDENT_LIBRARIES_${configuration} "")
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${paths};${needs}")
endfunction()

tributary_carry(fmt::fmt libfmt.a)
tributary_carry(spdlog::spdlog libspdlog.a)
tributary_carry(prometheus-cpp::core libprometheus-cpp-core.a)
tributary_carry(gloo libgloo.a)
tributary_carry(CapnProto::kj libkj.a)
tributary_carry(CapnProto::capnp libcapnp.a)
tributary_carry(RocksDB::rocksdb-shared librocksdb.a libgflags.a libsnappy.a libz.a libbz2.a liblz4.a libzstd.a)
tributary_carry(libzmq libzmq.a libsodium.a)
tributary_carry(PkgConfig::SODIUM libsodium.a)
tributary_carry(PkgConfig::XXHASH libxxhash.a)
tributary_carry(ZLIB::ZLIB libz.a)
# Separate libraries of glibc 2.31.
foreach(language C CXX CUDA)
  string(APPEND CMAKE_${language}_STANDARD_LIBRARIES " -lpthread -ldl -lrt")
endforeach()

# Gloo's headers for a target that is compiled with Gloo.
function(tributary_portable_headers)
  foreach(target tributary_worker_lanes tributary_bench)
    if(TARGET ${target})
      target_include_directories(${target} SYSTEM BEFORE PRIVATE ${TRIBUTARY_PORTABLE_PARTS}/gloo)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL tributary_portable_headers)
