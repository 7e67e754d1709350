# LONGDECODE_CUDA: AUTO (the CUDA backend if there is a toolkit), ON (it must be there), OFF.
# Sets LONGDECODE_HAS_CUDA. A build without the backend is complete.
set(LONGDECODE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE LONGDECODE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LONGDECODE_HAS_CUDA OFF)
set(longdecode_no_cuda "")
if(NOT LONGDECODE_CUDA STREQUAL "AUTO" AND NOT LONGDECODE_CUDA)
  set(longdecode_no_cuda "switched off")
elseif(LONGDECODE_SANITIZE)
  set(longdecode_no_cuda "nvcc does not take the host's sanitizers")
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real 80)  # of sources that nothing else is said of
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      set(longdecode_no_cuda "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.8")
    else()
      set(LONGDECODE_HAS_CUDA ON)
    endif()
  else()
    set(longdecode_no_cuda "no CUDA compiler found")
  endif()
endif()
if(LONGDECODE_HAS_CUDA)
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
  # Keeps what ptxas says about each object beside it; tests/gpu/check_resources.py reads it.
  find_program(LONGDECODE_CCACHE ccache)
  set(CMAKE_CUDA_COMPILER_LAUNCHER sh ${PROJECT_SOURCE_DIR}/cmake/record_ptxas.sh)
  if(LONGDECODE_CCACHE)
    list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${LONGDECODE_CCACHE})
  endif()
elseif(LONGDECODE_CUDA STREQUAL "AUTO" OR NOT LONGDECODE_CUDA)
  message(STATUS "CUDA backend: not built (${longdecode_no_cuda})")
else()
  message(FATAL_ERROR "LONGDECODE_CUDA is ON, but: ${longdecode_no_cuda}")
endif()

# longdecode_cuda_sources(HOPPER|SM80|BOTH FILES...): the architectures that CUDA sources of
# `longdecode`, whose CUDA_ARCHITECTURES are OFF, are compiled for. SM80: machine code for 8.0, which 8.6 and 8.9 run too,
# and PTX for later GPUs.
function(longdecode_cuda_sources kind)
  set(hopper --generate-code=arch=compute_90a,code=[sm_90a])
  set(sm80 --generate-code=arch=compute_80,code=[compute_80,sm_80])
  set(options_HOPPER ${hopper})
  set(options_SM80 ${sm80})
  set(options_BOTH ${hopper} ${sm80})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY longdecode
    PROPERTIES COMPILE_OPTIONS "${options_${kind}}")
endfunction()

# longdecode_configure_cuda(TARGET): flags of its CUDA sources and the static runtime.
# CMake 3.25 drops CUDA_STANDARD 20 with nvcc 13, so the flag is passed by hand.
function(longdecode_configure_cuda target)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xptxas=-v -Xcompiler=-Wall>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
