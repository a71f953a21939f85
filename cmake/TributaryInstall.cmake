# The relocatable install: a folder that runs on any x86-64 Linux, whatever else is there or is not, whose glibc is at least
# 2.31 (TRIBUTARY_PORTABLE), or else not older than this machine's.
#
#   bin/      the programs             lib/       every shared library that they need, but glibc's and the driver's
#   configs/  job and daemon files     bench/     gpu_check, PyTorch's programs
#   include/  tributary.h              examples/  programs that use it
#   licences/ of the libraries         python/    the package, for bench/ (trainers install the wheel)
#
# For trainers in C there are lib/cmake/Tributary (find_package(Tributary)) and lib/pkgconfig. Header, library and these
# alone, which then need the system's Cap'n Proto: cmake --install BUILD --component library --prefix FOLDER
#
# `make bundle` (scripts/make_bundle.sh) packs and checks it.

# tributary_bundle(TARGET...): adds programs to the install. A target that this configuration does not have is left out.
function(tributary_bundle)
  set_property(GLOBAL APPEND PROPERTY TRIBUTARY_BUNDLE ${ARGN})
endfunction()

tributary_bundle(tributary tributary-bench tributary-server tributary-worker tributary-train)

# An install into /usr/local would put its libraries before the system's own for every program there.
if(CMAKE_INSTALL_PREFIX_INITIALIZED_TO_DEFAULT)
  set(CMAKE_INSTALL_PREFIX ${CMAKE_BINARY_DIR}/tributary-${PROJECT_VERSION} CACHE PATH "A folder of its own" FORCE)
endif()

# Installs files for trainers in C. Sets TRIBUTARY_LIBRARY to the target, or to nothing where it is not built.
function(tributary_install_library)
  set(TRIBUTARY_LIBRARY "" PARENT_SCOPE)
  if(NOT TARGET tributary_shared)
    return()
  endif()
  set(TRIBUTARY_LIBRARY tributary_shared PARENT_SCOPE)
  set_target_properties(tributary_shared PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  target_link_options(tributary_shared PRIVATE LINKER:--disable-new-dtags)
  add_dependencies(bundle_programs tributary_shared)
  set(packages ${CMAKE_BINARY_DIR}/packages)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${packages}/TributaryConfigVersion.cmake COMPATIBILITY SameMajorVersion)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/tributary.pc.in ${packages}/tributary.pc @ONLY)
  install(TARGETS tributary_shared LIBRARY DESTINATION lib COMPONENT library)
  install(FILES ${CMAKE_SOURCE_DIR}/session/tributary.h DESTINATION include COMPONENT library)
  install(FILES ${CMAKE_SOURCE_DIR}/cmake/TributaryConfig.cmake ${packages}/TributaryConfigVersion.cmake
    DESTINATION lib/cmake/Tributary COMPONENT library)
  install(FILES ${packages}/tributary.pc DESTINATION lib/pkgconfig COMPONENT library)
  install(FILES ${CMAKE_SOURCE_DIR}/examples/session.c DESTINATION examples COMPONENT library)
endfunction()

# Called once, when all targets are known.
function(tributary_install)
  get_property(wanted GLOBAL PROPERTY TRIBUTARY_BUNDLE)
  set(programs "")
  foreach(program ${wanted})
    if(TARGET ${program})
      list(APPEND programs ${program})
    endif()
  endforeach()
  # The old kind of rpath: it comes before LD_LIBRARY_PATH, which on machines with GPUs often names folders with other
  # versions of the same libraries.
  foreach(program ${programs})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    target_link_options(${program} PRIVATE LINKER:--disable-new-dtags)
  endforeach()
  add_custom_target(bundle_programs DEPENDS ${programs})
  tributary_install_library()

  install(TARGETS ${programs} RUNTIME DESTINATION bin)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION .)
  install(PROGRAMS ${CMAKE_SOURCE_DIR}/bench/gpu_check DESTINATION bench)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/bench/gpu_ladder DESTINATION bench
    FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
  # Rungs of PyTorch look for their models and the package next to their folder.
  install(FILES ${CMAKE_SOURCE_DIR}/bench/torch_step.py ${CMAKE_SOURCE_DIR}/bench/torch_rank.py
    ${CMAKE_SOURCE_DIR}/bench/torch_losses.py ${CMAKE_SOURCE_DIR}/bench/gpt_rank.py DESTINATION bench)
  install(FILES ${CMAKE_SOURCE_DIR}/examples/byte_gpt.py ${CMAKE_SOURCE_DIR}/examples/fashion_resnet.py
    ${CMAKE_SOURCE_DIR}/examples/gpt.py ${CMAKE_SOURCE_DIR}/examples/rank_device.py DESTINATION examples)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/tributary DESTINATION python
    FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md DESTINATION .)
  if(TRIBUTARY_PORTABLE)  # of what is linked in
    install(DIRECTORY ${TRIBUTARY_PORTABLE_PARTS}/licences DESTINATION .)
  endif()
  set(files "")
  foreach(program ${programs} ${TRIBUTARY_LIBRARY})
    string(APPEND files " \"$<TARGET_FILE:${program}>\"")
  endforeach()
  install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND
    \"${CMAKE_SOURCE_DIR}/scripts/collect_libraries.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\"${files})")
endfunction()
