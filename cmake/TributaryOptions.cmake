# Compile options shared by every target, the CUDA switch, and tributary_library().
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(tributary_options INTERFACE)
target_include_directories(tributary_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
# No contraction anywhere: a*b+c is two roundings on every processor and with every -march, so that bits do not depend on
# where a formula was compiled.
target_compile_options(tributary_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>)
# GCC looks for garbage when its memory has doubled, beginning at 128 MiB: a tenth of its time. A batch takes 1 GiB or so.
target_compile_options(tributary_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576>)
# Off: missing-field-initializers, because designated initialisers rely on defaults; and two that GCC 12 reports falsely:
# restrict for "text" + std::string, maybe-uninitialized for moved-from std::variant and expected. GCC 13 and 14 report
# dangling-reference for every function that is given a temporary and returns a reference, into another argument too.
# subobject-linkage takes a batch for a header. Clang alone: unknown-pragmas, because GCC's ivdep is one; deprecated, because
# libstdc++'s stable_sort calls a function of its own that is (GCC reports ours).
target_compile_options(tributary_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized -Wno-restrict -Wno-subobject-linkage>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-unknown-pragmas -Wno-deprecated-declarations>)
if(TRIBUTARY_WERROR)
  target_compile_options(tributary_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# Flags that make an overrun of a buffer end a process instead of taking it over (docs/security.md). Sanitizers see more. Not
# for sources that are compiled without optimization (TRIBUTARY_UNOPTIMIZED): glibc's checks want it. The sizes that glibc
# checks are functions of its version 2.30 and before, which TRIBUTARY_PORTABLE has.
if(NOT TRIBUTARY_SANITIZE)
  set(program $<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>)
  set(library_code $<OR:$<BOOL:$<TARGET_PROPERTY:POSITION_INDEPENDENT_CODE>>,$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>>)
  set(optimized $<AND:$<CONFIG:Release>,$<NOT:$<BOOL:$<TARGET_PROPERTY:TRIBUTARY_UNOPTIMIZED>>>>)
  target_compile_options(tributary_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:${library_code}>>:-fPIE>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,${optimized}>:-U_FORTIFY_SOURCE>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,${optimized}>:-D_FORTIFY_SOURCE=2>)
  target_link_options(tributary_options INTERFACE LINKER:-z,relro LINKER:-z,now
    $<$<AND:${program},$<LINK_LANGUAGE:CXX>>:-pie>)
endif()
if(TRIBUTARY_SANITIZE)
  target_compile_options(tributary_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TRIBUTARY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(tributary_options INTERFACE -fsanitize=${TRIBUTARY_SANITIZE})
  # A program of 100 MB is linked in a third of the time. --no-fork: the caller waits, and sees the time.
  find_program(TRIBUTARY_MOLD mold)
  if(TRIBUTARY_MOLD)
    target_link_options(tributary_options INTERFACE -fuse-ld=mold LINKER:--no-fork)
  endif()
  target_compile_definitions(tributary_options INTERFACE TRIBUTARY_SANITIZED=1)
  # GCC and clang say it in two ways.
  if(TRIBUTARY_SANITIZE MATCHES address)
    target_compile_definitions(tributary_options INTERFACE TRIBUTARY_ADDRESS_SANITIZER=1)
  elseif(TRIBUTARY_SANITIZE MATCHES thread)
    target_compile_definitions(tributary_options INTERFACE TRIBUTARY_THREAD_SANITIZER=1)
  endif()
endif()

set(TRIBUTARY_HAVE_CUDA OFF)
if(NOT TRIBUTARY_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    set(CMAKE_CUDA_STANDARD 20)
    # Shared: six programs of a bundle would each carry it. Without a driver it loads all the same, and says so.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    # Debian 12's CMake does not know yet that nvcc speaks C++20, and how to say so.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    # Device code for three targets in every program: packed tightly it is a fourth of the size. CUDA 12.8 could, too, but
    # drivers before 550.54 could not unpack it, which serve other builds with CUDA 12 (docs/packages.md).
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(TRIBUTARY_HAVE_CUDA ON)
  elseif(TRIBUTARY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIBUTARY_CUDA=ON but no CUDA compiler was found; put nvcc on PATH or set TRIBUTARY_CUDA=OFF")
  endif()
endif()
message(STATUS "CUDA: ${TRIBUTARY_HAVE_CUDA}")

# tributary_batches(TARGET SOURCES ... [APART ...]): the sources are compiled as one, because most of a compiler's time
# goes into headers. Anonymous names are therefore unique in a library. APART: sources that a batch of their own has.
function(tributary_batches name)
  cmake_parse_arguments(ARG "" "" "SOURCES;APART" ${ARGN})
  set_source_files_properties(${ARG_SOURCES} PROPERTIES UNITY_GROUP batch)
  set_source_files_properties(${ARG_APART} PROPERTIES UNITY_GROUP apart)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${TRIBUTARY_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# In a sanitizer build, whose compiler is clang, most sources get the largest headers of others parsed. GCC 12 dies of such
# a file where its -O is another.
if(TRIBUTARY_SANITIZE)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/parsed.cc CONTENT "")
  add_library(tributary_parsed OBJECT ${CMAKE_BINARY_DIR}/parsed.cc)
  target_link_libraries(tributary_parsed PRIVATE tributary_options spdlog::spdlog nlohmann_json::nlohmann_json)
  target_precompile_headers(tributary_parsed PRIVATE <algorithm> <chrono> <condition_variable> <deque> <filesystem>
    <fstream> <functional> <map> <mutex> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map>
    <variant> <vector> <nlohmann/json.hpp> <spdlog/spdlog.h>)
  target_compile_options(tributary_options INTERFACE -Xclang -fno-pch-timestamp)  # so that ccache knows the file again
endif()
function(tributary_parsed name)
  if(TRIBUTARY_SANITIZE)
    target_precompile_headers(${name} REUSE_FROM tributary_parsed)
  endif()
endfunction()

# tributary_library(NAME SOURCES ... [APART ...] DEPS ...): a static library with the project's options.
function(tributary_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;APART;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES} ${ARG_APART})
  tributary_batches(${name} SOURCES ${ARG_SOURCES} APART ${ARG_APART})
  target_link_libraries(${name} PUBLIC tributary_options ${ARG_DEPS})
  tributary_parsed(${name})
endfunction()

# tributary_fast(TARGET...): every chunk passes through these. tributary_cold(TARGET...): these run at a start, for a
# person, or once a round at most. The others have -O2 (CMakeLists.txt): a release build compiles in half the time.
function(tributary_fast)
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O3>)
  endforeach()
endfunction()
function(tributary_cold)
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()

# tributary_simulated(TARGET...): the simulator runs these for thousands of seeds. A sanitizer build (-O0 in CMakePresets.json,
# half the compiler's time) optimizes them, where it runs the simulator.
function(tributary_simulated)
  if(TRIBUTARY_SANITIZE MATCHES thread)
    return()
  endif()
  foreach(name ${ARGN})
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
    set_target_properties(${name} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # which have -O0
  endforeach()
endfunction()

function(tributary_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  tributary_batches(${name} SOURCES ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tributary_options ${ARG_DEPS})
  tributary_parsed(${name})
endfunction()

# tributary_in_shared_library(TARGET...): static libraries that libtributary.so carries. Hidden, their functions are
# inlined and called as in a program, so that position independence costs programs nothing.
function(tributary_in_shared_library)
  if(TRIBUTARY_SANITIZE)  # there is no such library
    return()
  endif()
  set_target_properties(${ARGN} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()
