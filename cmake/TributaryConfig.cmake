# find_package(Tributary) gives the target Tributary::tributary: libtributary.so and its header, in the folder that this file
# was installed to.
get_filename_component(_tributary_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Tributary::tributary)
  add_library(Tributary::tributary SHARED IMPORTED)
  set_target_properties(Tributary::tributary PROPERTIES
    IMPORTED_LOCATION "${_tributary_prefix}/lib/libtributary.so.1"
    IMPORTED_SONAME libtributary.so.1
    INTERFACE_INCLUDE_DIRECTORIES "${_tributary_prefix}/include")
endif()
unset(_tributary_prefix)
