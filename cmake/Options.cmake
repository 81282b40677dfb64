# Build options. A name that is not listed here stops the configuration: a misspelt or renamed option that is
# silently ignored costs its user hours. The file also runs alone (cmake -DDS4_X=Y -P cmake/Options.cmake), for tests.
cmake_minimum_required(VERSION 3.24...3.31)
option(DS4_BUILD_TESTS "Build the native test module (needs pybind11) and the fuzz drivers" OFF)
option(DS4_BUILD_FUZZ "Build the fuzz drivers only" OFF)
option(DS4_BUILD_CONFORMANCE "Build the conformance program of tests/native only (needs no Python)" OFF)
option(DS4_WERROR "Treat compiler warnings in ds4's own code as errors" OFF)
set(DS4_SANITIZE "" CACHE STRING "Sanitizers for everything built here: 'address;undefined' or 'thread'")
option(DS4_CUDA "NVIDIA GPUs (a later release)" OFF)
option(DS4_HIP "AMD GPUs (a later release)" OFF)
option(DS4_METAL "Apple GPUs (a later release)" OFF)

set(ds4_known_options DS4_BUILD_TESTS DS4_BUILD_FUZZ DS4_BUILD_CONFORMANCE DS4_WERROR DS4_SANITIZE DS4_CUDA DS4_HIP DS4_METAL)
get_cmake_property(ds4_cache_names CACHE_VARIABLES)
foreach(name IN LISTS ds4_cache_names)
  if(name MATCHES "^DS4_" AND NOT name IN_LIST ds4_known_options)
    list(JOIN ds4_known_options ", " ds4_known_text)
    message(FATAL_ERROR "unknown build option ${name}; ds4 knows ${ds4_known_text}")
  endif()
endforeach()

foreach(backend IN ITEMS CUDA HIP METAL)
  if(DS4_${backend})
    message(FATAL_ERROR "DS4_${backend}=ON: the ${backend} back end comes in a later release; "
                        "this version builds nothing for it. Leave DS4_${backend} off to use the CPU.")
  endif()
endforeach()

foreach(sanitizer IN LISTS DS4_SANITIZE)
  if(NOT sanitizer MATCHES "^(address|undefined|thread|leak)$")
    message(FATAL_ERROR "DS4_SANITIZE: unknown sanitizer '${sanitizer}'; use 'address;undefined' or 'thread'")
  endif()
endforeach()
