# The Cython modules of ds4._native: every python/ds4/_native/_*.pyx becomes one extension beside libds4core.
# They all link the one shared core, so that handles made by one module are valid in the others.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})

set(ds4_native_dir "${PROJECT_SOURCE_DIR}/python/ds4/_native")
file(GLOB ds4_pyx CONFIGURE_DEPENDS "${ds4_native_dir}/_*.pyx")
foreach(pyx IN LISTS ds4_pyx)
  get_filename_component(name "${pyx}" NAME_WE)
  set(cpp "${CMAKE_CURRENT_BINARY_DIR}/cython/${name}.cpp")
  add_custom_command(
    OUTPUT "${cpp}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/cython"
    COMMAND Python::Interpreter -m cython -3 --cplus --depfile -I "${PROJECT_SOURCE_DIR}/python"
            --module-name "ds4._native.${name}" "${pyx}" -o "${cpp}"
    DEPENDS "${pyx}"
    DEPFILE "${cpp}.dep"
    COMMENT "Cython ds4._native.${name}"
    VERBATIM)
  if(SKBUILD_SABI_VERSION)
    python_add_library(${name} MODULE WITH_SOABI USE_SABI ${SKBUILD_SABI_VERSION} "${cpp}")
    target_compile_definitions(${name} PRIVATE CYTHON_LIMITED_API=1)
  else()
    python_add_library(${name} MODULE WITH_SOABI "${cpp}")
  endif()
  target_link_libraries(${name} PRIVATE ds4core)
  if(APPLE)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "@loader_path")
  else()
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION ds4/_native)
endforeach()
install(TARGETS ds4core LIBRARY DESTINATION ds4/_native RUNTIME DESTINATION ds4/_native)
