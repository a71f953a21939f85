# The header of NCCL, which CUDA's toolkit comes without. The library is loaded at run time, so that the header is all that
# a build needs of it; without one it goes through, without that part.
#
# Looks for nccl.h in the toolkit, in the system's folders and where Python packages are. Sets TRIBUTARY_HAVE_NCCL.
# -DTRIBUTARY_NCCL_INCLUDE=FOLDER says another folder; one without the header leaves the part out.
set(TRIBUTARY_HAVE_NCCL OFF)
if(TRIBUTARY_HAVE_CUDA)
  find_program(TRIBUTARY_PYTHON python3)
  set(python_folders "")
  if(TRIBUTARY_PYTHON)
    execute_process(COMMAND ${TRIBUTARY_PYTHON} -c "import sys; print(';'.join(p for p in sys.path if p))"
      OUTPUT_VARIABLE python_folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  list(TRANSFORM python_folders APPEND /nvidia/nccl/include)
  find_path(TRIBUTARY_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${python_folders}
    DOC "Folder of NCCL's header nccl.h")
  if(EXISTS "${TRIBUTARY_NCCL_INCLUDE}/nccl.h")
    set(TRIBUTARY_HAVE_NCCL ON)
    message(STATUS "NCCL: ${TRIBUTARY_NCCL_INCLUDE}/nccl.h")
  else()
    set(TRIBUTARY_NCCL_CURE "libnccl-dev, or nvidia-nccl-cu13 of PyPI")
    message(NOTICE "-- NCCL: left out, nccl.h was not found. Install ${TRIBUTARY_NCCL_CURE}, or give "
      "-DTRIBUTARY_NCCL_INCLUDE=FOLDER, and configure again")
  endif()
endif()

# tributary_needs_cuda_header(SOURCE...): sources of this directory that include it. Its folder comes after all others:
# it may have other releases of the toolkit's own headers.
function(tributary_needs_cuda_header)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-idirafter;${TRIBUTARY_NCCL_INCLUDE}")
endfunction()

# tributary_tells_left_out(SOURCE): the source of this directory that reports at run time what is left out.
function(tributary_tells_left_out source)
  if(TRIBUTARY_NCCL_CURE)
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "TRIBUTARY_NO_NCCL=\"${TRIBUTARY_NCCL_CURE}\"")
  endif()
endfunction()
