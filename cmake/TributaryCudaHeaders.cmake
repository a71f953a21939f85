# The headers of cuBLAS and NCCL, which CUDA's toolkit may come without. The libraries are loaded at run time, so that a
# header is all that a build needs of them; without one it goes through, without that part.
#
# tributary_cuda_header(NAME ID HEADER CURE SUFFIX...): looks for HEADER in the toolkit, in the system's folders and, under
# each SUFFIX, where Python packages are. Sets TRIBUTARY_HAVE_<ID>. -DTRIBUTARY_<ID>_INCLUDE=FOLDER says another folder; one
# without the header leaves the part out.
function(tributary_cuda_header name id header cure)
  set(have OFF)
  if(TRIBUTARY_HAVE_CUDA)
    find_program(TRIBUTARY_PYTHON python3)
    set(python_folders "")
    if(TRIBUTARY_PYTHON)
      execute_process(COMMAND ${TRIBUTARY_PYTHON} -c "import sys; print(';'.join(p for p in sys.path if p))"
        OUTPUT_VARIABLE python_folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    set(packages "")
    foreach(folder ${python_folders})
      foreach(suffix ${ARGN})
        list(APPEND packages ${folder}/${suffix})
      endforeach()
    endforeach()
    find_path(TRIBUTARY_${id}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${packages}
      DOC "Folder of ${name}'s header ${header}")
    if(EXISTS "${TRIBUTARY_${id}_INCLUDE}/${header}")
      set(have ON)
      message(STATUS "${name}: ${TRIBUTARY_${id}_INCLUDE}/${header}")
    else()
      set(TRIBUTARY_${id}_CURE "${cure}" PARENT_SCOPE)
      message(NOTICE "-- ${name}: left out, ${header} was not found. Install ${cure}, or give "
        "-DTRIBUTARY_${id}_INCLUDE=FOLDER, and configure again")
    endif()
  endif()
  set(TRIBUTARY_HAVE_${id} ${have} PARENT_SCOPE)
endfunction()

tributary_cuda_header(NCCL NCCL nccl.h "libnccl-dev, or nvidia-nccl-cu13 of PyPI"
  nvidia/nccl/include)
tributary_cuda_header(cuBLAS CUBLAS cublas_v2.h "libcublas-dev, or nvidia-cublas of PyPI"
  nvidia/cu13/include nvidia/cublas/include)

# tributary_needs_cuda_header(ID SOURCE...): sources of this directory that include it. After all other folders: beside
# the header there may be other releases of the toolkit's own.
function(tributary_needs_cuda_header id)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-idirafter;${TRIBUTARY_${id}_INCLUDE}")
endfunction()

# tributary_tells_left_out(SOURCE): the source of this directory that tells at run time what is left out.
function(tributary_tells_left_out source)
  set(definitions "")
  foreach(id NCCL CUBLAS)
    if(TRIBUTARY_${id}_CURE)
      list(APPEND definitions "TRIBUTARY_NO_${id}=\"${TRIBUTARY_${id}_CURE}\"")
    endif()
  endforeach()
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "${definitions}")
endfunction()
