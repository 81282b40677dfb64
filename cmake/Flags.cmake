# Compiler settings shared by everything built here.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

if(DS4_SANITIZE)
  list(JOIN DS4_SANITIZE "," ds4_sanitize_names)
  add_compile_options(-fsanitize=${ds4_sanitize_names} -fno-omit-frame-pointer -g)
  if("undefined" IN_LIST DS4_SANITIZE)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  add_link_options(-fsanitize=${ds4_sanitize_names})
endif()

# ds4_own_code(target): warnings for our own sources (not for generated ones), and the arithmetic rules. Results
# must not depend on the instruction set, so a*b+c is never fused behind our back and nothing is reassociated.
function(ds4_own_code target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -ffp-contract=off -fno-math-errno)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 reports impossible overlaps inside std::string (GCC bug 105329).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(DS4_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
